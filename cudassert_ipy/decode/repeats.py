"""Skip the lines of a flood: the same assertion again with another block and thread.

The driver prints a line for every failing thread, a million at times, often of several kernels or
ranks by turns, and loggers put the time in front of each. Reading each takes a hundred times as
long as one regex match over all of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from cudassert_ipy.decode.place import rank_spans

_MAX_REMEMBERED = 1024
_MAX_TOGETHER = 64  # kinds of lines; compiling for more is not worth it
_MAX_NUMBERED = 16
_FIRST = b"block: ["
_SAME_SHAPE = re.compile(rb"block: \[[\d,]+\], thread: \[[\d,]+\] Assertion ")
_SHAPE = rb"block: \[[\d,]++\], thread: \[[\d,]++\] Assertion "
_NUMBER = re.compile(rb"\d+")


class Counted(Protocol):
    """What a line counts for."""

    file: str
    plain_count: int


class _Run(NamedTuple):
    pattern: re.Pattern[bytes]
    counted: Counted


class Repeats:
    """Knows the lines that were read, apart from block and thread, and what they count for."""

    def __init__(self) -> None:
        self._remembered: dict[tuple[bytes, bytes], Counted] = {}
        self._together: dict[bytes, tuple[bytes, Counted]] = {}
        self._run: re.Pattern[bytes] | None = None
        self._numbered: list[_Run] = []

    def is_repeat(self, line: bytes) -> bool:
        """Count ``line`` and return True if it repeats a remembered one."""
        key = _key(line)
        counted = self._remembered.get(key) if key else None
        if counted is None:
            return False
        counted.plain_count += 1
        return True

    def remember(self, line: bytes, counted: Counted) -> None:
        """Let lines like ``line`` count for ``counted`` from now on."""
        key = _key(line)
        if key is None:
            return
        front, back = key
        head = front[: max(0, front.rfind(counted.file.encode("utf-8", "replace")))]
        if _NUMBER.search(_without_ranks(head)):
            if len(self._numbered) < _MAX_NUMBERED:
                whole = _any_numbers(head) + re.escape(front[len(head) :])
                self._numbered.append(_Run(_repeated(whole + _SHAPE + re.escape(back)), counted))
            return
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = counted
        if len(self._together) < _MAX_TOGETHER and front not in self._together:
            self._together[front] = (back, counted)
            self._run = _repeated(
                b"|".join(
                    re.escape(start) + _SHAPE + re.escape(end)
                    for start, (end, _) in self._together.items()
                )
            )

    def skip(self, text: bytes, start: int, end: int) -> int:
        """Count the repeated lines at the front of ``text[start:end]``; return where they stop."""
        run = self._run.match(text, start, end) if self._run else None
        if run is not None:
            self._count(text, start, run.end())
            return run.end()
        for pattern, counted in self._numbered:
            run = pattern.match(text, start, end)
            if run is not None:
                counted.plain_count += text.count(b"\n", start, run.end())
                return run.end()
        return start

    def _count(self, text: bytes, start: int, end: int) -> None:
        if len(self._together) == 1:
            ((_back, counted),) = self._together.values()
            counted.plain_count += text.count(b"\n", start, end)
            return
        for front, (_back, counted) in self._together.items():
            # From the line's start to its first "block": then none is counted for another.
            whole = front + _FIRST
            counted.plain_count += text.count(b"\n" + whole, start, end)
            counted.plain_count += text.startswith(whole, start)


def _key(line: bytes) -> tuple[bytes, bytes] | None:
    """Return what is in front of block and thread and what is behind them."""
    start = line.find(_FIRST)
    same = _SAME_SHAPE.match(line, start) if start >= 0 else None
    return (line[:start], line[same.end() :]) if same else None


def _repeated(line: bytes) -> re.Pattern[bytes]:
    return re.compile(b"(?:(?:" + line + rb")\n)++")


def _without_ranks(head: bytes) -> bytes:
    """Return ``head`` without the numbers that say whose line it is."""
    for start, stop in reversed(rank_spans(head)):
        head = head[:start] + head[stop:]
    return head


def _any_numbers(head: bytes) -> bytes:
    """Return a regex for ``head`` with other numbers, but the same rank."""
    parts = []
    position = 0
    for start, stop in (*rank_spans(head), (len(head), len(head))):
        plain = re.escape(head[position:start])
        parts += [_NUMBER.sub(lambda _: rb"\d++", plain), re.escape(head[start:stop])]
        position = stop
    return b"".join(parts)
