"""Which statements of the recorded cells a failing one needs, by data flow.

Backward over all statements, from the failing one. Sharing of objects between names is followed
without regard to order, so that a change through another name is kept; what a function reads when
it is called counts where it is called. The result is a guess that must be run to be believed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cudassert_ipy.replay.dataflow import Facts, facts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MAX_STATEMENTS: Final = 20_000


class CannotSliceError(ValueError):
    """The cells cannot be cut; the message names what stands in the way."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One top-level statement of a cell: its place in the list of cells, text and first line."""

    cell: int
    node: ast.stmt
    text: str
    line: int


def statements(sources: Sequence[str]) -> list[Statement]:
    """Return the top-level statements of cells that are plain Python.

    Raises ``SyntaxError`` for a cell that is not.
    """
    found = []
    for number, source in enumerate(sources):
        lines = source.splitlines(keepends=True)
        for node in ast.parse(source).body:
            decorators = getattr(node, "decorator_list", ())
            first = min([node.lineno, *(item.lineno for item in decorators)])
            text = ast.get_source_segment(source, node) or ast.unparse(node)
            if first < node.lineno:
                text = "".join(lines[first - 1 : node.lineno - 1]) + text
            found.append(Statement(number, node, text, first))
    return found


def needed(items: Sequence[Statement], targets: Collection[int]) -> list[Statement]:
    """Return what must run for the statements ``targets`` to do what they did, with themselves.

    Raises :class:`CannotSliceError` where names come and go unseen (``import *``, ``exec``).
    """
    last = max(targets)
    if last >= MAX_STATEMENTS:
        raise CannotSliceError("too many statements")  # noqa: EM101
    facts = [facts_of(item.node) for item in items[: last + 1]]
    for fact in facts:
        if fact.opaque is not None:
            raise CannotSliceError(fact.opaque)
    flow = _Flow(facts)
    live: set[str] = set()
    kept = []
    for number in range(last, -1, -1):
        fact = facts[number]
        if number not in targets and not flow.matters(fact, live):
            continue
        kept.append(number)
        if not fact.is_import:
            live -= fact.kills
        live |= flow.reads(fact)
    return [items[number] for number in reversed(kept)]


class _Flow:
    """How the names of all statements hang together."""

    def __init__(self, facts: Sequence[Facts]) -> None:
        self._inert = self._never_changed(facts)
        self._reach: dict[str, set[str]] = {}
        self._later: dict[str, set[str]] = {}
        self._sets: dict[str, set[str]] = {}
        self._loud: set[str] = set()
        self._closures: dict[str, frozenset[str]] = {}
        for fact in facts:
            for group in fact.groups:
                self._link_all(group)
            for name, held in fact.holds:
                self._link(name, held)
            outs = fact.binds | fact.shallow | fact.deep
            for name in outs:
                if fact.later:
                    self._later.setdefault(name, set()).update(fact.later)
                if fact.sets:
                    self._sets.setdefault(name, set()).update(fact.sets)
                if fact.is_loud:
                    self._loud.add(name)
        # A loud function may put anything that it is given into anything that it reaches.
        changed = True
        while changed:
            changed = False
            self._closures.clear()
            for fact in facts:
                for call in self._loud_calls(fact):
                    later = (self._needs_later(name) for name in call)
                    reached = call | self._binds_later(call) | set().union(*later)
                    changed = self._link_all(reached) or changed
                    self._closures.clear()

    @staticmethod
    def _never_changed(facts: Sequence[Facts]) -> set[str]:
        inert: set[str] = set()
        others: set[str] = set()
        for fact in facts:
            inert |= fact.inert
            others |= (fact.binds - fact.inert) | fact.sets
        return inert - others

    def _link_all(self, names: set[str]) -> bool:
        return any([self._link(name, names) for name in names])  # noqa: C419 - all of them

    def _link(self, name: str, others: Iterable[str]) -> bool:
        if name in self._inert:
            return False
        known = self._reach.setdefault(name, {name})
        before = len(known)
        known.update(other for other in others if other not in self._inert)
        return len(known) > before

    def reach(self, name: str) -> frozenset[str]:
        """Return the names whose objects ``name`` may lead to, itself included."""
        found = self._closures.get(name)
        if found is None:
            seen, waiting = {name}, [name]
            while waiting:
                for other in self._reach.get(waiting.pop(), ()):
                    if other not in seen:
                        seen.add(other)
                        waiting.append(other)
            found = self._closures[name] = frozenset(seen)
        return found

    def _reach_all(self, names: Iterable[str]) -> set[str]:
        return set().union(*(self.reach(name) for name in names))

    def _needs_later(self, name: str) -> set[str]:
        """Return what the functions that ``name`` may lead to read when they are called."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            for other in self.reach(waiting.pop()):
                for read in self._later.get(other, ()):
                    if read not in found:
                        found.add(read)
                        waiting.append(read)
        return found

    def _binds_later(self, names: Iterable[str]) -> set[str]:
        """Return the globals that functions bind which these names may lead to."""
        called = set(names).union(*(self._needs_later(name) for name in names))
        return set().union(*(self._sets.get(other, ()) for other in self._reach_all(called)))

    def _loud_calls(self, fact: Facts) -> list[set[str]]:
        return [call for call in fact.calls if self._reach_all(call) & self._loud]

    def reads(self, fact: Facts) -> set[str]:
        """Return all names that a statement may read, in functions that it calls too."""
        names = set(fact.reads)
        used = fact.reads | fact.shallow | fact.deep
        return names.union(*(self._needs_later(name) for name in used))

    def matters(self, fact: Facts, live: set[str]) -> bool:
        """Whether a statement may change what the names of ``live`` stand for."""
        if fact.seeds or fact.binds & live:
            return True
        if self._sets and self._binds_later(fact.reads) & live:
            return True
        deep = set(fact.deep).union(*self._loud_calls(fact))
        if not deep and not fact.shallow:
            return False
        reached = self._reach_all(live)
        if (fact.shallow - self._inert) & reached:
            return True
        changed = self._reach_all(deep - self._inert)
        return bool((changed - self._inert) & reached)
