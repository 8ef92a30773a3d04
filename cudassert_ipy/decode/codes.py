"""CUDA error codes: their names, texts, what kind of failure they are, and whether they are sticky.

Sticky means that the CUDA context, and with it the process's use of the device, is lost. Sources:
``driver_types.h`` and ``cuda.h`` of nvidia-cuda-runtime 12.9.79 and 13.5.37, whose comments say of
the sticky codes "the process must be terminated and relaunched"; texts are those that
``cudaGetErrorString`` of 13.5.37 returns. HIP has the same numbers, and texts but for those in
``_HIP_TEXTS`` (``hip_error.cpp`` of ROCm/clr).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cudassert_ipy.model import Kind


class Code(NamedTuple):
    """One CUDA runtime error."""

    code: int
    name: str
    driver: str
    """The name in the driver's interface, without ``CUDA_ERROR_``; empty where it has none."""
    text: str
    kind: Kind
    sticky: bool | None
    """None where the header does not say, and the error may well come with a lost device."""


# One line per code, so that a new one is one line and a wrong one is seen.
# ruff: noqa: E501
# fmt: off
_CODES = (
    Code(1, "cudaErrorInvalidValue", "INVALID_VALUE", "invalid argument", "cuda_error", False),
    Code(2, "cudaErrorMemoryAllocation", "OUT_OF_MEMORY", "out of memory", "out_of_memory", False),
    Code(3, "cudaErrorInitializationError", "NOT_INITIALIZED", "initialization error", "cuda_error", None),
    Code(4, "cudaErrorCudartUnloading", "DEINITIALIZED", "driver shutting down", "cuda_error", None),
    Code(5, "cudaErrorProfilerDisabled", "PROFILER_DISABLED", "profiler disabled while using external profiling tool", "cuda_error", False),
    Code(6, "cudaErrorProfilerNotInitialized", "PROFILER_NOT_INITIALIZED", "profiler not initialized: call cudaProfilerInitialize()", "cuda_error", False),
    Code(7, "cudaErrorProfilerAlreadyStarted", "PROFILER_ALREADY_STARTED", "profiler already started", "cuda_error", False),
    Code(8, "cudaErrorProfilerAlreadyStopped", "PROFILER_ALREADY_STOPPED", "profiler already stopped", "cuda_error", False),
    Code(9, "cudaErrorInvalidConfiguration", "", "invalid configuration argument", "cuda_error", False),
    Code(10, "cudaErrorVersionTranslation", "", "Driver is newer than runtime and returned parameters the runtime cannot process", "cuda_error", False),
    Code(12, "cudaErrorInvalidPitchValue", "", "invalid pitch argument", "cuda_error", False),
    Code(13, "cudaErrorInvalidSymbol", "", "invalid device symbol", "cuda_error", False),
    Code(16, "cudaErrorInvalidHostPointer", "", "invalid host pointer", "cuda_error", False),
    Code(17, "cudaErrorInvalidDevicePointer", "", "invalid device pointer", "cuda_error", False),
    Code(18, "cudaErrorInvalidTexture", "", "invalid texture reference", "cuda_error", False),
    Code(19, "cudaErrorInvalidTextureBinding", "", "texture is not bound to a pointer", "cuda_error", False),
    Code(20, "cudaErrorInvalidChannelDescriptor", "", "invalid channel descriptor", "cuda_error", False),
    Code(21, "cudaErrorInvalidMemcpyDirection", "", "invalid copy direction for memcpy", "cuda_error", False),
    Code(22, "cudaErrorAddressOfConstant", "", "invalid address of constant", "cuda_error", False),
    Code(23, "cudaErrorTextureFetchFailed", "", "fetch from texture failed", "cuda_error", False),
    Code(24, "cudaErrorTextureNotBound", "", "cannot fetch from a texture that is not bound", "cuda_error", False),
    Code(25, "cudaErrorSynchronizationError", "", "incorrect use of __syncthreads()", "cuda_error", None),
    Code(26, "cudaErrorInvalidFilterSetting", "", "linear filtering not supported for non-float type", "cuda_error", False),
    Code(27, "cudaErrorInvalidNormSetting", "", "read as normalized float not supported for data type", "cuda_error", False),
    Code(28, "cudaErrorMixedDeviceExecution", "", "device emulation mode and device execution mode cannot be mixed", "cuda_error", False),
    Code(31, "cudaErrorNotYetImplemented", "", "feature not yet implemented", "cuda_error", False),
    Code(32, "cudaErrorMemoryValueTooLarge", "", "memory size or pointer value too large to fit in 32 bit", "cuda_error", False),
    Code(34, "cudaErrorStubLibrary", "STUB_LIBRARY", "CUDA driver is a stub library", "cuda_error", False),
    Code(35, "cudaErrorInsufficientDriver", "", "CUDA driver version is insufficient for CUDA runtime version", "cuda_error", False),
    Code(36, "cudaErrorCallRequiresNewerDriver", "CALL_REQUIRES_NEWER_DRIVER", "API call is not supported in the installed CUDA driver", "cuda_error", False),
    Code(37, "cudaErrorInvalidSurface", "", "invalid surface reference", "cuda_error", False),
    Code(43, "cudaErrorDuplicateVariableName", "", "duplicate global variable looked up by string name", "cuda_error", False),
    Code(44, "cudaErrorDuplicateTextureName", "", "duplicate texture looked up by string name", "cuda_error", False),
    Code(45, "cudaErrorDuplicateSurfaceName", "", "duplicate surface looked up by string name", "cuda_error", False),
    Code(46, "cudaErrorDevicesUnavailable", "DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable", "cuda_error", None),
    Code(49, "cudaErrorIncompatibleDriverContext", "", "incompatible driver context", "cuda_error", False),
    Code(52, "cudaErrorMissingConfiguration", "", "__global__ function call is not configured", "cuda_error", False),
    Code(53, "cudaErrorPriorLaunchFailure", "", "unspecified launch failure in prior launch", "launch_failure", None),
    Code(65, "cudaErrorLaunchMaxDepthExceeded", "", "launch would exceed maximum depth of nested launches", "out_of_resources", False),
    Code(66, "cudaErrorLaunchFileScopedTex", "", "launch failed because kernel uses unsupported, file-scoped textures (texture objects are supported)", "cuda_error", False),
    Code(67, "cudaErrorLaunchFileScopedSurf", "", "launch failed because kernel uses unsupported, file-scoped surfaces (surface objects are supported)", "cuda_error", False),
    Code(68, "cudaErrorSyncDepthExceeded", "", "cudaDeviceSynchronize failed because caller's grid depth exceeds cudaLimitDevRuntimeSyncDepth", "cuda_error", False),
    Code(69, "cudaErrorLaunchPendingCountExceeded", "", "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount", "out_of_resources", False),
    Code(98, "cudaErrorInvalidDeviceFunction", "", "invalid device function", "no_kernel_image", False),
    Code(100, "cudaErrorNoDevice", "NO_DEVICE", "no CUDA-capable device is detected", "cuda_error", False),
    Code(101, "cudaErrorInvalidDevice", "INVALID_DEVICE", "invalid device ordinal", "cuda_error", False),
    Code(102, "cudaErrorDeviceNotLicensed", "DEVICE_NOT_LICENSED", "device doesn't have valid Grid license", "cuda_error", False),
    Code(103, "cudaErrorSoftwareValidityNotEstablished", "", "integrity checks failed", "cuda_error", False),
    Code(127, "cudaErrorStartupFailure", "", "startup failure in cuda runtime", "cuda_error", None),
    Code(200, "cudaErrorInvalidKernelImage", "INVALID_IMAGE", "device kernel image is invalid", "no_kernel_image", False),
    Code(201, "cudaErrorDeviceUninitialized", "INVALID_CONTEXT", "invalid device context", "cuda_error", None),
    Code(205, "cudaErrorMapBufferObjectFailed", "MAP_FAILED", "mapping of buffer object failed", "cuda_error", False),
    Code(206, "cudaErrorUnmapBufferObjectFailed", "UNMAP_FAILED", "unmapping of buffer object failed", "cuda_error", False),
    Code(207, "cudaErrorArrayIsMapped", "ARRAY_IS_MAPPED", "array is mapped", "cuda_error", False),
    Code(208, "cudaErrorAlreadyMapped", "ALREADY_MAPPED", "resource already mapped", "cuda_error", False),
    Code(209, "cudaErrorNoKernelImageForDevice", "NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device", "no_kernel_image", False),
    Code(210, "cudaErrorAlreadyAcquired", "ALREADY_ACQUIRED", "resource already acquired", "cuda_error", False),
    Code(211, "cudaErrorNotMapped", "NOT_MAPPED", "resource not mapped", "cuda_error", False),
    Code(212, "cudaErrorNotMappedAsArray", "NOT_MAPPED_AS_ARRAY", "resource not mapped as array", "cuda_error", False),
    Code(213, "cudaErrorNotMappedAsPointer", "NOT_MAPPED_AS_POINTER", "resource not mapped as pointer", "cuda_error", False),
    Code(214, "cudaErrorECCUncorrectable", "ECC_UNCORRECTABLE", "uncorrectable ECC error encountered", "ecc_error", None),
    Code(215, "cudaErrorUnsupportedLimit", "UNSUPPORTED_LIMIT", "limit is not supported on this architecture", "cuda_error", False),
    Code(216, "cudaErrorDeviceAlreadyInUse", "CONTEXT_ALREADY_IN_USE", "exclusive-thread device already in use by a different thread", "cuda_error", False),
    Code(217, "cudaErrorPeerAccessUnsupported", "PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices", "cuda_error", False),
    Code(218, "cudaErrorInvalidPtx", "INVALID_PTX", "a PTX JIT compilation failed", "no_kernel_image", False),
    Code(219, "cudaErrorInvalidGraphicsContext", "INVALID_GRAPHICS_CONTEXT", "invalid OpenGL or DirectX context", "cuda_error", False),
    Code(220, "cudaErrorNvlinkUncorrectable", "NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution", "hardware_error", None),
    Code(221, "cudaErrorJitCompilerNotFound", "JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found", "no_kernel_image", False),
    Code(222, "cudaErrorUnsupportedPtxVersion", "UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain.", "no_kernel_image", False),
    Code(223, "cudaErrorJitCompilationDisabled", "JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled", "no_kernel_image", False),
    Code(224, "cudaErrorUnsupportedExecAffinity", "UNSUPPORTED_EXEC_AFFINITY", "the provided execution affinity is not supported", "cuda_error", False),
    Code(225, "cudaErrorUnsupportedDevSideSync", "UNSUPPORTED_DEVSIDE_SYNC", "the provided PTX contains unsupported call to cudaDeviceSynchronize", "no_kernel_image", False),
    Code(226, "cudaErrorContained", "CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error", "hardware_error", True),
    Code(227, "cudaErrorInsufficientLoaderVersion", "INSUFFICIENT_LOADER_VERSION", "Loader version is insufficient for fatbin", "cuda_error", False),
    Code(300, "cudaErrorInvalidSource", "INVALID_SOURCE", "device kernel image is invalid", "no_kernel_image", False),
    Code(301, "cudaErrorFileNotFound", "FILE_NOT_FOUND", "file not found", "cuda_error", False),
    Code(302, "cudaErrorSharedObjectSymbolNotFound", "SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found", "cuda_error", False),
    Code(303, "cudaErrorSharedObjectInitFailed", "SHARED_OBJECT_INIT_FAILED", "shared object initialization failed", "cuda_error", False),
    Code(304, "cudaErrorOperatingSystem", "OPERATING_SYSTEM", "OS call failed or operation not supported on this OS", "cuda_error", None),
    Code(400, "cudaErrorInvalidResourceHandle", "INVALID_HANDLE", "invalid resource handle", "cuda_error", False),
    Code(401, "cudaErrorIllegalState", "ILLEGAL_STATE", "the operation cannot be performed in the present state", "cuda_error", None),
    Code(402, "cudaErrorLossyQuery", "LOSSY_QUERY", "attempted introspection would be semantically lossy", "cuda_error", False),
    Code(500, "cudaErrorSymbolNotFound", "NOT_FOUND", "named symbol not found", "cuda_error", False),
    Code(600, "cudaErrorNotReady", "NOT_READY", "device not ready", "cuda_error", False),
    Code(700, "cudaErrorIllegalAddress", "ILLEGAL_ADDRESS", "an illegal memory access was encountered", "illegal_memory_access", True),
    Code(701, "cudaErrorLaunchOutOfResources", "LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch", "out_of_resources", False),
    Code(702, "cudaErrorLaunchTimeout", "LAUNCH_TIMEOUT", "the launch timed out and was terminated", "launch_timeout", True),
    Code(703, "cudaErrorLaunchIncompatibleTexturing", "LAUNCH_INCOMPATIBLE_TEXTURING", "launch uses incompatible texturing mode", "cuda_error", False),
    Code(704, "cudaErrorPeerAccessAlreadyEnabled", "PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled", "cuda_error", False),
    Code(705, "cudaErrorPeerAccessNotEnabled", "PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled", "cuda_error", False),
    Code(708, "cudaErrorSetOnActiveProcess", "PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process", "cuda_error", False),
    Code(709, "cudaErrorContextIsDestroyed", "CONTEXT_IS_DESTROYED", "context is destroyed", "cuda_error", None),
    Code(710, "cudaErrorAssert", "ASSERT", "device-side assert triggered", "device_assert", True),
    Code(711, "cudaErrorTooManyPeers", "TOO_MANY_PEERS", "peer mapping resources exhausted", "cuda_error", False),
    Code(712, "cudaErrorHostMemoryAlreadyRegistered", "HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped", "cuda_error", False),
    Code(713, "cudaErrorHostMemoryNotRegistered", "HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region", "cuda_error", False),
    Code(714, "cudaErrorHardwareStackError", "HARDWARE_STACK_ERROR", "hardware stack error", "hardware_error", True),
    Code(715, "cudaErrorIllegalInstruction", "ILLEGAL_INSTRUCTION", "an illegal instruction was encountered", "illegal_instruction", True),
    Code(716, "cudaErrorMisalignedAddress", "MISALIGNED_ADDRESS", "misaligned address", "misaligned_address", True),
    Code(717, "cudaErrorInvalidAddressSpace", "INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space", "illegal_memory_access", True),
    Code(718, "cudaErrorInvalidPc", "INVALID_PC", "invalid program counter", "illegal_instruction", True),
    Code(719, "cudaErrorLaunchFailure", "LAUNCH_FAILED", "unspecified launch failure", "launch_failure", True),
    Code(720, "cudaErrorCooperativeLaunchTooLarge", "COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch", "out_of_resources", False),
    Code(721, "cudaErrorTensorMemoryLeak", "TENSOR_MEMORY_LEAK", "tensor memory not completely freed", "cuda_error", True),
    Code(800, "cudaErrorNotPermitted", "NOT_PERMITTED", "operation not permitted", "cuda_error", False),
    Code(801, "cudaErrorNotSupported", "NOT_SUPPORTED", "operation not supported", "cuda_error", False),
    Code(802, "cudaErrorSystemNotReady", "SYSTEM_NOT_READY", "system not yet initialized", "cuda_error", None),
    Code(803, "cudaErrorSystemDriverMismatch", "SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination", "cuda_error", False),
    Code(804, "cudaErrorCompatNotSupportedOnDevice", "COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW", "cuda_error", False),
    Code(805, "cudaErrorMpsConnectionFailed", "MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server", "cuda_error", None),
    Code(806, "cudaErrorMpsRpcFailure", "MPS_RPC_FAILURE", "the remote procedural call between the MPS server and the MPS client failed", "cuda_error", None),
    Code(807, "cudaErrorMpsServerNotReady", "MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests", "cuda_error", None),
    Code(808, "cudaErrorMpsMaxClientsReached", "MPS_MAX_CLIENTS_REACHED", "the hardware resources required to create MPS client have been exhausted", "cuda_error", None),
    Code(809, "cudaErrorMpsMaxConnectionsReached", "MPS_MAX_CONNECTIONS_REACHED", "the hardware resources required to support device connections have been exhausted", "cuda_error", None),
    Code(810, "cudaErrorMpsClientTerminated", "MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server", "cuda_error", True),
    Code(811, "cudaErrorCdpNotSupported", "CDP_NOT_SUPPORTED", "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it", "cuda_error", False),
    Code(812, "cudaErrorCdpVersionMismatch", "CDP_VERSION_MISMATCH", "unsupported interaction between different versions of CUDA Dynamic Parallelism", "cuda_error", False),
    Code(900, "cudaErrorStreamCaptureUnsupported", "STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing", "cuda_error", False),
    Code(901, "cudaErrorStreamCaptureInvalidated", "STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture", "cuda_error", False),
    Code(902, "cudaErrorStreamCaptureMerge", "STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences", "cuda_error", False),
    Code(903, "cudaErrorStreamCaptureUnmatched", "STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began", "cuda_error", False),
    Code(904, "cudaErrorStreamCaptureUnjoined", "STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work", "cuda_error", False),
    Code(905, "cudaErrorStreamCaptureIsolation", "STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream", "cuda_error", False),
    Code(906, "cudaErrorStreamCaptureImplicit", "STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream", "cuda_error", False),
    Code(907, "cudaErrorCapturedEvent", "CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream", "cuda_error", False),
    Code(908, "cudaErrorStreamCaptureWrongThread", "STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread", "cuda_error", False),
    Code(909, "cudaErrorTimeout", "TIMEOUT", "wait operation timed out", "cuda_error", None),
    Code(910, "cudaErrorGraphExecUpdateFailure", "GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update", "cuda_error", False),
    Code(911, "cudaErrorExternalDevice", "EXTERNAL_DEVICE", "an async error has occured in external entity outside of CUDA", "cuda_error", True),
    Code(912, "cudaErrorInvalidClusterSize", "INVALID_CLUSTER_SIZE", "a kernel launch error has occurred due to cluster misconfiguration", "cuda_error", False),
    Code(913, "cudaErrorFunctionNotLoaded", "FUNCTION_NOT_LOADED", "the function handle is not loaded when calling an API that requires a loaded function", "cuda_error", False),
    Code(914, "cudaErrorInvalidResourceType", "INVALID_RESOURCE_TYPE", "one or more resources passed in are not valid resource types for the operation", "cuda_error", False),
    Code(915, "cudaErrorInvalidResourceConfiguration", "INVALID_RESOURCE_CONFIGURATION", "one or more resources are insufficient or non-applicable for the operation", "cuda_error", False),
    Code(917, "cudaErrorStreamDetached", "STREAM_DETACHED", "API call not permitted since the green context associated with the stream has been destroyed", "cuda_error", False),
    Code(918, "cudaErrorGraphRecaptureFailure", "GRAPH_RECAPTURE_FAILURE", "recapturing to the source graph failed and had to be terminated", "cuda_error", False),
    Code(919, "cudaErrorFabricNotReady", "FABRIC_NOT_READY", "GPU fabric is not ready within the probe wait budget; application may retry (see CUDA_FABRIC_INIT_TIMEOUT_MS)", "cuda_error", None),
    Code(999, "cudaErrorUnknown", "UNKNOWN", "unknown error", "cuda_error", None),
)
# fmt: on

_NOT_STARTED = frozenset({3, 34, 35, 36, 46, 100, 102, 103, 127, 802, 803, 804, 805, 806, 807})

# Where HIP's name is not CUDA's with another prefix.
_HIP_NAMES = {
    "hipErrorAlreadyMapped": 208,
    "hipErrorContextAlreadyCurrent": 202,
    "hipErrorContextAlreadyInUse": 216,
    "hipErrorDeinitialized": 4,
    "hipErrorECCNotCorrectable": 214,
    "hipErrorInvalidContext": 201,
    "hipErrorInvalidHandle": 400,
    "hipErrorInvalidImage": 200,
    "hipErrorInvalidKernelFile": 218,
    "hipErrorLaunchTimeOut": 702,
    "hipErrorMapFailed": 205,
    "hipErrorNoBinaryForGpu": 209,
    "hipErrorNotFound": 500,
    "hipErrorNotInitialized": 3,
    "hipErrorOutOfMemory": 2,
    "hipErrorUnmapFailed": 206,
}
_HIP_TEXTS = {
    "driver version is insufficient for runtime version": 35,
    "invalid kernel file": 218,
    "no ROCm-capable device is detected": 100,
    "profiler is not initialized": 6,
}
# Texts that the runtime of CUDA 10.0 and earlier had for errors that still exist.
_OLD_TEXTS = {"all CUDA-capable devices are busy or unavailable": 46}

# Numbers before CUDA 10.1 that mean nothing else today; 4, 6, 8 and others have been given away.
_OLD_NUMBERS = {
    38: 100,
    39: 214,
    48: 209,
    59: 710,
    72: 714,
    73: 715,
    74: 716,
    75: 717,
    76: 718,
    77: 700,
}

_BY_CODE = {code.code: code for code in _CODES}
_BY_NAME = (
    {code.name: code for code in _CODES}
    | {f"CUDA_ERROR_{code.driver}": code for code in _CODES if code.driver}
    | {f"hip{code.name.removeprefix('cuda')}": code for code in _CODES}
    | {name: _BY_CODE[number] for name, number in _HIP_NAMES.items() if number in _BY_CODE}
)
# The first code with a text has it: "device kernel image is invalid" is 200 and 300.
_BY_TEXT = {code.text: code for code in reversed(_CODES)} | {
    text: _BY_CODE[number] for text, number in (_HIP_TEXTS | _OLD_TEXTS).items()
}
# Longest first: "unspecified launch failure in prior launch" starts with another error's text.
_TEXT = re.compile("|".join(re.escape(text) for text in sorted(_BY_TEXT, key=len, reverse=True)))


def by_code(code: int) -> Code | None:
    """Return the error with this number (as of CUDA 10.1; before, an assert was 59), or None."""
    return _BY_CODE.get(code)


def by_old_number(number: int) -> Code | None:
    """Return the error that had this number before CUDA 10.1, if nothing has it today."""
    return _BY_CODE.get(_OLD_NUMBERS.get(number, 0))


def by_name(name: str) -> Code | None:
    """Return the error with this name: ``cudaError...``, ``CUDA_ERROR_...`` or ``hipError...``."""
    return _BY_NAME.get(name)


def by_text(text: str) -> tuple[Code, int] | None:
    """Return the error whose text ``text`` starts with, and the text's length; or None."""
    match = _TEXT.match(text)
    return (_BY_TEXT[match[0]], match.end()) if match else None


def is_start(code: int) -> bool:
    """Whether the error says that CUDA did not start: there is no context that could be dead."""
    return code in _NOT_STARTED
