"""Read CUDA errors out of exception messages and log lines.

An error is decided by its own words at the right place, never by hint lines: before torch 2.13
*every* CUDA error carried a line about device-side assertions. The words may follow anything but a
person's sentence, and must end the statement, since anybody may quote them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cudassert_ipy.decode import codes, statement

if TYPE_CHECKING:
    from cudassert_ipy.model import Kind, Platform

MAX_MESSAGE = 500

_RUNTIME = re.compile(
    r"(?:(?P<platform>CUDA|HIP|XPU|[Cc]uda) (?:driver |runtime )?(?P<error>[Ee]rror|warning)"
    r"(?: \d{1,9}(?: at \S{1,200})?| ?\(\S{1,200}\)"  # ggml, Warp; PaddlePaddle, FlashAttention
    r"| in (?:file )?'?\S{1,200}'?,? (?:in |at )?line \d{1,9} )?[:,] ?"  # CUDPP
    r"|CUDA: "  # DGL, MXNet
    r"|cuda runtime error \((?P<number>\d{1,9})\) ?: ?"  # torch <= 1.9; the number is of its CUDA
    r"|THCudaCheck FAIL .{0,300}?error=(?P<check>\d{1,9}) ?: ?"
    r"|Triton Error \[(?:CUDA|HIP)\]: (?: ?Code: \d{1,9}, Mess+age: )?"
    # NCCL; ONNX Runtime
    r"|(?:CUDA|[Cc]uda) failure (?:\d{1,9} ?:? ?|\S{1,200}:\d{1,9}: )?(?:'|(?<=: ))"
    r"|cu[A-Z]\w{2,60} failed: "  # PyCUDA
    r"|Cuda (?:Runtime|Driver) \("  # TensorRT
    r"|\b\w{2,40}:? failed (?:to synchronize|on \d\w\w step): |parallel_for failed: "  # thrust
    r"|(?:cuda\w{1,40}\(\)|cuda) failed with error:? (?:\d{1,9} )?"  # tiny-cuda-nn, spconv
    r"|GPUassert: |(?:cudaCheckError\(\)|CUDA kernel) failed ?: |\berror in \w{1,80}: "
    r"|\bError (?=[\w /-]{5,80} at line \d{1,9} in file )"  # bitsandbytes
    r"|Program hit \w{1,80} \(error \d{1,9}\) due to \")(?P<text>.*)"  # compute-sanitizer
)
# What glog and its kin print of a failed comparison.
_CHECK = re.compile(
    r"cudaSuccess(?: == \w{1,40})? \(\d{1,9} vs\. \d{1,9}\) .{0,200}?"
    r"(?:ErrStr: ?|Error: )(?P<mxnet>.*)"
    r"|cudaSuccess \(\d{1,9} vs\. \d{1,9}\)\s+(?P<caffe>.*)"
    r"|cudaSuccess\. \d{1,9} vs 0\. Error at: \S{1,200}: (?P<caffe2>.*)"
)
_HELPER = re.compile(
    r"CUDA error at \S{1,200}:\d{1,9} code=(?P<code>\d{1,9})\(\w+\)"
)  # CUDA's samples
_NAMED = re.compile(r"(?P<name>(?:cuda|hip)Error[A-Za-z]{1,60})(?:: ?| )(?P<text>.*)")
_DRIVER = re.compile(
    r"(?:\[[\w. ]{1,60}\] Call to \w+ results in )?"  # Numba
    r"(?P<name>CUDA_ERROR_[A-Z_]{3,60})(?P<rest>.*)"
)
_NUMBA = re.compile(r"\[(?P<code>\d{1,9})\] Call to \w+ results in UNKNOWN_CUDA_ERROR")
_NUMBERED = re.compile(r"(?P<text>[A-Za-z][\w/() -]{3,80}) \((?P<code>\d{1,4})\)\s*$")
_STARTING = re.compile(r"Error (?P<code>\d{1,3}): (?P<text>.*)")  # torch's first look for devices
_BARE_ASSERT = re.compile(r"device-side assert triggered")
_OUT_OF_MEMORY = re.compile(
    r"(?P<platform>CUDA|HIP|XPU) out of memory"
    r"|Out of memory (?:allocating|while trying to allocate) [\d,]+"  # CuPy; JAX
)
_FORKED = re.compile(r"Cannot re-initialize (?P<platform>CUDA|XPU) in forked subprocess")
_OUT_OF_RESOURCES = re.compile(r"out of resource: ")
_UNKNOWN = re.compile(r"CUDA unknown error")
_NVRTC = re.compile(r"nvrtc: error: (?P<what>.*)|NVRTC_ERROR_(?!SUCCESS)[A-Z_]+|NVRTC [Ee]rror")
_SYCL = re.compile(r"(?:UR_RESULT|PI)_ERROR_(?P<what>[A-Z_]+)")
_ROCR = re.compile(
    r"(?P<fault>Memory access fault by GPU node|HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION"
    r"|HSA_STATUS_ERROR_MEMORY_FAULT)|HSA_STATUS_ERROR_EXCEPTION|HW Exception by GPU node"
)
_STATUS_NAME = (
    r"(?:(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER|CURAND|CUTENSOR|HIP[A-Z]{3,8}|MIOPEN|ROC[A-Z]{3,8})"
    r"_STATUS_(?!SUCCESS)[A-Z_]+|CUFFT_(?!SUCCESS)[A-Z_]+"
    r"|miopenStatus(?!Success)\w+|rocblas_status_(?!success)\w+)"
)
_STATUS = re.compile(_STATUS_NAME)
_LIBRARY = re.compile(
    rf"(?:(?:CUDA|HIP) error: )?(?:{_STATUS_NAME}"
    r"|(?:cuDNN|CuDNN|cuSPARSE|cusparse|cuSOLVER|cusolver|cuFFT|cuRAND|MIOpen|miopen) [Ee]rror"
    r"|cublas runtime error|(?:CUBLAS|CUDNN|CUFFT|CUSPARSE|CUSOLVER) failure \d"
    r"|NCCL [Ee]rror|nccl(?:UnhandledCuda|Internal|System)Error|unhandled cuda error"
    r"|Creating MTGP constants failed)"  # cuRAND in torch <= 1.5
)
_AMD = re.compile(r"HIP|MI[Oo]|mio|ROC|roc")
# A process that ends with these had a CUDA error, whose words are elsewhere or lost.
_WITHOUT_WORDS = re.compile(
    r"terminate called after throwing an instance of 'c10::(?:CUDA|Accelerator)Error'"
    r"|Exception raised from c10_(?:cuda|hip)_check_implementation"
)
_NCCL_CAUSE = re.compile(r"(?:CUDA|[Cc]uda) failure ")
_NCCL_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout")
_SHUTTING_DOWN = 4


class ErrorText(NamedTuple):
    """One CUDA error as a text tells it."""

    kind: Kind
    code: int | None
    sticky: bool | None
    platform: Platform
    message: str
    child: bool = False
    """Whether it happened in a child process of the one that reports it."""
    weak: bool = False
    """Whether it counts only in a text that tells of nothing else."""


def cut(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return ``text`` with at most ``limit`` characters, cut between words, which then shows."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 2]
    return (kept.rpartition(" ")[0] if " " in kept[limit // 2 :] else kept).rstrip() + " …"


def shown_cause(library: ErrorText, error: ErrorText) -> bool:
    """Whether ``error`` is what NCCL, whose own error was ``library``, names as its cause."""
    return (
        library.kind == "library_error"
        and error.kind != "library_error"
        and _NCCL_CAUSE.match(error.message) is not None
    )


def read_message(text: str) -> ErrorText | None:
    """Return the CUDA error that an exception's message is, or brings at its end; or None."""
    for _, pattern, make in (*_READERS, ((), _NUMBERED, _numbered)):
        match = pattern.match(text)
        error = make(match) if match else None
        if error is not None:
            return error
    error = _search(text)
    return error._replace(message=cut(text)) if error else None


def read_log_line(line: str) -> ErrorText | None:
    """Return the first CUDA error that a line of a log tells of, or None."""
    if statement.is_writing(line):
        return None
    error = _search(line)
    if error and error.code == _SHUTTING_DOWN and "Watchdog caught" in line:
        return None  # NCCL's watchdog meets it whenever a process ends
    return error


def ends_without_words(line: str) -> ErrorText | None:
    """Return an error of which the line shows only that it was one of CUDA; or None."""
    match = None if statement.is_writing(line) else _WITHOUT_WORDS.search(line)
    return _error("cuda_error", match) if match else None


def _search(text: str) -> ErrorText | None:
    found: list[tuple[int, ErrorText]] = []
    for needles, pattern, make in _READERS:
        match = pattern.search(text) if any(needle in text for needle in needles) else None
        if match is None:
            continue
        if statement.is_quoted(text, match.start(), unmistakable=pattern in _UNMISTAKABLE):
            continue
        error = make(match)
        if error is not None:
            found.append((match.start(), error))
    if found:
        return min(found, key=lambda item: item[0])[1]
    timeout = _NCCL_TIMEOUT.search(text) if "Watchdog caught" in text else None
    return _error("library_error", timeout)._replace(weak=True) if timeout else None


def _runtime(match: re.Match[str]) -> ErrorText | None:
    text = match["text"]
    introduction = match.string[match.start() : match.start("text")]
    platform = _platform(match["platform"] or ("HIP" if "HIP" in introduction else "CUDA"))
    library = _LIBRARY.match(text)
    if library:
        amd = platform == "hip" or _AMD.search(library[0])
        return _error("library_error", match, platform="hip" if amd else "cuda")
    if _NVRTC.match(text):
        return _nvrtc(match)
    named = codes.by_text(text)
    if named is not None:
        code, length = named
        return (
            _coded(code, match, platform)
            if statement.ends(match, match.start("text") + length)
            else None
        )
    by_name = _DRIVER.search(text)  # "Could not synchronize CUDA stream: CUDA_ERROR_ASSERT: ..."
    if by_name:
        return _driver(by_name)
    number = match["number"] or match["check"]
    if number:
        old = codes.by_old_number(int(number)) or (
            codes.by_code(int(number)) if int(number) >= _FIRST_UNAMBIGUOUS else None
        )
        return _coded(old, match, platform) if old else _error("cuda_error", match)
    # A text that the table does not have: its platform word and "error" in front are enough.
    if match["platform"] in ("CUDA", "HIP", "XPU") and match["error"] == "error":
        return _error("cuda_error", match, platform=platform)
    return None


_FIRST_UNAMBIGUOUS = 200  # numbers from here on mean in CUDA before 10.1 nothing at all


def _named(match: re.Match[str]) -> ErrorText | None:
    code = codes.by_name(match["name"])
    if match["name"] == "hipErrorNoBinaryForGpu" and match["text"].startswith("Unable to find"):
        return _error("no_kernel_image", match, code=209, sticky=False, platform="hip")
    if code is None or not match["text"].startswith(code.text):
        return None
    if not statement.ends(match, match.start("text") + len(code.text)):
        return None
    return _coded(code, match, "hip" if match["name"].startswith("hip") else "cuda")


def _driver(match: re.Match[str]) -> ErrorText | None:
    code = codes.by_name(match["name"])
    if code is None:
        return None
    if not match["rest"].lstrip().startswith(":") and not statement.ends(
        match, match.start("rest")
    ):
        return None
    return _coded(code, match, "cuda")


def _check(match: re.Match[str]) -> ErrorText | None:
    named = codes.by_text(match["mxnet"] or match["caffe"] or match["caffe2"] or "")
    return _coded(named[0], match, "cuda") if named else None


def _numba(match: re.Match[str]) -> ErrorText | None:
    code = codes.by_code(int(match["code"]))
    return _coded(code, match, "cuda") if code else _error("cuda_error", match)


def _numbered(match: re.Match[str]) -> ErrorText | None:
    """``torch.cuda.CudaError: device-side assert triggered (710)``; ``Error 804: forward ...``."""
    named = codes.by_text(match["text"])
    same = named is not None and str(named[0].code) == match["code"]
    return _coded(named[0], match, "cuda") if named and same else None


def _bare_assert(match: re.Match[str]) -> ErrorText | None:
    in_front = match.string[: match.start()].rstrip()
    if in_front.endswith(("CUDA error:", "HIP error:")):
        return None  # read as a whole, and refused
    if not statement.ends(match, match.end()) or (in_front and in_front[-1] not in ":]|│"):
        return None
    named = codes.by_text(match[0])
    return _coded(named[0], match, "cuda") if named else None


def _out_of_memory(match: re.Match[str]) -> ErrorText:
    return _error("out_of_memory", match, sticky=False, platform=_platform(match["platform"]))


def _forked(match: re.Match[str]) -> ErrorText:
    return _error("fork_after_init", match, sticky=False, platform=_platform(match["platform"]))


def _out_of_resources(match: re.Match[str]) -> ErrorText:
    return _error("out_of_resources", match, sticky=False)


def _unknown(match: re.Match[str]) -> ErrorText:
    return _error("cuda_error", match, code=999)


def _nvrtc(match: re.Match[str]) -> ErrorText:
    """Compiling at run time happens on the host: the device knows nothing of it."""
    architecture = "architecture" in match.string[match.start() :]
    return _error("no_kernel_image" if architecture else "cuda_error", match, sticky=False)


def _sycl(match: re.Match[str]) -> ErrorText:
    what = match["what"]
    if "MEMORY" in what or what == "MEM_OBJECT_ALLOCATION_FAILURE":
        return _error("out_of_memory", match, sticky=False, platform="xpu")
    if what == "DEVICE_LOST":
        return _error("launch_failure", match, sticky=True, platform="xpu")
    return _error("cuda_error", match, platform="xpu")


def _rocr(match: re.Match[str]) -> ErrorText:
    """ROCm's runtime ends the process when it prints these."""
    kind: Kind = "illegal_memory_access" if match["fault"] else "launch_failure"
    return _error(kind, match, sticky=True, platform="hip")


def _library(match: re.Match[str]) -> ErrorText | None:
    if "Warning" in match.string[: match.start()]:
        return None  # cuDNN: a plan was not supported, and torch took the next one
    amd = _AMD.search(match[0])
    return _error("library_error", match, platform="hip" if amd else "cuda")


# Each behind strings of which a text has to have one, since most texts have none of most.
_READERS = (
    (("rror", "ailure", "failed", "CUDA: ", "arning", "Cuda ", "assert"), _RUNTIME, _runtime),
    (("Error",), _NAMED, _named),
    (("CUDA_ERROR_",), _DRIVER, _driver),
    (("UNKNOWN_CUDA_ERROR",), _NUMBA, _numba),
    (("cudaSuccess",), _CHECK, _check),
    (("code=",), _HELPER, _numba),
    (("_STATUS_", "CUFFT_", "miopenStatus", "rocblas_status_"), _STATUS, _library),
    (("device-side",), _BARE_ASSERT, _bare_assert),
    (("ut of memory",), _OUT_OF_MEMORY, _out_of_memory),
    (("forked",), _FORKED, _forked),
    (("out of resource",), _OUT_OF_RESOURCES, _out_of_resources),
    (("unknown error",), _UNKNOWN, _unknown),
    (("_ERROR_",), _SYCL, _sycl),
    (("GPU node", "HSA_"), _ROCR, _rocr),
    (("rror", "ailure", "failed", "_STATUS_", "CUFFT_", "miopen", "rocblas"), _LIBRARY, _library),
    (("nvrtc", "NVRTC"), _NVRTC, _nvrtc),
    (("Error ",), _STARTING, _numbered),
)
# No person writes these, and what stands in front of them may be anything.
_UNMISTAKABLE = frozenset(
    {_NAMED, _DRIVER, _NUMBA, _CHECK, _HELPER, _STATUS, _SYCL, _ROCR, _STARTING}
)


def _platform(name: str | None) -> Platform:
    platforms: dict[str | None, Platform] = {"HIP": "hip", "XPU": "xpu"}
    return platforms.get(name, "cuda")


def _error(
    kind: Kind,
    match: re.Match[str],
    *,
    code: int | None = None,
    sticky: bool | None = None,
    platform: Platform = "cuda",
) -> ErrorText:
    message = match.string[match.start() :].split("\\n", 1)[0].strip()
    return ErrorText(kind, code, sticky, platform, cut(message))


def _coded(code: codes.Code, match: re.Match[str], platform: Platform) -> ErrorText:
    return _error(code.kind, match, code=code.code, sticky=code.sticky, platform=platform)
