"""Tell apart what a name stood for at different times, so that a reused name joins nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cudassert_ipy.replay.dataflow import Facts


def versioned(facts: Sequence[Facts]) -> list[Facts]:
    """Return the facts with ``name@n`` for names, counted on where a name is bound for certain.

    What a function reads or binds when it is called may be any version: it becomes all of them.
    """
    last: dict[str, int] = {}
    for fact in facts:
        for name in _killed(fact):
            last[name] = last.get(name, 0) + 1
    now: dict[str, int] = {}
    found = []
    for fact in facts:
        before = dict.fromkeys(_killed(fact))
        for name in before:
            before[name] = now.get(name, 0)
            now[name] = now.get(name, 0) + 1
        found.append(_versioned(fact, before, now, last))
    return found


def _killed(fact: Facts) -> set[str]:
    return set() if fact.is_import else fact.kills


def _versioned(
    fact: Facts, before: dict[str, int | None], now: dict[str, int], last: dict[str, int]
) -> Facts:
    def old(names: Iterable[str]) -> set[str]:
        return {f"{name}@{before[name] if name in before else now.get(name, 0)}" for name in names}

    def new(names: Iterable[str]) -> set[str]:
        return {f"{name}@{now.get(name, 0)}" for name in names}

    def both(names: Iterable[str]) -> set[str]:
        names = set(names)
        return new(names) | old(names & fact.reads)

    def every(names: Iterable[str]) -> set[str]:
        return {f"{name}@{n}" for name in names for n in range(last.get(name, 0) + 1)}

    def group(names: set[str]) -> set[str]:
        return both(names - fact.later) | every(names & fact.later)

    return replace(
        fact,
        binds=new(fact.binds),
        kills=new(fact.kills),
        reads=old(fact.reads),
        later=every(fact.later),
        sets=every(fact.sets),
        shallow=both(fact.shallow),
        deep=both(fact.deep),
        groups=[group(names) for names in fact.groups],
        holds=[(one, group(held)) for name, held in fact.holds for one in both({name})],
        made=[(a, b) for one, by in fact.made for a in both({one}) for b in old({by})],
        calls=[old(names) | every(names & fact.later) for names in fact.calls],
        inert=new(fact.inert),
    )
