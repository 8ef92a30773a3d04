"""Read CUDA errors out of exception messages and log lines.

An error is decided by its own words at the right place, never by hint lines: before torch 2.13
*every* CUDA error carried a line about device-side assertions. In an exception's message the words
must come first, since anybody may quote them; in a log they may follow anything, but must end the
statement.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cudassert_ipy.decode import codes

if TYPE_CHECKING:
    from cudassert_ipy.model import Kind, Platform

MAX_MESSAGE = 500

_RUNTIME = re.compile(
    r"(?:(?P<platform>CUDA|HIP) (?:driver |runtime )?(?:error|warning)(?: \d+ at [^:]{1,200})?: "
    r"|CUDA: "
    r"|cuda runtime error \(\d+\) ?: ?"  # torch <= 1.4; the number is that of its CUDA version
    r"|Triton Error \[(?:CUDA|HIP)\]: "
    r"|Cuda failure (?:\d+ )?'"  # NCCL
    r"|cudaError[A-Za-z]{1,60}: "  # thrust, CuPy
    r"|THCudaCheck FAIL .{0,300}error=\d+ ?: ?)(?P<text>.*)"
)
# What may follow the words of an error where they are not part of somebody's sentence.
_END_OF_STATEMENT = re.compile(r"""\s*(?:$|[.!]?\s*$|['"`>)|│]|\\n|at\s*(?:$|[./\w])|\(\w|[-;] )""")
_DRIVER = re.compile(r"(?:\[\d+\] )?(?:Call to \w+ results in )?(?P<name>CUDA_ERROR_[A-Z_]+)")
_NUMBERED = re.compile(r"(?P<text>[a-z][\w/() -]{3,80}) \((?P<code>\d{1,4})\)\s*$")
_BARE_ASSERT = re.compile(r"device-side assert triggered")
_OUT_OF_MEMORY = re.compile(r"(?P<platform>CUDA|HIP|XPU) out of memory")
_FORKED = re.compile(r"Cannot re-initialize CUDA in forked subprocess")
_OUT_OF_RESOURCES = re.compile(r"out of resource: ")
_UNKNOWN = re.compile(r"CUDA unknown error")
# What thrust puts in front: "copy_if failed to synchronize: cudaErrorAssert: ...".
_THRUST = re.compile(r"[\w:<> ]{1,80}: (?=cudaError)")
_LIBRARY = re.compile(
    r"(?:(?:CUDA|HIP) error: )?"
    r"(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER|CUFFT|HIPBLAS|MIOPEN|ROCBLAS)_STATUS_(?!SUCCESS)[A-Z_]+"
    r"|(?:cuDNN|cuSPARSE|cusparse|cuSOLVER|cusolver|cuFFT|MIOpen|miopen) [Ee]rror"
    r"|cublas runtime error|NCCL [Ee]rror|nccl(?:Unhandled|Internal|System)\w*Error"
)
_EXCEPTION = re.compile(
    r"(?:\[?rank ?\d+\]?:? ?|\d+: )?"
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|OutOfResources|Raised|Remote))"
    r"\s*: ?(?P<message>.*)"
)
_TRACEBACK_FILE = re.compile(r'\s*File ".*", line \d+')
_NUMBERED_SOURCE = re.compile(r"\s*(?:-+> ?)?\d+ ")
_CHILD = re.compile(
    r"ProcessRaisedException|ProcessExitedException|ChildFailedError|Remote(?:Error|Traceback)"
    r"|in DataLoader worker process|-- Process \d+ terminated with the following error"
)
_NOT_BLOCKING = "CUDA kernel errors might be asynchronously reported"
_DSA_HINT = "TORCH_USE_CUDA_DSA"
_CANDIDATE = re.compile(
    rb"CU|[Cc]u[dD]|[Cc]u[bsfF]|HIP|MIO|miopen|[Nn][Cc][Cc][Ll]|Triton|device-side|out of |ROCBLAS"
    rb"|Error|Exception|rocess|Remote|File \""
)


class ErrorText(NamedTuple):
    """One CUDA error as a text tells it."""

    kind: Kind
    code: int | None
    sticky: bool | None
    platform: Platform
    message: str


def read_message(text: str) -> ErrorText | None:
    """Return the CUDA error that an exception's message starts with, or None."""
    in_front = _THRUST.match(text)
    error = _read(text[in_front.end() :] if in_front else text, anchored=True)
    return error._replace(message=text[:MAX_MESSAGE]) if error and in_front else error


def _read(text: str, *, anchored: bool) -> ErrorText | None:
    """Return the first error that ``text`` tells of, at its start or anywhere."""
    found = []
    for pattern, make in _READERS_OF_MESSAGES if anchored else _READERS:
        match = pattern.match(text) if anchored else pattern.search(text)
        if match:
            error = make(match)
            if error is not None:
                found.append((match.start(), error))
    return min(found, key=lambda item: item[0])[1] if found else None


def _runtime(match: re.Match[str]) -> ErrorText | None:
    text = match["text"]
    introduction = match.string[match.start() : match.start("text")]
    platform: Platform = "hip" if "HIP" in introduction else "cuda"
    if _LIBRARY.match(text):
        return _error("library_error", match, platform=platform)
    code = codes.by_text(text)
    if code is not None:
        if _END_OF_STATEMENT.match(text[len(code.text) :]):
            return _coded(code, match, platform)
        return None
    # A text that the table does not have: its platform word and "error" in front are enough.
    if match["platform"] and "error" in introduction:
        return _error("cuda_error", match, platform=platform)
    return None


def _driver(match: re.Match[str]) -> ErrorText | None:
    code = codes.by_name(match["name"])
    return _coded(code, match, "cuda") if code else None


def _numbered(match: re.Match[str]) -> ErrorText | None:
    """``torch.cuda.CudaError: device-side assert triggered (710)``."""
    code = codes.by_text(match["text"])
    return _coded(code, match, "cuda") if code and str(code.code) == match["code"] else None


def _bare_assert(match: re.Match[str]) -> ErrorText | None:
    rest = match.string[match.end() :]
    in_front = match.string[: match.start()].rstrip()
    if not _END_OF_STATEMENT.match(rest) or (in_front and in_front[-1] not in ":]|│"):
        return None
    code = codes.by_text(match[0])
    return _coded(code, match, "cuda") if code else None


def _out_of_memory(match: re.Match[str]) -> ErrorText:
    platforms: dict[str, Platform] = {"CUDA": "cuda", "HIP": "hip", "XPU": "xpu"}
    platform = platforms[match["platform"]]
    return _error("out_of_memory", match, sticky=False, platform=platform)


def _forked(match: re.Match[str]) -> ErrorText:
    return _error("fork_after_init", match, sticky=False)


def _out_of_resources(match: re.Match[str]) -> ErrorText:
    return _error("out_of_resources", match, sticky=False)


def _unknown(match: re.Match[str]) -> ErrorText:
    return _error("cuda_error", match, code=999)


def _library(match: re.Match[str]) -> ErrorText:
    return _error("library_error", match)


_READERS = (
    (_RUNTIME, _runtime),
    (_DRIVER, _driver),
    (_BARE_ASSERT, _bare_assert),
    (_OUT_OF_MEMORY, _out_of_memory),
    (_FORKED, _forked),
    (_OUT_OF_RESOURCES, _out_of_resources),
    (_UNKNOWN, _unknown),
    (_LIBRARY, _library),
)
_READERS_OF_MESSAGES = (*_READERS, (_NUMBERED, _numbered))


def _error(
    kind: Kind,
    match: re.Match[str],
    *,
    code: int | None = None,
    sticky: bool | None = None,
    platform: Platform = "cuda",
) -> ErrorText:
    message = match.string[match.start() :].split("\\n", 1)[0].strip()
    return ErrorText(kind, code, sticky, platform, message[:MAX_MESSAGE])


def _coded(code: codes.Code, match: re.Match[str], platform: Platform) -> ErrorText:
    return _error(code.kind, match, code=code.code, sticky=code.sticky, platform=platform)


class ErrorScanner:
    """Reads lines of a log in order and remembers what they tell of CUDA errors."""

    def __init__(self) -> None:
        self.not_blocking = False
        """Whether torch's hint about asynchronous errors was seen: launches were not blocking."""
        self.mentions_dsa = False
        self.child = False
        """Whether the error came out of a child process."""
        self.last_exception = ""
        self._first: ErrorText | None = None
        self._first_sticky: ErrorText | None = None
        self._source_follows = False

    @property
    def error(self) -> ErrorText | None:
        """The first sticky error, since later ones follow from it; else the first error."""
        return self._first_sticky or self._first

    def read_line(self, raw: bytes) -> None:
        """Take one line, cleaned by :class:`~cudassert_ipy.decode.lines.LineSplitter`."""
        is_source, self._source_follows = self._source_follows, False
        if not _CANDIDATE.search(raw):
            return
        line = raw.decode("utf-8", "replace")
        if _TRACEBACK_FILE.match(line):
            self._source_follows = True
            return
        if is_source or _NUMBERED_SOURCE.match(line):
            return
        self.not_blocking = self.not_blocking or _NOT_BLOCKING in line
        self.mentions_dsa = self.mentions_dsa or _DSA_HINT in line
        self.child = self.child or _CHILD.search(line) is not None
        exception = _EXCEPTION.match(line)
        if exception:
            self.last_exception = exception[0].strip()[:MAX_MESSAGE]
            error = read_message(exception["message"])
        else:
            error = _read(line, anchored=False)
        if error is not None:
            self._first = self._first or error
            if error.sticky and self._first_sticky is None:
                self._first_sticky = error
