"""The grammar of device assertion lines, as CUDA, Triton, HIP and XPU print them.

NVIDIA's format (CUDA C++ programming guide): ``<file>:<line>: <function>: block: [x,y,z], thread:
[x,y,z] Assertion `<expression>` failed.`` One line for every failing thread, so there may be a
million; identical ones are grouped as they come. Windows prints no function; torch 1.4 and older
print full C++ signatures; logs glue progress bars and rank prefixes in front. People leave out
block and thread, and processes that print at once garble them. What is left looks like assert() of
a host program: it counts only with a known file, or beside an error that shows a dead device.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from cudassert_ipy.decode.catalog import catalog, normalize
from cudassert_ipy.decode.groups import MAX_GROUPS, MAX_UNPROVEN, Group, Groups, Tally
from cudassert_ipy.decode.host_report import HostReport, Reported
from cudassert_ipy.decode.lines import LineSplitter
from cudassert_ipy.decode.place import is_name, place, rank_in
from cudassert_ipy.decode.repeats import Repeats
from cudassert_ipy.decode.salvage import find_inside
from cudassert_ipy.decode.statement import is_source
from cudassert_ipy.decode.unescape import unescaped
from cudassert_ipy.decode.wrapped import Wrapped

if TYPE_CHECKING:
    from cudassert_ipy.decode.catalog import KnownAssertion
    from cudassert_ipy.decode.error_text import ErrorText
    from cudassert_ipy.model import Assertion, Platform

_MAX_PLACE = 8000
_MAX_IN_FRONT = 600
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
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_NAMED_NUMBER = re.compile(
    rf"`(\w+)` \w+ \({_NUMBER}\)|\b(\w+) ?(?:=|:|is|was|got) ?{_NUMBER}\b(?!\.\d)"
)


class AssertionParser:
    """Collects the assertions in a stream of bytes; any chunking gives the same result."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._groups = Groups(MAX_GROUPS)
        self._unproven = Groups(MAX_UNPROVEN)
        self._repeats = Repeats()
        self._wrapped = Wrapped()
        self._report = HostReport()
        self._handled = False

    @property
    def platform(self) -> Platform:
        """The platform whose format the first assertion has."""
        return next((group.platform for group in self._groups), "cuda")

    @property
    def expressions(self) -> frozenset[str]:
        """The different expressions so far."""
        return frozenset(group.expression for group in self._groups)

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
            self._add_reported(self._groups, reported, None)
        groups = list(self._groups)
        proven = {group.expression for group in groups}
        groups += [
            group
            for group in self._unproven
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

        Return whether it holds assertions and nothing else that a reader has to see.
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
        found = self._parse(text)
        if found:
            self._repeats.remember(line, [tally for _, tally in found], [f.file for f, _ in found])
            return b"rror" not in line  # else the error behind it is to be read too
        rank = rank_in(text, None)
        for reported in self._report.read_line(text):
            self._add_reported(self._groups, reported, rank)
        trap = _TRAP.search(text)
        if trap:
            reported = Reported(unescaped(trap[3]), trap[1], int(trap[2]), None, None, None)
            self._add_reported(self._unproven, reported, rank)
        return False

    def _parse(self, text: str, *, joined: bool = False) -> list[tuple[Group, Tally]]:
        """Take all assertions on a line; ``joined``: blanks may be missing or too many in it."""
        anchors = list(_ANCHOR.finditer(text))
        found = []
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
                group = self._add(anchor, match, head, rank, joined=joined)
                if group is not None:
                    tally = group.verbose if anchor["verbose"] else group.plain
                    tally.count += 1
                    found.append((group, tally))
                start = anchor.end() + match.end()
        return found

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
        if match and _identify(unescaped(match[1]), *_file_and_function(head), garbled=False)[0]:
            group = self._add(anchor, match, head, rank_in(head, None))
            if group is not None:
                group.plain.count += 1

    def _add(
        self,
        anchor: re.Match[str],
        match: re.Match[str],
        head: str,
        rank: int | None,
        *,
        joined: bool = False,
    ) -> Group | None:
        """Return the group of the assertion that was found; None if it is none, or one too many."""
        expression = unescaped(next(text for text in match.groups() if text is not None))
        file, line, function = place(head)
        if function and not is_name(function) and not _is_signature(function, file, anchor):
            function = None  # words of a person or pieces of another line
        garbled = bool(anchor["where"] or file)
        row, spelled = _identify(expression, file, function, garbled=garbled)
        if row is not None and (joined or not _same(spelled, expression)):
            expression = spelled
        groups = self._groups
        if anchor["short"]:
            if row is None and _GLIBC.match(match[0]):
                return None
            if (row is None or not file) and not self._handled:
                groups = self._unproven
        if file and is_source(head[-_MAX_IN_FRONT:].partition(file)[0]):
            groups = self._unproven
        numbers = [int(number) for number in anchor.groups()[1:7] if number is not None]
        platform: Platform = "cuda"
        if anchor["hip"]:
            platform = "hip"
        elif anchor["where"] == "global id" or (anchor["short"] and self._handled):
            platform = "xpu"
        group = groups.add(
            Group(
                expression=expression,
                file=file,
                line=line,
                function=function,
                rank=rank,
                platform=platform,
                block=tuple(numbers[:3]) or None,
                thread=tuple(numbers[3:]) or None,
                row=row,
            )
        )
        if group is not None and anchor["verbose"] and not group.message:
            group.message = unescaped(match["message"].partition("\\n")[0])
            group.values = _numbers(group.message)
        return group

    @staticmethod
    def _add_reported(groups: Groups, reported: Reported, rank: int | None) -> None:
        row, _ = _identify(reported.expression, reported.file, reported.function, garbled=False)
        group = groups.add(
            Group(
                expression=reported.expression,
                file=reported.file,
                line=reported.line,
                function=reported.function,
                rank=rank,
                platform="cuda",
                block=reported.block,
                thread=reported.thread,
                row=row,
            )
        )
        if group is not None:
            # The driver's own lines, where they were captured too, tell of the same threads.
            group.verbose.count += 1


@functools.lru_cache(maxsize=512)
def _identify(
    expression: str, file: str, function: str | None, *, garbled: bool
) -> tuple[KnownAssertion | None, str]:
    """Return the row of the catalogue, if any, and the expression as it should have been printed.

    ``garbled``: another process's output may have run into the expression.
    """
    row = catalog().find(expression, file, function)
    if row is None and garbled:
        row = find_inside(expression, file)
        return row, row.expression if row else expression
    spellings = (text for text in (row.expressions if row else ()) if _same(text, expression))
    return row, next(spellings, expression)


def _same(one: str, other: str) -> bool:
    return normalize(one) == normalize(other)


def _is_signature(function: str, file: str, anchor: re.Match[str]) -> bool:
    """Whether ``function`` can be a full signature; the driver may have cut its end off."""
    if anchor["short"]:
        return bool(file) and "block:" not in function
    return bool(file) or 0 < function.count("(") == function.count(")")


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
