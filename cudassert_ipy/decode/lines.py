"""Cut a stream of bytes into lines, in the same places however the stream is chunked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE = 64 * 1024
"""Longest line in bytes; longer ones are cut, so that memory stays bounded."""

_ANSI = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]|\x1b[()][0-9A-Za-z]"
)
_END_OF_ASSERTION = b" failed."


class LineSplitter:
    """Cuts at newlines and carriage returns (progress bars redraw themselves with those)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that ``data`` completes, without terminators and ANSI sequences."""
        *lines, self._rest = (self._rest + data.replace(b"\r", b"\n")).split(b"\n")
        for line in lines:
            yield from self._pieces(line)
            yield _plain(self._last)
        if len(self._rest) > MAX_LINE:
            yield from self._pieces(self._rest)
            self._rest = self._last

    def close(self) -> Iterator[bytes]:
        """Yield what is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        if rest:
            yield _plain(rest)

    def _pieces(self, line: bytes) -> Iterator[bytes]:
        """Yield what has to be cut off in front of ``line``; leave its last piece in ``_last``.

        Where a cut falls depends on the next ``MAX_LINE`` bytes only, and an assertion that ends in
        them is not cut in two. Takes time in proportion to the line's length.
        """
        start = 0
        while len(line) - start > MAX_LINE:
            limit = start + MAX_LINE
            end = line.rfind(_END_OF_ASSERTION, start, limit)
            cut = end + len(_END_OF_ASSERTION) if end >= 0 else limit
            yield _plain(line[start:cut])
            start = cut
        self._last = line[start:]


def _plain(line: bytes) -> bytes:
    return _ANSI.sub(b"", line) if b"\x1b" in line else line
