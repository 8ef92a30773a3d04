"""Skip the lines of a flood: the same assertion again with another block and thread.

The driver prints a line for every failing thread, a million at times, often of several kernels or
ranks by turns, and loggers put the time in front of each or behind it. Reading each takes a hundred
times as long as one regex match over all of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cudassert_ipy.decode.place import rank_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.decode.groups import Tally

_MAX_TOGETHER = 64  # kinds of lines; compiling for more is not worth it
_MAX_LENGTH = 4000
_FIRST = b"block: ["
_WHERE = re.compile(rb"block: \[[\d,]+\], thread: \[[\d,]+\]")
_ANY_WHERE = rb"block: \[[\d,]++\], thread: \[[\d,]++\]"
_END = b" failed"
# A time, a counter, a hexadecimal id: what a logger puts beside a line.
_NUMBER = re.compile(
    rb"(?<![A-Za-z0-9_])(?=[A-Fa-f]*\d)[A-Fa-f\d]{4,40}(?![A-Za-z0-9_])|\d+",
)
_UUID = re.compile(rb"[A-Fa-f]")


class _Kind(NamedTuple):
    """Lines that differ in numbers only."""

    line: bytes
    """A regex."""
    run: re.Pattern[bytes]
    """Several of them."""
    tallies: Sequence[Tally]

    def add(self, lines: int) -> None:
        for tally in self.tallies:
            tally.count += lines


class Repeats:
    """Knows the lines that were read, apart from block and thread, and what they count for."""

    def __init__(self) -> None:
        # Lines with nothing but block and thread to change, by what is in front of these.
        self._exact: dict[bytes, _Kind] = {}
        self._exact_run: re.Pattern[bytes] | None = None
        # Lines with other numbers as well.
        self._numbered: list[_Kind] = []
        self._numbered_one: re.Pattern[bytes] | None = None
        self._last: _Kind | None = None

    def is_repeat(self, line: bytes) -> bool:
        """Count ``line``, cleaned and without its end; return whether it repeats one."""
        text = line + b"\n"
        return self.skip(text, 0, len(text)) > 0

    def remember(self, line: bytes, tallies: Sequence[Tally], files: Sequence[str]) -> None:
        """Let lines like ``line`` count for ``tallies``; ``files``: as the line names them."""
        places = list(_WHERE.finditer(line))
        if len(places) != len(tallies) or len(line) > _MAX_LENGTH:
            return
        head = _head(line[: places[0].start()], files[0])
        tail = line.rfind(_END) + len(_END)
        if tail < places[-1].end():
            return
        pattern = (
            _any_numbers(head) + _any_where(line[len(head) : tail]) + _any_numbers(line[tail:])
        )
        kind = _Kind(pattern, _repeated(pattern), tallies)
        exact = re.escape(head) + _any_where(line[len(head) :])
        if pattern == exact and len(tallies) == 1:
            front = line[: places[0].start()]
            if len(self._exact) < _MAX_TOGETHER and front not in self._exact:
                self._exact[front] = kind
                self._exact_run = _repeated(b"|".join(kind.line for kind in self._exact.values()))
                return
        if len(self._numbered) < _MAX_TOGETHER:
            self._numbered.append(kind)
            every = b"|".join(b"(" + kind.line + rb"\n)" for kind in self._numbered)
            self._numbered_one = re.compile(every)

    def skip(self, text: bytes, start: int, end: int) -> int:
        """Count the repeated lines at the front of ``text[start:end]``; return where they stop."""
        run = self._exact_run.match(text, start, end) if self._exact_run else None
        if run is not None:
            self._count_exact(text, start, run.end())
            return run.end()
        after = self._skip_like_the_last(text, start, end)
        if after > start:
            return after
        one = self._numbered_one.match(text, start, end) if self._numbered_one else None
        if one is None or one.lastindex is None:
            return start
        self._last = self._numbered[one.lastindex - 1]
        self._last.add(1)
        return self._skip_like_the_last(text, one.end(), end)

    def _skip_like_the_last(self, text: bytes, start: int, end: int) -> int:
        run = self._last.run.match(text, start, end) if self._last else None
        if run is None or self._last is None:
            return start
        self._last.add(text.count(b"\n", start, run.end()))
        return run.end()

    def _count_exact(self, text: bytes, start: int, end: int) -> None:
        if len(self._exact) == 1:
            (kind,) = self._exact.values()
            kind.add(text.count(b"\n", start, end))
            return
        for front, kind in self._exact.items():
            # From the line's start to its first "block": then none is counted for another.
            whole = front + _FIRST
            kind.add(text.count(b"\n" + whole, start, end) + text.startswith(whole, start))


def _head(front: bytes, file: str) -> bytes:
    """Return what a logger put in front of the path; empty where no path is known."""
    path = file.encode("utf-8", "replace")
    return front[: max(0, front.find(path))] if path else b""


def _repeated(line: bytes) -> re.Pattern[bytes]:
    return re.compile(b"(?:(?:" + line + rb")\n)++")


def _any_where(part: bytes) -> bytes:
    """Return a regex for ``part`` with any blocks and threads."""
    return _ANY_WHERE.join(re.escape(piece) for piece in _WHERE.split(part))


def _any_numbers(part: bytes) -> bytes:
    """Return a regex for ``part`` with other numbers, but the same rank."""
    pieces = []
    position = 0
    for start, stop in (*rank_spans(part), (len(part), len(part))):
        pieces += [_loose(part[position:start]), re.escape(part[start:stop])]
        position = stop
    return b"".join(pieces)


def _loose(part: bytes) -> bytes:
    pieces = []
    position = 0
    for number in _NUMBER.finditer(part):
        pieces.append(re.escape(part[position : number.start()]))
        pieces.append(rb"[A-Fa-f\d]++" if _UUID.search(number[0]) else rb"\d++")
        position = number.end()
    return b"".join([*pieces, re.escape(part[position:])])
