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

from cudassert_ipy.decode.catalog import catalog, normalize
from cudassert_ipy.decode.host_report import HostReport, Reported
from cudassert_ipy.decode.lines import LineSplitter
from cudassert_ipy.decode.place import is_name, place, rank_in
from cudassert_ipy.decode.repeats import Repeats
from cudassert_ipy.decode.salvage import find_inside
from cudassert_ipy.decode.unescape import unescaped
from cudassert_ipy.decode.words import words_of
from cudassert_ipy.decode.wrapped import Wrapped
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

_INDEX = r"\[ ?(\d{1,10}), ?(\d{1,10}), ?(\d{1,10}) ?\]"
# Everything is found from this anchor outwards, so that no regex has to search for a path's start
# (which takes quadratic time on a long line without blanks).
_ANCHOR = re.compile(
    rf"(?P<where>block|global id): {_INDEX}, (?:thread|local id): {_INDEX}"
    r"(?::? Assertion (?P<verbose>failed: (?=`))?)"
    r"|(?P<hip>Device-side assertion )(?=`)"
    r"|(?P<short>Assertion )(?=[`'\u2018])"  # without the numbers, or with garbled ones
)
# Kernels that print and trap by themselves (DeepEP); the error is a launch failure then.
_TRAP = re.compile(r"Assertion failed: (\S{1,300}\.cuh?):(\d{1,9}), condition: (.{1,500})")
_HANDLER = b"AssertHandler::printMessage"  # of SYCL: what follows is the device's
_EXPRESSION = re.compile(
    r"(?:`(?P<quoted>.*?)[`'] failed|['\u2018](?P<single>.*?)['\u2019] failed"
    r'|"(?P<double>.*?)" failed'
    r"|(?P<bare>[^`'\"\u2018].*?) failed)\.?"
)
# The end of a line that was cut off; taken only if the catalogue knows what is left.
_CUT_EXPRESSION = re.compile(r"[`'\u2018]?(?P<cut>.*?)[`'\u2019]?(?: f(?:ail?e?)?)?\s*$")
_GLIBC = re.compile(r"`[^`]*' failed")  # assert() of C: the device closes with a backtick
_VERBOSE_EXPRESSION = re.compile(r"`(?P<quoted>.*?)`: (?P<message>.*)")
_DEVICE_SOURCE = re.compile(r"\.(?:cuh?|hip)$", re.IGNORECASE)
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_NAMED_NUMBER = re.compile(
    rf"`(\w+)` \w+ \({_NUMBER}\)|\b(\w+) ?(?:=|:|is|was|got) ?{_NUMBER}\b(?!\.\d)"
)


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
    row: KnownAssertion | None
    # A verbose build prints a line on stdout and the usual one on stderr: both tell of one thread.
    plain_count: int = 0
    verbose_count: int = 0
    values: dict[str, int | float | str] = field(default_factory=dict)
    message: str = ""
    """What a verbose build printed beside the expression."""

    def belongs_to(self, error: ErrorText | None) -> bool:
        """Whether the error shows that the device printed this, not a host program."""
        if error is None or error.sticky is False:
            return False
        if error.kind == "device_assert" or self.row is not None:
            return True
        return error.sticky is True and _DEVICE_SOURCE.search(self.file) is not None

    def assertion(self) -> Assertion:
        row = self.row
        values = self.values
        if row is not None:
            operand, requirement = row.operand, row.requirement_of(self.expression)
            values = values or row.numbers_of(self.expression)
        else:
            operand, requirement = words_of(self.expression, self.message)
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
            operand=operand,
            requirement=requirement,
            values=values or None,
            known=row is not None,
        )


class AssertionParser:
    """Collects the assertions in a stream of bytes; any chunking gives the same result."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._unproven: dict[tuple[object, ...], _Group] = {}
        self._repeats = Repeats()
        self._wrapped = Wrapped()
        self._report = HostReport()
        self._handled = False

    @property
    def platform(self) -> Platform:
        """The platform whose format the first assertion has."""
        return next((group.platform for group in self._groups.values()), "cuda")

    @property
    def expressions(self) -> frozenset[str]:
        """The different expressions so far."""
        return frozenset(group.expression for group in self._groups.values())

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        for line in self._splitter.feed(data, self.skip_repeats):
            self.read_line(line)

    def close(self, error: ErrorText | None = None) -> tuple[Assertion, ...]:
        """Return the assertions, in order of appearance.

        Those that a host program could have printed follow, if ``error``, which the text or the
        exception tells of, shows that the device did.
        """
        for line in self._splitter.close():
            self.read_line(line)
        self._parse_cut(self._wrapped.close())
        for reported in self._report.close():
            self._add_reported(reported, None)
        groups = list(self._groups.values())
        proven = {group.expression for group in groups}
        groups += [
            group
            for group in self._unproven.values()
            if not any(item in group.expression for item in proven) and group.belongs_to(error)
        ]
        return tuple(group.assertion() for group in groups)

    def skip_repeats(self, text: bytes, start: int, end: int) -> int:
        """Count the lines at the front of ``text[start:end]`` that repeat a recent one.

        Return where they stop. A flood of a million lines costs little more than looking at it.
        """
        return start if self._wrapped.is_open else self._repeats.skip(text, start, end)

    def read_line(self, line: bytes) -> bool:
        """Take one line, cleaned by :class:`~cudassert_ipy.decode.lines.LineSplitter`.

        Return whether it only repeats an earlier line with another block and thread.
        """
        continued = self._wrapped.read_line(line)
        if continued is not None:
            if any(self._parse_joined(joined) for joined in continued.joined):
                return False
            self._parse_cut(continued.abandoned)
        if b"ssert" not in line:
            return False
        self._handled = self._handled or _HANDLER in line
        if self._repeats.is_repeat(line):
            return True
        text = line.decode("utf-8", "replace")
        groups = self._parse(text)
        if len(groups) == 1:
            self._repeats.remember(line, groups[0])
        elif not groups:
            rank = rank_in(text, None)
            for reported in self._report.read_line(text):
                self._add_reported(reported, rank)
            trap = _TRAP.search(text)
            if trap:
                expression = unescaped(trap[3])
                reported = Reported(expression, trap[1], int(trap[2]), None, None, None)
                self._add_reported(reported, rank, self._unproven, MAX_UNPROVEN)
        return False

    def _parse(self, text: str, *, joined: bool = False) -> list[_Group]:
        """Take all assertions on a line; ``joined``: blanks may be missing or too many in it."""
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
                rank = rank_in(head, rank)
                group = self._add(anchor, match, head, rank, as_cataloged=joined)
                if group is not None:
                    groups.append(group)
                start = anchor.end() + match.end()
        return groups

    def _parse_joined(self, line: bytes) -> bool:
        """Take a line that was put together from wrapped ones; return whether it makes sense."""
        text = line.decode("utf-8", "replace")
        if not any(anchor["where"] for anchor in _ANCHOR.finditer(text)):
            return False
        return bool(self._parse(text, joined=True))

    def _parse_cut(self, line: bytes) -> None:
        """Take the assertion at the end of a line that was cut off, if the catalogue knows it."""
        text = line.decode("utf-8", "replace")
        anchors = [anchor for anchor in _ANCHOR.finditer(text) if anchor["where"]]
        if not anchors:
            return
        anchor = anchors[-1]
        match = _CUT_EXPRESSION.match(text[anchor.end() : anchor.end() + _MAX_EXPRESSION])
        head = text[max(0, anchor.start() - _MAX_PLACE) : anchor.start()]
        if match and catalog().find(unescaped(match[1]), *_file_and_function(head)):
            self._add(anchor, match, head, rank_in(head, None))

    def _add(
        self,
        anchor: re.Match[str],
        match: re.Match[str],
        head: str,
        rank: int | None,
        *,
        as_cataloged: bool = False,
    ) -> _Group | None:
        expression = unescaped(next(text for text in match.groups() if text is not None))
        file, line, function = place(head)
        groups, limit = self._groups, MAX_GROUPS
        if function and not is_name(function) and not _is_signature(function, file, anchor):
            function = None  # words of a person or pieces of another line
        row = catalog().find(expression, file, function)
        if row is None:
            row = find_inside(expression, file) if anchor["where"] or file else None
            expression = row.expression if row else expression
        elif as_cataloged and normalize(row.expression) == normalize(expression):
            expression = row.expression
        if anchor["short"]:
            if row is None and _GLIBC.match(match[0]):
                return None
            if (row is None or not file) and not self._handled:
                groups, limit = self._unproven, MAX_UNPROVEN
        numbers = [int(number) for number in anchor.groups()[1:7] if number is not None]
        platform: Platform = "cuda"
        if anchor["hip"]:
            platform = "hip"
        elif anchor["where"] == "global id" or (anchor["short"] and self._handled):
            platform = "xpu"
        group = _group(
            groups,
            limit,
            _Group(
                expression=expression,
                file=file,
                line=line,
                function=function,
                rank=rank,
                platform=platform,
                block=tuple(numbers[:3]) or None,
                thread=tuple(numbers[3:]) or None,
                row=row,
            ),
        )
        if group is None:
            return None
        if anchor["verbose"]:
            group.verbose_count += 1
            group.message = group.message or unescaped(match["message"].partition("\\n")[0])
            group.values = group.values or _numbers(group.message)
        else:
            group.plain_count += 1
        return group

    def _add_reported(
        self,
        reported: Reported,
        rank: int | None,
        groups: _Groups | None = None,
        limit: int = MAX_GROUPS,
    ) -> None:
        row = catalog().find(reported.expression, reported.file, reported.function)
        group = _group(
            self._groups if groups is None else groups,
            limit,
            _Group(
                expression=reported.expression,
                file=reported.file,
                line=reported.line,
                function=reported.function,
                rank=rank,
                platform="cuda",
                block=reported.block,
                thread=reported.thread,
                row=row,
            ),
        )
        if group is not None:
            # The driver's own lines, where they were captured too, tell of the same threads.
            group.verbose_count += 1


_Groups = dict[tuple[object, ...], _Group]


def _group(groups: _Groups, limit: int, new: _Group) -> _Group | None:
    """Return the group that ``new`` belongs to, which may be itself; None if there are too many."""
    key = (new.expression, new.file, new.line, new.function, new.rank)
    if key not in groups and len(groups) < limit:
        groups[key] = new
    return groups.get(key)


def _is_signature(function: str, file: str, anchor: re.Match[str]) -> bool:
    """Whether ``function`` can be a full signature; the driver may have cut its end off."""
    if anchor["short"]:
        return bool(file) and "block:" not in function
    return bool(file) or function.count("(") == function.count(")")


def _file_and_function(head: str) -> tuple[str, str | None]:
    file, _line, function = place(head)
    return file, function


def _numbers(message: str) -> dict[str, int | float | str]:
    """Return the named numbers that a verbose assertion's message holds."""
    numbers: dict[str, int | float | str] = {}
    for match in _NAMED_NUMBER.finditer(message):
        name, number = (match[1], match[2]) if match[1] else (match[3], match[4])
        numbers[name] = float(number) if "." in number else int(number)
    return numbers
