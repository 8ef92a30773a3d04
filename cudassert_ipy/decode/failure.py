"""From a text or an exception to a :class:`~cudassert_ipy.model.Failure`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cudassert_ipy.decode import codes
from cudassert_ipy.decode.advice import advice
from cudassert_ipy.decode.assertions import AssertionParser
from cudassert_ipy.decode.error_text import ErrorText, cut, read_message, shown_cause
from cudassert_ipy.decode.exceptions import (
    chain,
    class_name,
    class_names,
    error_code,
    own_text,
    strings,
)
from cudassert_ipy.decode.host_report import HOST_REPORT
from cudassert_ipy.decode.lines import LineSplitter
from cudassert_ipy.decode.scanner import ErrorScanner
from cudassert_ipy.model import Failure

if TYPE_CHECKING:
    from cudassert_ipy.decode.situation import Situation
    from cudassert_ipy.model import Assertion, Context, Platform

_MAX_TEXT = 200_000
_MAX_SUSPECT_TEXT = 8_000
_MAX_OTHER = 100
_WORDS = (
    "CUDA",
    "cuda",
    "device-side",
    "illegal memory access",
    "launch failure",
    "HIP ",
    "XPU ",
    "CUDNN",
    "cuDNN",
    "cublas",
    "NCCL",
    "nccl",
    "out of resource",
    "_STATUS_",
    "_RESULT_ERROR_",
    "miopen",
    "MIOpen",
    "cuFFT",
    "Cuda ",
    "Native API",
    "MTGP",
    "nvrtc",
)
_FROM_CHILDREN = frozenset(
    {
        "ChildFailedError",  # torchrun
        "RayTaskError",
        "ProcessRaisedException",  # torch.multiprocessing
        "RemoteError",  # ipyparallel
        "RemoteTraceback",  # multiprocessing.Pool: cause of the exception that it brings
        "_RemoteTraceback",  # concurrent.futures: the same
    }
)
_CHILD_ENDED = frozenset(
    {
        "BrokenProcessPool",  # concurrent.futures
        "ProcessExitedException",  # torch.multiprocessing
        "TerminatedWorkerError",  # joblib
    }
)
_CLASSES = (
    frozenset({"AcceleratorError", "OutOfMemoryError", "CudaError"}) | _FROM_CHILDREN | _CHILD_ENDED
)


class TextDecoder:
    """Decodes a stream of bytes; any chunking gives the same failure, and memory stays bounded."""

    def __init__(self, *, notebook: bool = False) -> None:
        """Begin a text; ``notebook``: it is the output of a notebook's cells."""
        self._splitter = LineSplitter()
        self._assertions = AssertionParser()
        self._errors = ErrorScanner()
        self._notebook = notebook
        self._before_error: frozenset[str] = frozenset()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the text."""
        for line in self._splitter.feed(data, self._assertions.skip_repeats):
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        if self._assertions.read_line(line):
            return
        raised = self._errors.sticky_was_raised
        self._errors.read_line(line)
        if not raised and self._errors.sticky_was_raised:
            self._before_error = self._assertions.expressions

    def close(self) -> Failure:
        """Return what the whole text tells."""
        for line in self._splitter.close():
            self._read_line(line)
        scanner = self._errors
        assertions = self._assertions.close(scanner.error)
        situation = scanner.situation
        rank = scanner.rank_of_sticky
        if rank is not None and all(item.rank is None for item in assertions):
            assertions = tuple(dataclasses.replace(item, rank=rank) for item in assertions)
        situation = situation._replace(
            notebook=situation.notebook or self._notebook,
            distributed=situation.distributed or any(item.rank is not None for item in assertions),
            windows=situation.windows or any("\\" in item.file for item in assertions),
            other=situation.other or self._other_assertion(assertions),
        )
        return _failure(
            scanner.error,
            assertions,
            assertions_platform=self._assertions.platform,
            child=scanner.error is not None and scanner.error.child,
            otherwise=scanner.last_exception,
            situation=situation,
        )

    def _other_assertion(self, assertions: tuple[Assertion, ...]) -> str:
        """Return the first check that failed after the error was raised; a dead device runs none.

        Only where another had failed before: a log may bring stderr after the traceback.
        """
        before = self._before_error
        late = (item for item in assertions if before and item.expression not in before)
        return next((cut(item.expression, _MAX_OTHER) for item in late), "")


def decode_text(data: bytes | str) -> Failure:
    """Return the failure that a log, traceback or captured stderr tells of.

    Kind ``not_cuda`` if it tells of none. Never raises for any content.
    """
    decoder = TextDecoder()
    decoder.feed(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    return decoder.close()


def explain(text: str | bytes) -> Failure:
    """Return what went wrong according to ``text``: a traceback, a log or pasted stderr.

    Raises ``TypeError`` for anything but text; an exception, for one, is no text.
    """
    if not isinstance(text, str | bytes | bytearray):
        msg = f"explain() takes str or bytes, not {type(text).__name__}"
        raise TypeError(msg)
    return decode_text(text)


def decode_exception(exc: BaseException, captured: bytes = b"") -> Failure:
    """Return the failure behind an exception, its causes and its contexts.

    ``captured`` is what the process wrote to stderr meanwhile. The first CUDA error decides, sticky
    ones before others. With assertions in ``captured`` but no CUDA error among the exceptions, the
    context is ``unknown``: they may be another process's, and only a probe can tell. Raises
    ``TypeError`` if ``exc`` is no exception, and nothing else whatever its class does.
    """
    parser = AssertionParser()
    parser.feed(captured)
    scanner = ErrorScanner()
    errors = []
    for node in chain(exc):
        error = _error_of(node, scanner)
        if error is not None:
            errors.append(error)
            # Builds of torch that track device-side assertions report them in the error's text.
            report = "\n".join(text for text in strings(node, _MAX_TEXT) if HOST_REPORT in text)
            parser.feed(f"\n{report}\n".encode("utf-8", "replace"))
    error = next((item for item in errors if item.sticky), None) or (errors[0] if errors else None)
    from_stderr = parser.close(error)
    failure = _failure(
        error,
        from_stderr,
        assertions_platform=parser.platform,
        child=error.child if error else _child_ended(exc),
        otherwise=_first_line(exc),
        situation=scanner.situation._replace(notebook=True, traceback=True),
    )
    decided = error is not None and error.sticky is not False
    if from_stderr and failure.process == "this" and not decided:
        failure = dataclasses.replace(failure, context="unknown")
    return failure


def is_suspect(exc: BaseException) -> bool:
    """Return whether ``exc`` could come from CUDA: a test cheap enough for every exception.

    Looks at class names and at the arguments that are plain strings; runs no code of the user's.
    Raises ``TypeError`` if ``exc`` is no exception.
    """
    for node in chain(exc):
        if not _CLASSES.isdisjoint(class_names(node)):
            return True
        for text in strings(node, _MAX_SUSPECT_TEXT):
            if any(word in text for word in _WORDS):
                return True
    return False


def _failure(
    error: ErrorText | None,
    assertions: tuple[Assertion, ...],
    *,
    assertions_platform: Platform,
    child: bool,
    otherwise: str,
    situation: Situation,
) -> Failure:
    """Join what the error says and what the assertions say.

    An assertion beside any error means that the device asserted: cuBLAS, cuDNN and NCCL then fail
    with texts of their own, and ROCm reports a launch failure (719).
    """
    if assertions:
        platform = error.platform if error and error.platform != "cuda" else assertions_platform
        message = error.message if error else f"Assertion `{assertions[0].expression}` failed."
        code = error.code if error and error.sticky else (710 if platform == "cuda" else None)
        error = ErrorText("device_assert", code, True, platform, cut(message))
    if error is None:
        failure = Failure(kind="not_cuda", message=cut(otherwise))
        return dataclasses.replace(failure, advice=advice(failure, situation=situation))
    failure = Failure(
        kind=error.kind,
        code=error.code,
        platform=error.platform,
        context=_context(error, child=child),
        sticky=error.sticky,
        process="child" if child else "this",
        blocking=False if situation.mentions_async and not situation.blocking_set else None,
        message=error.message,
        assertions=assertions,
    )
    return dataclasses.replace(failure, advice=advice(failure, situation=situation))


def _context(error: ErrorText, *, child: bool) -> Context:
    """Return the state of this process's context, as far as the error alone decides it."""
    if child or error.sticky is False:
        return "alive"
    if error.code is not None and codes.is_start(error.code):
        return "alive"  # CUDA did not start: no context is lost
    return "dead" if error.sticky else "unknown"


def _error_of(exc: BaseException, scanner: ErrorScanner) -> ErrorText | None:
    """Return the CUDA error that this one exception is; tell ``scanner`` what its text shows."""
    names = class_names(exc)
    text = "\n".join(strings(exc, _MAX_TEXT)) or own_text(exc, _MAX_TEXT)
    carried = _scan(text)
    scanner.note(carried)
    of_child = not _FROM_CHILDREN.isdisjoint(names)
    if of_child or "Traceback" in text:
        # Its message is the traceback of another process or thread, not a person's sentence.
        error = carried.error
        return error._replace(child=True) if error and of_child else error
    if issubclass(type(exc), AssertionError):
        return None  # Python's own, whatever it says
    error = read_message(text.strip().split("\n", 1)[0])
    cause = carried.error
    if error and error.kind == "library_error" and cause:
        # NCCL names CUDA's own error in its last line.
        error = cause if cause.sticky or shown_cause(error, cause) else error
    code = error_code(exc) if "AcceleratorError" in names else None
    if code is not None and (error is None or error.platform != "xpu"):
        return _from_code(code, error, text)
    if error is None and "OutOfMemoryError" in names and "memory" in text:
        return ErrorText("out_of_memory", None, False, "cuda", cut(text.split("\n", 1)[0]))
    return error


def _child_ended(exc: BaseException) -> bool:
    """Whether a child process was killed: its words, if any, are on stderr only."""
    return any(class_name(node) in _CHILD_ENDED for node in chain(exc))


def _from_code(number: int, error: ErrorText | None, text: str) -> ErrorText:
    code = codes.by_code(number)
    message = error.message if error else cut(text.split("\n", 1)[0])
    platform = error.platform if error else "cuda"
    if code is None:
        return ErrorText("cuda_error", number, None, platform, message)
    return ErrorText(code.kind, number, code.sticky, platform, message)


def _scan(text: str) -> ErrorScanner:
    scanner = ErrorScanner()
    splitter = LineSplitter()
    for line in splitter.feed(text.encode("utf-8", "replace") + b"\n"):
        scanner.read_line(line)
    return scanner


def _first_line(exc: BaseException) -> str:
    text = "\n".join(strings(exc, _MAX_TEXT)).strip().split("\n", 1)[0]
    return f"{class_name(exc)}: {text}" if text else class_name(exc)
