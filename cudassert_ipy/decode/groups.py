"""Assertions as they are collected: the lines of many threads are one, with a count."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from cudassert_ipy.decode.words import words_of
from cudassert_ipy.model import Assertion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudassert_ipy.decode.catalog import KnownAssertion
    from cudassert_ipy.decode.error_text import ErrorText
    from cudassert_ipy.model import Platform

MAX_GROUPS = 200
"""Different assertions kept; a log with more has said enough."""

MAX_UNPROVEN = 50
"""The same for those that only the error beside them can prove."""

MAX_RANKED = 1024
"""Groups in all: the same assertion on several ranks is one group for each."""

_DEVICE_SOURCE = re.compile(r"\.(?:cuh?|hip)$", re.IGNORECASE)


class Tally:
    """Lines counted."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclass(slots=True)
class Group:
    """One assertion at one place on one rank."""

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
    plain: Tally = field(default_factory=Tally)
    verbose: Tally = field(default_factory=Tally)
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
        """Return what is known of it by now."""
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
            count=max(self.plain.count, self.verbose.count),
            block=self.block,
            thread=self.thread,
            rank=self.rank,
            operations=row.operations if row else (),
            operand=operand,
            requirement=requirement,
            values=values or None,
            known=row is not None,
        )


_Check: TypeAlias = tuple[str, str, int | None, str | None]


class Groups:
    """Groups in order of appearance, at most ``limit`` different assertions."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._groups: dict[tuple[_Check, int | None], Group] = {}
        self._checks: dict[_Check, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def add(self, new: Group) -> Group | None:
        """Return the group that ``new`` belongs to, maybe itself; None if it is one too many.

        With too many ranks, the lines of the later ones count for the first.
        """
        check = (new.expression, new.file, new.line, new.function)
        group = self._groups.get((check, new.rank))
        if group is not None:
            return group
        first = self._checks.get(check)
        if first is None and len(self._checks) >= self._limit:
            return None
        if len(self._groups) >= MAX_RANKED:
            return first
        self._groups[check, new.rank] = new
        self._checks.setdefault(check, new)
        return new
