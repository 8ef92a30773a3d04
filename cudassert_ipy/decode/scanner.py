"""Go through the lines of a log and remember what they tell of CUDA errors and their situation."""

from __future__ import annotations

import re

from cudassert_ipy.decode.error_text import (
    ErrorText,
    cut,
    ends_without_words,
    read_log_line,
    read_message,
    shown_cause,
)
from cudassert_ipy.decode.place import rank_in
from cudassert_ipy.decode.situation import Situation, joined, note_line, note_place

# Launchers put a prefix in front of the lines of each process.
_PREFIX = re.compile(
    r"(?:(?:[\w.-]{1,60}: )?\[(?:rank|default) ?\d{1,9}\]:? ?|rank ?\d{1,9}:? ?"
    r"|\[\d{1,9}(?:,\d{1,9})?\]<std\w+>: ?|\d{1,9}: |\([\w=., -]{1,80}\) )"
)
_EXCEPTION = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.){0,20}[A-Za-z_]\w*"
    r"(?:Error|Exception|OutOfResources|Raised|Remote|Exited)(?:\(\w+\))?)\s*: ?(?P<message>.*)"
)
# An ExceptionGroup's traceback is in a box; pytest puts a letter in front.
_LEAD = re.compile(r"[\s|+]*(?:E\s{2,})?")
_TRACEBACK = "Traceback (most recent call last)"
_TRACEBACK_FILE = re.compile(r'File ".*", line \d{1,9}')
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct")
# IPython's tracebacks number the lines of the source.
_NUMBERED_SOURCE = re.compile(r"-+> ?\d{1,9} |(?P<only_inside>\d{1,9} )")
_CHILD = re.compile(
    r"ProcessRaisedException|Remote(?:Error|Traceback)|RayTaskError"
    r"|in DataLoader worker process|-- Process \d{1,9} terminated with the following error"
    r"|^\[\d{1,9}:(?:apply|execute)\]:?\s*$"  # ipyparallel's engines
    r"|^Process \w{0,40}Process-\d{1,9}(?::\d{1,9})*:\s*$"  # multiprocessing's own report
    r"|Worker failed with error"  # vLLM
    r"|^\s*traceback : Traceback"  # torchrun's summary; the ranks' own reports come before it
)
# Of these, the child's traceback has no header of its own.
_CHILD_WITHOUT_HEADER = re.compile(r"RemoteError|RayTaskError|Worker failed")
_BOOTSTRAP = re.compile(r'multiprocessing[/\\]process\.py", line \d{1,9}, in _bootstrap')
# A logger's level, or a program that goes on.
_WARNING = re.compile(r"\bWARN(?:ING)?\b|[Rr]etry|[Ss]kipping")
# What other processes raise when one has failed.
_CONSEQUENCE = re.compile(
    r"(?:\w+\.)*(?:ChildFailedError|CalledProcessError|Dist\w*Error|\w*Terminated\w*|Ray\w*Error"
    r"|ProcessRaisedException|ProcessExitedException|Actor\w*Error|Worker\w*Error|EngineDeadError"
    r"|EOFError|BrokenPipeError|Connection\w*Error|RemoteError)\b|.*Engine core"
)
_DIGITS = re.compile(rb"\d+")
_MAX_HARMLESS = 256
_MAX_RAISED = 50
_MAX_LATER = 200
_MAX_OTHER = 100


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
        or b"LAUNCH_BLOCKING" in raw
    )


class ErrorScanner:
    """Reads lines of a log in order and remembers what they tell of CUDA errors."""

    def __init__(self) -> None:
        self.last_exception = ""
        self.sticky_was_raised = False
        """Whether an exception brought a sticky error."""
        self._seen = Situation()
        self._first: ErrorText | None = None
        self._first_sticky: ErrorText | None = None
        self._without_words: ErrorText | None = None
        self._weak: ErrorText | None = None
        self._rank: int | None = None
        self._raised: list[tuple[int | None, ErrorText]] = []
        self._exceptions_were_consequences = True
        self._source_beyond = -1
        self._inside_traceback = False
        self._chained = self._traceback_is_new = False
        self._children = _ChildReports()
        self._harmless: set[bytes] = set()

    @property
    def error(self) -> ErrorText | None:
        """The first sticky error, since later ones follow from it; else the first error."""
        strong = self._first_sticky or self._first or self._without_words
        if strong is None and self._exceptions_were_consequences:
            return self._weak
        return strong

    @property
    def situation(self) -> Situation:
        """What the text shows beside the error."""
        return self._seen._replace(other=self._other())

    @property
    def rank_of_sticky(self) -> int | None:
        """The rank that raised the sticky error, if one alone did."""
        ranks = {rank for rank, error in self._raised if error.sticky}
        return ranks.pop() if len(ranks) == 1 else None

    def read_line(self, raw: bytes) -> None:
        """Take one line, cleaned by :class:`~cudassert_ipy.decode.lines.LineSplitter`."""
        if self._source_beyond >= 0 and raw[:1] not in b" |[(\t0123456789":
            self._source_beyond = -1
        # Training logs name CUDA in every line ("CUDA memory 10.3 GiB").
        speaks = (
            _speaks(raw)
            or (b"CUDA" in raw and not self._is_known_to_be_harmless(raw))
            or b"Watchdog caught" in raw
        )
        if not speaks and not _matters(raw):
            if self._inside_traceback and not self._seen.notebook:
                self._look_for_notebook(raw)
            return
        line = raw.decode("utf-8", "replace")
        whole = line
        prefix = _PREFIX.match(line)
        rank = None
        if prefix:
            line = line[prefix.end() :]
            rank = rank_in(prefix[0], None)
            if rank is not None and not self._seen.ranks and not prefix[0][0].isdigit():
                self._seen = self._seen._replace(ranks=True, distributed=True)
        if self._is_source(line):
            return
        if _TRACEBACK in line:
            self._inside_traceback = True
            if not self._seen.traceback:
                self._seen = self._seen._replace(traceback=True)
            self._traceback_is_new = not self._chained
            self._chained = False
        elif _CHAINED.search(line):
            self._chained = True
        self._seen = note_line(self._seen, whole)
        self._children.read_line(line)
        lead = _LEAD.match(line)
        exception = _EXCEPTION.match(line, lead.end() if lead else 0)
        error = self._error_of(line, exception) if speaks or exception else None
        if error is not None:
            relayed = prefix is not None and "pid=" in prefix[0]
            error = error._replace(child=relayed or self._children.reporting)
            self._remember(error, raised=exception is not None, rank=rank, line=whole)
        elif exception:
            self._note_other_exception(exception[0].strip(), rank)

    def _look_for_notebook(self, raw: bytes) -> None:
        if b"ipy" in raw or b" In" in raw:
            seen = note_place(self._seen, raw.decode("utf-8", "replace"))
            if seen.notebook:
                self._seen = seen

    def _note_other_exception(self, text: str, rank: int | None) -> None:
        """Remember an exception without CUDA if it ended the run after the error was handled."""
        new, self._traceback_is_new = self._traceback_is_new, False
        if _CONSEQUENCE.match(text):
            return
        self._exceptions_were_consequences = False
        if self._first is not None and new and rank == self._rank:
            self._seen = self._seen._replace(later=text[:_MAX_LATER])

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

    def _remember(self, error: ErrorText, *, raised: bool, rank: int | None, line: str) -> None:
        if error.kind == "out_of_memory" and not raised and _WARNING.search(line):
            self._seen = self._seen._replace(earlier=self._seen.earlier or error.message)
            return
        if error.weak:
            self._weak = self._weak or error
            return
        if self._first is None:
            self._first, self._rank = error, rank
        elif not raised and shown_cause(self._first, error):
            self._first = error
        if raised:
            self._seen = self._seen._replace(later="")
            self._traceback_is_new = False
            if len(self._raised) < _MAX_RAISED:
                self._raised.append((rank, error))
            if rank is not None and not self._seen.distributed:
                self._seen = self._seen._replace(distributed=True)
        if not error.sticky:
            return
        if self._first_sticky is None:
            self._first_sticky = error
        elif raised and not self.sticky_was_raised and error.code == self._first_sticky.code:
            # C++ printed the error before Python raised it, and only Python tells whose it is.
            self._first_sticky = self._first_sticky._replace(child=error.child)
        self.sticky_was_raised = self.sticky_was_raised or raised

    def _other(self) -> str:
        """Return a raised error that does not follow from the first sticky one; empty: none.

        All that a process does after a sticky error fails with that error, or a library's.
        """
        first = next(((rank, error) for rank, error in self._raised if error.sticky), None)
        if first is None:
            return ""
        own, sticky = first
        after = False
        for rank, error in self._raised:
            if error is sticky:
                after = True
                continue
            elsewhere = None not in (rank, own) and rank != own
            differs = error.code != sticky.code if error.sticky else error.kind == "out_of_memory"
            if differs and (elsewhere or after):
                short = cut(error.message, _MAX_OTHER).rstrip(".")
                return short if rank is None else f"{short}, rank {rank}"
        return ""

    def _error_of(self, line: str, exception: re.Match[str] | None) -> ErrorText | None:
        if exception:
            self._inside_traceback = False
            if exception["name"].endswith("AssertionError"):
                self.last_exception = cut(exception[0].strip())
                return None  # Python's own, whatever it says
            self.last_exception = cut(exception[0].strip())
            message = exception["message"]
            error = read_message(message)
            if error is None and "OutOfMemoryError" in exception["name"] and "emory" in message:
                return ErrorText("out_of_memory", None, False, "cuda", cut(message))
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
            self._seen = note_place(self._seen, line)
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

    def note(self, other: ErrorScanner) -> None:
        """Take over the circumstances that another text showed, and not its errors."""
        self._seen = joined(self._seen, other._seen._replace(earlier="", later=""))


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
