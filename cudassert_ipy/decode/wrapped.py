"""Put lines together again that a terminal, a mail program or a box has wrapped.

Wrapping cuts anywhere: inside words (nothing is missing then) or at blanks (one is missing). Only
what started like a line of CUDA and was not finished is continued.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MAX_LENGTH = 4000
_END = b" failed"
_PLACE = re.compile(rb"\.cuh?:\d{1,9}: ")
_ROOTED_PLACE = re.compile(rb"(?:^|[\s\]|])(?:/|\.\.[/\\]|[A-Za-z]:[\\/])[^\s`]*\.cuh?:\d{1,9}: ")
# A path of torch that goes on in the next line.
_TAIL = re.compile(rb"[/\\](?:ATen|aten|THC|THCUNN)[/\\][\w./\\]*(?::\d{0,9}:?)?$")
_FRAME = b"\xe2\x94\x82"  # the vertical line of a box (rich)
_IN_FRONT = re.compile(
    rb"(?:\[rank ?\d{1,6}\]: ?)?(?:\s*(?:[>|]|" + _FRAME + rb")\s*)*", re.IGNORECASE
)
_BEHIND = re.compile(rb"(?:\s|" + _FRAME + rb")*$")


class Continued(NamedTuple):
    """What a line means for the unfinished one in front of it."""

    joined: tuple[bytes, ...]
    """Readings of both as one, the more likely first; empty if the line does not finish it."""
    abandoned: bytes
    """The unfinished line, if none of the readings makes sense."""


class Wrapped:
    """Remembers the unfinished line."""

    def __init__(self) -> None:
        self._first = b""
        self._tight = b""
        self._spaced = b""
        self._unindented = b""

    @property
    def is_open(self) -> bool:
        """Whether the last line of CUDA was not finished."""
        return bool(self._first)

    def read_line(self, line: bytes) -> Continued | None:
        """Take the next line; return what came of the unfinished one, or None."""
        result = self._continue(line) if self._first and line else None
        if not self._first and _starts(line):
            self._first = line
            self._tight = self._spaced = _without_frame(line, front=False)
            self._unindented = self._tight
        return result

    def close(self) -> bytes:
        """Return the unfinished line, if any: nothing follows."""
        first, self._first = self._first, b""
        return first

    def _continue(self, line: bytes) -> Continued | None:
        first = self._first
        starts_anew = _PLACE.search(line) and (_PLACE.search(first) or _ROOTED_PLACE.search(line))
        rest = _without_frame(line, front=True)
        if starts_anew or len(self._spaced) + len(rest) > _MAX_LENGTH:
            self._first = b""
            return Continued((), first)
        self._tight += rest
        self._spaced += b" " + rest
        self._unindented += rest.lstrip()
        readings = (self._tight, self._spaced, self._unindented)
        if not any(_END in reading for reading in readings):
            return None
        self._first = b""
        return Continued(readings, first)


def _starts(line: bytes) -> bool:
    """Whether ``line`` is the unfinished start of an assertion."""
    if _END in line:
        return False
    if b"block: [" in line or (b".cu" in line and _PLACE.search(line)):
        return True
    return (b"ATen" in line or b"aten" in line or b"THC" in line) and bool(_TAIL.search(line))


def _without_frame(line: bytes, *, front: bool) -> bytes:
    if front:
        match = _IN_FRONT.match(line)
        line = line[match.end() :] if match else line
    # A blank at the very end was printed, or pads the box: the readings decide.
    return _BEHIND.sub(b"", line) if line.endswith(_FRAME) else line
