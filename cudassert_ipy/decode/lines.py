"""Cut a stream of bytes into lines, in the same places however the stream is chunked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Skip = Callable[[bytes, int, int], int]

MAX_LINE = 64 * 1024
"""Longest line in bytes; longer ones are cut, so that memory stays bounded."""

_ANSI = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]|\x1b[()][0-9A-Za-z]"
)
_BLANK_LINES = re.compile(rb"\n+")
_NO_BREAK_SPACE = b"\xc2\xa0"  # text that was copied from a web page
_END_OF_ASSERTION = b" failed."


class LineSplitter:
    """Cuts at newlines and carriage returns (progress bars redraw themselves with those)."""

    def __init__(self) -> None:
        self._rest = b""
        self._return = b""

    def feed(self, data: bytes, skip: Skip | None = None) -> Iterator[bytes]:
        """Yield the lines that ``data`` completes, without ends and ANSI sequences; no blank ones.

        ``skip(text, start, end)`` may take whole lines at the front of ``text[start:end]`` itself,
        all at once; it returns where it stopped.
        """
        data = self._return + data
        # Half of a Windows line end may still be to come.
        self._return = b"\r" if data.endswith(b"\r") else b""
        if b"\r" in data:
            data = data.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        text = self._rest + data
        end = text.rfind(b"\n") + 1
        self._rest = text[end:]
        start = 0
        while start < end:
            blank = _BLANK_LINES.match(text, start)
            if blank:  # means nothing to anybody
                start = blank.end()
                continue
            if skip is not None:
                after = skip(text, start, end)
                if after > start:
                    start = after
                    continue
            stop = text.find(b"\n", start)
            if stop - start > MAX_LINE:
                yield from self._pieces(text[start:stop])
                yield _plain(self._last)
            else:
                yield _plain(text[start:stop])
            start = stop + 1
        if len(self._rest) > MAX_LINE:
            yield from self._pieces(self._rest)
            self._rest = self._last

    def close(self) -> Iterator[bytes]:
        """Yield what is left when the stream has ended."""
        rest, self._rest, self._return = self._rest, b"", b""
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
    if b"\x1b" in line:
        line = _ANSI.sub(b"", line)
    return line.replace(_NO_BREAK_SPACE, b" ") if _NO_BREAK_SPACE in line else line
