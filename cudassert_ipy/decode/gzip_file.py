"""Unpack a gzip file as it is read: any number of members, padding, what is no gzip at the end."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GZIP = b"\x1f\x8b\x08"
"""What a gzip file begins with."""
MAX_UNPACKED = 1024**3
"""A bomb of 1 MB would unpack to this, and one inside another to any size."""

_CHUNK = 1 << 20
_MAX_WINDOW = 1 << 16
_FIRST_WINDOW = 1 << 9
_PADDING = re.compile(rb"\0*")


class UnusableInput(Exception):  # noqa: N818  (a reason, not a defect)
    """The input cannot be read as text; the message says why."""


def unpacked(packed: Iterable[bytes], notes: list[str]) -> Iterator[bytes]:
    """Yield what gzip has packed in chunks, of a file that is cut off what there is.

    Adds to ``notes`` what the reader has to know. Raises :class:`UnusableInput` for damaged data
    and for more than ``MAX_UNPACKED`` bytes.
    """
    total = 0
    ready = bytearray()  # a million members of one byte each are one chunk
    for found in _members(packed, notes):
        total += len(found)
        if total > MAX_UNPACKED:
            raise UnusableInput(messages.CLI_TOO_LARGE_UNPACKED)
        ready += found
        if len(ready) >= _CHUNK:
            yield bytes(ready)
            ready.clear()
    if ready:
        yield bytes(ready)


def _members(packed: Iterable[bytes], notes: list[str]) -> Iterator[bytes]:
    member = _Member()
    count = 0
    for piece in packed:
        view = memoryview(piece)
        at = 0
        while at < len(piece):
            if count and not member.start:
                # Tapes pad with zeros.
                padding = _PADDING.match(piece, at)
                at = padding.end() if padding else at
                if at == len(piece):
                    break
            window = view[at : at + member.window]
            try:
                found, taken = member.feed(window)
            except zlib.error as error:
                if count and not GZIP.startswith(member.start):
                    notes.append(messages.CLI_NOT_PACKED_END)
                    return
                raise UnusableInput(messages.CLI_DAMAGED.format(error=error)) from error
            at += taken
            if found:
                yield found
            if member.ended:
                member = _Member()
                count += 1
    if count and not GZIP.startswith(member.start):
        notes.append(messages.CLI_NOT_PACKED_END)
    elif member.start or not count:
        notes.append(messages.CLI_CUT_OFF)


class _Member:
    """One of the packed files that a gzip file consists of.

    Is fed through a window that grows, since zlib copies what it does not take: otherwise many
    small members would take quadratic time.
    """

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(wbits=31)
        self.start = b""
        """Its first bytes, as far as they are known."""
        self.window = _FIRST_WINDOW
        self.ended = False

    def feed(self, data: memoryview) -> tuple[bytes, int]:
        """Return what ``data`` unpacks to, and how many bytes of it were taken."""
        self.start = (self.start + bytes(data[: len(GZIP)]))[: len(GZIP)]
        found = self._unpacker.decompress(data, _CHUNK)
        self.ended = self._unpacker.eof
        self.window = min(2 * self.window, _MAX_WINDOW)
        rest = self._unpacker.unused_data if self.ended else self._unpacker.unconsumed_tail
        return found, len(data) - len(rest)
