"""The grammar of device assertion lines, as CUDA, Triton, HIP and XPU print them.

NVIDIA's format (CUDA C++ programming guide): ``<file>:<line>: <function>: block: [x,y,z], thread:
[x,y,z] Assertion `<expression>` failed.`` One line for every failing thread, so there may be a
million; identical ones are grouped as they come. Windows prints no function; torch 1.4 and older
print full C++ signatures; logs glue progress bars and rank prefixes in front. People leave out
block and thread, and processes that print at once garble them. What is left looks like assert() of
a host program: it counts only with a known file, or beside an error that shows a dead device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.decode.lines import LineSplitter
from cudassert_ipy.model import Assertion

if TYPE_CHECKING:
    from cudassert_ipy.decode.catalog import KnownAssertion
    from cudassert_ipy.decode.error_text import ErrorText
    from cudassert_ipy.model import Platform

MAX_GROUPS = 200
"""Different assertions kept; a log with more has said enough."""

MAX_UNPROVEN = 50
"""The same for those that only the error beside them can prove."""

_MAX_PLACE = 8000
_MAX_EXPRESSION = 4000
_MAX_REMEMBERED = 1024

_INDEX = r"\[(\d{1,10}),(\d{1,10}),(\d{1,10})\]"
# Everything is found from this anchor outwards, so that no regex has to search for a path's start
# (which takes quadratic time on a long line without blanks).
_ANCHOR = re.compile(
    rf"(?P<where>block|global id): {_INDEX}, (?:thread|local id): {_INDEX}"
    r"(?::? Assertion (?P<verbose>failed: (?=`))?)"
    r"|(?P<hip>Device-side assertion )(?=`)"
    r"|(?P<short>Assertion )(?=[`'])"  # without the numbers, or with garbled ones
)
_OPENED = re.compile(rb"\.cuh?:\d{1,9}: ")
_MAX_WRAPPED = 4000
_SAME_SHAPE = re.compile(rb"block: \[[\d,]+\], thread: \[[\d,]+\] Assertion ")
_EXPRESSION = re.compile(
    r"(?:`(?P<quoted>.*?)[`'] failed|'(?P<single>.*?)' failed|(?P<bare>[^`'].*?) failed)\.?"
)
_GLIBC = re.compile(r"`[^`]*' failed")  # assert() of C: the device closes with a backtick
_VERBOSE_EXPRESSION = re.compile(r"`(?P<quoted>.*?)`: (?P<message>.*)")
_PLACE_END = re.compile(
    r"(?:\.(?:cuh?|hip|hp?p?|inl|cp?p?|cc|py)|\bunknown|>):(\d{1,9}):", re.IGNORECASE
)
_PLACE_SHORTENED = re.compile(r"\.(?:cuh?|hip)\b(?::(\d{1,9})\b)?", re.IGNORECASE)
_DEVICE_SOURCE = re.compile(r"\.(?:cuh?|hip)$", re.IGNORECASE)
_NAME = re.compile(r"(?:[A-Za-z_]\w*::)*(?:operator\(\)|[A-Za-z_]\w*)")
_PATH_REVERSED = re.compile(r"""[^\s:`"'|\]=]*(?::[A-Za-z](?![A-Za-z0-9]))?""")
# In front of a path: a progress bar without closing bracket, the numbers of another process's line,
# the newline of a line inside a repr.
_GLUED = re.compile(
    r"^(?:[\d.,?]+(?:[A-Za-z]{1,10}/s|s/[A-Za-z]{1,10}?)(?=/|\.\./)|[\d,]+(?=/)|(?:\\[nrt])+(?=[/.A-Za-z]))"
)
_RANK = re.compile(r"\[rank ?(\d{1,6})\]|^\s*(\d{1,6}): ", re.IGNORECASE)
_RANK_PREFIX = re.compile(r"^\s*(?:\[rank ?\d+\]:?|\d{1,6}:) *", re.IGNORECASE)
_NAMED_NUMBER = re.compile(r"`(\w+)` \w+ \((-?\d+(?:\.\d+)?)\)|\b(\w+) ?= ?(-?\d+(?:\.\d+)?)\b")


@dataclass(slots=True)
class _Group:
    expression: str
    file: str
    line: int | None
    function: str | None
    rank: int | None
    platform: Platform
    block: tuple[int, ...] | None
    thread: tuple[int, ...] | None
    # A verbose build prints a line on stdout and the usual one on stderr: both tell of one thread.
    plain_count: int = 0
    verbose_count: int = 0
    values: dict[str, int | float | str] = field(default_factory=dict)

    @property
    def row(self) -> KnownAssertion | None:
        return catalog().find(self.expression, self.file, self.function)

    def belongs_to(self, error: ErrorText | None) -> bool:
        """Whether the error shows that the device printed this, not a host program."""
        if error is None or error.sticky is False:
            return False
        if error.kind == "device_assert" or self.row is not None:
            return True
        return error.sticky is True and _DEVICE_SOURCE.search(self.file) is not None

    def assertion(self) -> Assertion:
        row = self.row
        return Assertion(
            expression=self.expression,
            file=self.file,
            line=self.line,
            function=self.function,
            count=max(self.plain_count, self.verbose_count),
            block=self.block,
            thread=self.thread,
            rank=self.rank,
            operations=row.operations if row else (),
            operand=row.operand if row else "",
            requirement=row.requirement if row else "",
            values=self.values or None,
            known=row is not None,
        )


class AssertionParser:
    """Collects the assertions in a stream of bytes; any chunking gives the same result."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._unproven: dict[tuple[object, ...], _Group] = {}
        self._remembered: dict[tuple[bytes, bytes], _Group] = {}
        self._opened = b""

    @property
    def platform(self) -> Platform:
        """The platform whose format the first assertion has."""
        return next((group.platform for group in self._groups.values()), "cuda")

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        for line in self._splitter.feed(data):
            self.read_line(line)

    def close(self, error: ErrorText | None = None) -> tuple[Assertion, ...]:
        """Return the assertions, in order of appearance.

        Those that a host program could have printed follow, if ``error``, which the text or the
        exception tells of, shows that the device did.
        """
        for line in self._splitter.close():
            self.read_line(line)
        groups = list(self._groups.values())
        proven = {group.expression for group in groups}
        groups += [
            group
            for group in self._unproven.values()
            if group.expression not in proven and group.belongs_to(error)
        ]
        return tuple(group.assertion() for group in groups)

    def read_line(self, line: bytes) -> bool:
        """Take one line, cleaned by :class:`~cudassert_ipy.decode.lines.LineSplitter`.

        Return whether it only repeats an earlier line with another block and thread.
        """
        if self._opened and self._continues(line):
            return False
        if b".cu" in line and b" failed" not in line and _OPENED.search(line):
            self._opened = line
        if b"ssertion " not in line:
            return False
        # A flood repeats one line with other numbers: recognize it without parsing it again.
        start = line.find(b"block: [")
        same = _SAME_SHAPE.match(line, start) if start >= 0 else None
        key = (line[:start], line[same.end() :]) if same else None
        if key is not None and key in self._remembered:
            self._remembered[key].plain_count += 1
            return True
        groups = self._parse(line.decode("utf-8", "replace"))
        if key is not None and len(groups) == 1:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = groups[0]
        return False

    def _continues(self, line: bytes) -> bool:
        """Whether ``line`` completes an assertion that a terminal has wrapped, which is then taken.

        Wrapping cuts anywhere, also inside words.
        """
        joined, self._opened = self._opened + line, b""
        if _OPENED.search(line) or len(joined) > _MAX_WRAPPED:
            return False
        if b" failed" not in joined:
            self._opened = joined
            return False
        text = joined.decode("utf-8", "replace")
        return any(anchor["where"] for anchor in _ANCHOR.finditer(text)) and bool(self._parse(text))

    def _parse(self, text: str) -> list[_Group]:
        anchors = list(_ANCHOR.finditer(text))
        groups = []
        start = 0
        rank = None
        for anchor, following in zip(anchors, [*anchors[1:], None], strict=False):
            stop = following.start() if following else len(text)
            body = text[anchor.end() : min(stop, anchor.end() + _MAX_EXPRESSION)]
            pattern = _VERBOSE_EXPRESSION if anchor["verbose"] else _EXPRESSION
            match = pattern.match(body)
            if match:
                head = text[max(start, anchor.start() - _MAX_PLACE) : anchor.start()]
                rank = _rank(head, rank)
                group = self._add(anchor, match, head, rank)
                if group is not None:
                    groups.append(group)
                start = anchor.end() + match.end()
        return groups

    def _add(
        self, anchor: re.Match[str], match: re.Match[str], head: str, rank: int | None
    ) -> _Group | None:
        expression = next(text for text in match.groups() if text is not None)
        # A line inside a JSON string or a repr has its quotes escaped.
        expression = expression.replace('\\"', '"').strip()
        file, line, function = _place(head)
        groups, limit = self._groups, MAX_GROUPS
        if anchor["short"]:
            if not file and not _NAME.fullmatch(function or ""):
                function = None  # words of a person or pieces of another line
            row = catalog().find(expression, file, function)
            if row is None and _GLIBC.match(match[0]):
                return None
            if row is None or not file:
                groups, limit = self._unproven, MAX_UNPROVEN
        key = (expression, file, line, function, rank)
        group = groups.get(key)
        if group is None:
            if len(groups) >= limit:
                return None
            numbers = [int(number) for number in anchor.groups()[1:7] if number is not None]
            platform: Platform = "cuda"
            if anchor["hip"]:
                platform = "hip"
            elif anchor["where"] == "global id":
                platform = "xpu"
            group = groups[key] = _Group(
                expression=expression,
                file=file,
                line=line,
                function=function,
                rank=rank,
                platform=platform,
                block=tuple(numbers[:3]) or None,
                thread=tuple(numbers[3:]) or None,
            )
        if anchor["verbose"]:
            group.verbose_count += 1
            group.values = group.values or _numbers(match["message"])
        else:
            group.plain_count += 1
        return group


def _place(head: str) -> tuple[str, int | None, str | None]:
    """Return file, line and function from the text in front of ``block:``."""
    places = list(_PLACE_END.finditer(head))
    if not places:
        return _shortened_place(head)
    place = places[-1]
    end = place.start(1) - 1
    function = head[place.end() :].strip().rstrip(" .:")
    if head[:end].endswith(">"):  # <frozen importlib._bootstrap>: a location that means nothing
        start = head.rfind("<", 0, end)
        path = head[max(start, 0) : end]
    else:
        path = _path(head[:end])
    return path, int(place[1]), function or None


def _shortened_place(head: str) -> tuple[str, int | None, str | None]:
    """Return what is left of file, line and function where people or other processes cut it."""
    places = list(_PLACE_SHORTENED.finditer(head))
    if not places:
        function = _RANK_PREFIX.sub("", head).strip().rstrip(" .:")
        return "", None, function[-300:] or None
    place = places[-1]
    name = head[place.end() :].strip(" .:")
    path = _path(head[: place.start() + len(place[0].partition(":")[0])])
    line = int(place[1]) if place[1] else None
    return path, line, name if _NAME.fullmatch(name) else None


def _path(head: str) -> str:
    """Return the path that ``head`` ends with."""
    reversed_path = _PATH_REVERSED.match(head[::-1])
    return _GLUED.sub("", reversed_path[0][::-1]) if reversed_path else ""


def _rank(head: str, rank: int | None) -> int | None:
    """Return the last rank that ``head`` names, else ``rank``."""
    for match in _RANK.finditer(head):
        rank = int(match[1] or match[2])
    return rank


def _numbers(message: str) -> dict[str, int | float | str]:
    """Return the named numbers that a verbose assertion's message holds."""
    numbers: dict[str, int | float | str] = {}
    for match in _NAMED_NUMBER.finditer(message):
        name, number = (match[1], match[2]) if match[1] else (match[3], match[4])
        numbers[name] = float(number) if "." in number else int(number)
    return numbers
