"""Go through the lines of a log and remember what they tell of CUDA errors and their situation."""

from __future__ import annotations

import re

from cudassert_ipy.decode.advice import Situation
from cudassert_ipy.decode.error_text import (
    MAX_MESSAGE,
    ErrorText,
    ends_without_words,
    read_log_line,
    read_message,
)

# Launchers put a prefix in front of the lines of each process.
_PREFIX = re.compile(
    r"(?:\[?rank ?\d+\]?:? ?|\[\d+(?:,\d+)?\]<std\w+>: ?|\d+: |\([\w=., -]{1,80}\) )"
)
_EXCEPTION = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.){0,20}[A-Za-z_]\w*"
    r"(?:Error|Exception|OutOfResources|Raised|Remote|Exited)(?:\(\w+\))?)\s*: ?(?P<message>.*)"
)
# An ExceptionGroup's traceback is in a box; pytest puts a letter in front.
_LEAD = re.compile(r"[\s|+]*(?:E\s{2,})?")
_TRACEBACK = "Traceback (most recent call last)"
_TRACEBACK_FILE = re.compile(r'File ".*", line \d+')
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct")
# IPython's tracebacks number the lines of the source.
_NUMBERED_SOURCE = re.compile(r"-+> ?\d+ |(?P<only_inside>\d+ )")
_CHILD = re.compile(
    r"ProcessRaisedException|Remote(?:Error|Traceback)|RayTaskError"
    r"|in DataLoader worker process|-- Process \d+ terminated with the following error"
    r"|^\[\d+:(?:apply|execute)\]:?\s*$"  # ipyparallel's engines
    r"|^Process \w{0,40}Process-\d+(?::\d+)*:\s*$"  # multiprocessing's own report
    r"|Worker failed with error"  # vLLM
    r"|^\s*traceback : Traceback"  # torchrun's summary; the ranks' own reports come before it
)
# Of these, the child's traceback has no header of its own.
_CHILD_WITHOUT_HEADER = re.compile(r"RemoteError|RayTaskError|Worker failed")
_BOOTSTRAP = re.compile(r'multiprocessing[/\\]process\.py", line \d+, in _bootstrap')
_NOT_BLOCKING = "CUDA kernel errors might be asynchronously reported"
_HIP_NOT_BLOCKING = "HIP kernel errors might be asynchronously reported"
_DSA_HINT = "TORCH_USE_CUDA_DSA"
_DISTRIBUTED = re.compile(
    r"NCCL|nccl|data_parallel\.py|distributed\.py|torch/distributed|in replica \d+ on device"
    r"|torchrun|DataParallel|Process group|DistBackendError"
)
_TORCH_VERSION = re.compile(
    r"(?:(?<![\w/-])torch(?:==|[ :=]{1,3}v?|\s{2,40})|[Pp]y[Tt]orch [Vv]ersion\s?:\s?)"
    r"['\"]?(?P<version>[12]\.\d{1,2}\.\d{1,2}[\w.+]{0,40})"
)
_DIGITS = re.compile(rb"\d+")
_MAX_HARMLESS = 256


def _speaks(raw: bytes) -> bool:
    """Whether a line may tell of an error; every line comes by here, hence no regex."""
    return (
        b"rror" in raw
        or b"assert" in raw
        or b"ailure" in raw
        or b" failed" in raw
        or b"ut of " in raw
        or b"_STATUS_" in raw
        or b"access fault" in raw
        or b"xcept" in raw
    )


def _matters(raw: bytes) -> bool:
    """Whether a line without an error may say where one belongs, or show the situation."""
    return (
        b'File "' in raw
        or b"raceback" in raw
        or b"rocess" in raw
        or b"NCCL" in raw
        or b"torch=" in raw
        or b"torch " in raw
        or b"orch ver" in raw
        or b":apply]" in raw
        or b":execute]" in raw
    )


class ErrorScanner:
    """Reads lines of a log in order and remembers what they tell of CUDA errors."""

    def __init__(self) -> None:
        self.not_blocking = False
        """Whether torch's hint about asynchronous errors was seen: launches were not blocking."""
        self.last_exception = ""
        self.situation = Situation()
        self._first: ErrorText | None = None
        self._first_sticky: ErrorText | None = None
        self._without_words: ErrorText | None = None
        self._source_beyond = -1
        self._inside_traceback = False
        self._first_sticky_was_raised = False
        self._children = _ChildReports()
        self._harmless: set[bytes] = set()

    @property
    def error(self) -> ErrorText | None:
        """The first sticky error, since later ones follow from it; else the first error."""
        return self._first_sticky or self._first or self._without_words

    def read_line(self, raw: bytes) -> None:
        """Take one line, cleaned by :class:`~cudassert_ipy.decode.lines.LineSplitter`."""
        if self._source_beyond >= 0 and raw[:1] not in b" |[(\t0123456789":
            self._source_beyond = -1
        # Training logs name CUDA in every line ("CUDA memory 10.3 GiB").
        speaks = _speaks(raw) or (b"CUDA" in raw and not self._is_known_to_be_harmless(raw))
        if not speaks and not _matters(raw):
            return
        line = raw.decode("utf-8", "replace")
        prefix = _PREFIX.match(line)
        if prefix:
            line = line[prefix.end() :]
        if self._is_source(line):
            return
        if _TRACEBACK in line:
            self._inside_traceback = True
        self._note_situation(line)
        self._children.read_line(line)
        lead = _LEAD.match(line)
        exception = _EXCEPTION.match(line, lead.end() if lead else 0)
        error = self._error_of(line, exception) if speaks or exception else None
        if error is not None:
            relayed = prefix is not None and "pid=" in prefix[0]
            error = error._replace(child=relayed or self._children.reporting)
            self._remember(error, raised=exception is not None)

    def _is_known_to_be_harmless(self, raw: bytes) -> bool:
        """Whether a line was read before, with other numbers, and told of no error."""
        shape = _DIGITS.sub(b"0", raw)
        if shape in self._harmless:
            return True
        if read_log_line(raw.decode("utf-8", "replace")) is not None:
            return False
        if len(self._harmless) >= _MAX_HARMLESS:
            self._harmless.clear()
        self._harmless.add(shape)
        return False

    def _remember(self, error: ErrorText, *, raised: bool) -> None:
        self._first = self._first or error
        if not error.sticky:
            return
        if self._first_sticky is None:
            self._first_sticky, self._first_sticky_was_raised = error, raised
        elif raised and not self._first_sticky_was_raised:
            # C++ printed the error before Python raised it, and only Python tells whose it is.
            self._first_sticky_was_raised = True
            if error.code == self._first_sticky.code:
                self._first_sticky = self._first_sticky._replace(child=error.child)

    def _error_of(self, line: str, exception: re.Match[str] | None) -> ErrorText | None:
        if exception:
            self._inside_traceback = False
            if exception["name"].endswith("AssertionError"):
                self.last_exception = exception[0].strip()[:MAX_MESSAGE]
                return None  # Python's own, whatever it says
            self.last_exception = exception[0].strip()[:MAX_MESSAGE]
            message = exception["message"]
            error = read_message(message)
            if error is None and "OutOfMemoryError" in exception["name"] and "emory" in message:
                return ErrorText("out_of_memory", None, False, "cuda", message[:MAX_MESSAGE])
            return error
        if self._without_words is None:
            self._without_words = ends_without_words(line)
        return read_log_line(line)

    def _is_source(self, line: str) -> bool:
        """Whether the line is a place or a source line of a traceback: those quote, or import."""
        lead = _LEAD.match(line)
        start = lead.end() if lead else 0
        if _TRACEBACK_FILE.match(line, start):
            self._source_beyond = start
            if not self.situation.distributed and _DISTRIBUTED.search(line):
                self.situation = self.situation._replace(distributed=True)
            self._children.read_place(line)
            return True
        if self._source_beyond >= 0:
            if start > self._source_beyond:
                return True
            self._source_beyond = -1
        numbered = _NUMBERED_SOURCE.match(line, start)
        if numbered is None:
            return False
        return not numbered["only_inside"] or start > 0 or self._inside_traceback

    def _note_situation(self, line: str) -> None:
        seen = self.situation
        self.not_blocking = self.not_blocking or _NOT_BLOCKING in line or _HIP_NOT_BLOCKING in line
        if not seen.mentions_dsa and _DSA_HINT in line:
            seen = seen._replace(mentions_dsa=True)
        if not seen.distributed and _DISTRIBUTED.search(line):
            seen = seen._replace(distributed=True)
        if seen.torch_version is None:
            version = _TORCH_VERSION.search(line)
            if version:
                seen = seen._replace(torch_version=version["version"])
        self.situation = seen

    def note(self, other: ErrorScanner) -> None:
        """Take over the circumstances that another text showed, and not its errors."""
        self.not_blocking = self.not_blocking or other.not_blocking
        mine, its = self.situation, other.situation
        self.situation = Situation(
            mentions_dsa=mine.mentions_dsa or its.mentions_dsa,
            distributed=mine.distributed or its.distributed,
            torch_version=mine.torch_version or its.torch_version,
        )


class _ChildReports:
    """Follows where the report of a child process begins, and where this process's own does."""

    def __init__(self) -> None:
        self._tracebacks: int | None = None
        self._chained = False

    @property
    def reporting(self) -> bool:
        return self._tracebacks is not None

    def read_line(self, line: str) -> None:
        if _TRACEBACK in line:
            if self._tracebacks is not None and not self._chained:
                self._tracebacks += 1
                if self._tracebacks > 1:  # the first was in the report
                    self._tracebacks = None
            self._chained = False
        elif _CHAINED.search(line):
            self._chained = True
        if _CHILD.search(line):
            headed = _TRACEBACK in line or _CHILD_WITHOUT_HEADER.search(line) is not None
            self._tracebacks = int(headed)

    def read_place(self, line: str) -> None:
        """Take a line of a traceback that names a file."""
        if _BOOTSTRAP.search(line):
            self._tracebacks = 1
