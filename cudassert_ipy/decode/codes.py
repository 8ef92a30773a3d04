"""CUDA error codes: their names, texts, what kind of failure they are, and whether they are sticky.

Sticky means that the CUDA context, and with it the process's use of the device, is lost. Source:
``driver_types.h`` of nvidia-cuda-runtime 12.9.79 and 13.5.37, whose comments say of these codes
"the process must be terminated and relaunched"; texts are those of ``cudaGetErrorString``. HIP uses
the same numbers and texts for the codes listed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cudassert_ipy.model import Kind


class Code(NamedTuple):
    """One CUDA runtime error; ``sticky`` is None where the header does not say."""

    code: int
    name: str
    text: str
    kind: Kind
    sticky: bool | None


_CODES = (
    Code(1, "cudaErrorInvalidValue", "invalid argument", "cuda_error", False),
    Code(2, "cudaErrorMemoryAllocation", "out of memory", "out_of_memory", False),
    Code(3, "cudaErrorInitializationError", "initialization error", "cuda_error", None),
    Code(4, "cudaErrorCudartUnloading", "driver shutting down", "cuda_error", None),
    Code(
        9,
        "cudaErrorInvalidConfiguration",
        "invalid configuration argument",
        "cuda_error",
        False,
    ),
    Code(
        35,
        "cudaErrorInsufficientDriver",
        "CUDA driver version is insufficient for CUDA runtime version",
        "cuda_error",
        False,
    ),
    Code(
        46,
        "cudaErrorDevicesUnavailable",
        "CUDA-capable device(s) is/are busy or unavailable",
        "cuda_error",
        None,
    ),
    Code(
        98,
        "cudaErrorInvalidDeviceFunction",
        "invalid device function",
        "no_kernel_image",
        False,
    ),
    Code(100, "cudaErrorNoDevice", "no CUDA-capable device is detected", "cuda_error", False),
    Code(101, "cudaErrorInvalidDevice", "invalid device ordinal", "cuda_error", False),
    Code(
        200,
        "cudaErrorInvalidKernelImage",
        "device kernel image is invalid",
        "no_kernel_image",
        False,
    ),
    Code(201, "cudaErrorDeviceUninitialized", "invalid device context", "cuda_error", None),
    Code(
        209,
        "cudaErrorNoKernelImageForDevice",
        "no kernel image is available for execution on the device",
        "no_kernel_image",
        False,
    ),
    Code(
        214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered", "ecc_error", None
    ),
    Code(
        220,
        "cudaErrorNvlinkUncorrectable",
        "uncorrectable NVLink error detected during the execution",
        "hardware_error",
        None,
    ),
    Code(
        222,
        "cudaErrorUnsupportedPtxVersion",
        "the provided PTX was compiled with an unsupported toolchain.",
        "no_kernel_image",
        False,
    ),
    Code(
        226,
        "cudaErrorContained",
        "Invalid access of peer GPU memory over nvlink or a hardware error",
        "hardware_error",
        True,
    ),
    Code(400, "cudaErrorInvalidResourceHandle", "invalid resource handle", "cuda_error", False),
    Code(
        700,
        "cudaErrorIllegalAddress",
        "an illegal memory access was encountered",
        "illegal_memory_access",
        True,
    ),
    Code(
        701,
        "cudaErrorLaunchOutOfResources",
        "too many resources requested for launch",
        "out_of_resources",
        False,
    ),
    Code(
        702,
        "cudaErrorLaunchTimeout",
        "the launch timed out and was terminated",
        "launch_timeout",
        True,
    ),
    Code(
        704,
        "cudaErrorPeerAccessAlreadyEnabled",
        "peer access is already enabled",
        "cuda_error",
        False,
    ),
    Code(
        705,
        "cudaErrorPeerAccessNotEnabled",
        "peer access has not been enabled",
        "cuda_error",
        False,
    ),
    Code(710, "cudaErrorAssert", "device-side assert triggered", "device_assert", True),
    Code(714, "cudaErrorHardwareStackError", "hardware stack error", "hardware_error", True),
    Code(
        715,
        "cudaErrorIllegalInstruction",
        "an illegal instruction was encountered",
        "illegal_instruction",
        True,
    ),
    Code(716, "cudaErrorMisalignedAddress", "misaligned address", "misaligned_address", True),
    Code(
        717,
        "cudaErrorInvalidAddressSpace",
        "operation not supported on global/shared address space",
        "illegal_memory_access",
        True,
    ),
    Code(718, "cudaErrorInvalidPc", "invalid program counter", "illegal_instruction", True),
    Code(719, "cudaErrorLaunchFailure", "unspecified launch failure", "launch_failure", True),
    Code(
        720,
        "cudaErrorCooperativeLaunchTooLarge",
        "too many blocks in cooperative launch",
        "out_of_resources",
        False,
    ),
    Code(
        721, "cudaErrorTensorMemoryLeak", "tensor memory not completely freed", "cuda_error", True
    ),
    Code(801, "cudaErrorNotSupported", "operation not supported", "cuda_error", False),
    Code(
        810,
        "cudaErrorMpsClientTerminated",
        "the MPS client has been terminated by the server",
        "cuda_error",
        True,
    ),
    Code(
        900,
        "cudaErrorStreamCaptureUnsupported",
        "operation not permitted when stream is capturing",
        "cuda_error",
        False,
    ),
    Code(
        901,
        "cudaErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture",
        "cuda_error",
        False,
    ),
    Code(911, "cudaErrorExternalDevice", "error on external device", "cuda_error", True),
    Code(999, "cudaErrorUnknown", "unknown error", "cuda_error", None),
)

_DRIVER_NAMES = {
    "CUDA_ERROR_OUT_OF_MEMORY": 2,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": 209,
    "CUDA_ERROR_ECC_UNCORRECTABLE": 214,
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": 701,
    "CUDA_ERROR_LAUNCH_TIMEOUT": 702,
    "CUDA_ERROR_ASSERT": 710,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": 714,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": 715,
    "CUDA_ERROR_MISALIGNED_ADDRESS": 716,
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": 717,
    "CUDA_ERROR_INVALID_PC": 718,
    "CUDA_ERROR_LAUNCH_FAILED": 719,
    "CUDA_ERROR_UNKNOWN": 999,
}

_BY_CODE = {code.code: code for code in _CODES}
_BY_NAME = {code.name: code for code in _CODES} | {
    name: _BY_CODE[number] for name, number in _DRIVER_NAMES.items()
}
# Longest first: "unknown error" must not hide behind a shorter text that it starts with.
_BY_TEXT = sorted(_CODES, key=lambda code: -len(code.text))


def by_code(code: int) -> Code | None:
    """Return the error with this number (as of CUDA 10.1; before, an assert was 59), or None."""
    return _BY_CODE.get(code)


def by_name(name: str) -> Code | None:
    """Return the error with this runtime (``cudaError...``) or driver (``CUDA_ERROR_...``) name."""
    return _BY_NAME.get(name)


def by_text(text: str) -> Code | None:
    """Return the error whose ``cudaGetErrorString`` text ``text`` starts with, or None."""
    return next((code for code in _BY_TEXT if text.startswith(code.text)), None)
