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
from cudassert_ipy.replay.name_versions import versioned

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MAX_STATEMENTS: Final = 3_000
"""More are not looked at: seconds in the kernel, for cells that nobody reads."""


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
    facts = versioned(facts)
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
    """How the names of all statements hang together: groups that share objects, and who holds whom.

    A group is called by one of its names.
    """

    def __init__(self, facts: Sequence[Facts]) -> None:
        self._inert = self._never_changed(facts)
        self._parent: dict[str, str] = {}
        self._holds: list[tuple[str, str]] = []
        for fact in facts:
            for group in fact.groups:
                self._join(group)
            for name, held in fact.holds:
                if name not in self._inert:
                    self._holds += [(name, other) for other in held if other not in self._inert]
        classes = {name for fact in facts if fact.is_class for name in fact.kills}
        classes -= {name for fact in facts if not fact.is_class for name in fact.binds | fact.sets}
        for fact in facts:
            for name, maker in fact.made:
                if name in self._inert or maker in self._inert:
                    continue
                if maker in classes:  # a class does not lead to its instances
                    self._holds.append((name, maker))
                else:
                    self._join({name, maker})
        self._facts = facts
        self._index()
        # A function that changes things may put what it is given into anything that it reaches.
        while any([self._join_call(call) for fact in facts for call in self._loud_calls(fact)]):  # noqa: C419 - all of them
            self._index()

    @staticmethod
    def _never_changed(facts: Sequence[Facts]) -> set[str]:
        inert: set[str] = set()
        others: set[str] = set()
        for fact in facts:
            inert |= fact.inert
            others |= (fact.binds - fact.inert) | fact.sets
        return inert - others

    def _group(self, name: str) -> str:
        root = name
        while (above := self._parent.get(root, root)) != root:
            root = above
        while name != root:
            self._parent[name], name = root, self._parent[name]
        return root

    def _join(self, names: Iterable[str]) -> bool:
        groups = {self._group(name) for name in names if name not in self._inert}
        first = groups.pop() if groups else ""
        for other in groups:
            self._parent[other] = first
        return bool(groups)

    def _join_call(self, call: set[str]) -> bool:
        return self._join(call | self._needs_later(call) | self._binds_later(call))

    def _index(self) -> None:
        """Look up by group what is known by name."""
        self._edges: dict[str, set[str]] = {}
        self._later: dict[str, set[str]] = {}
        self._sets: dict[str, set[str]] = {}
        self._loud: set[str] = set()
        self._closures: dict[str, frozenset[str]] = {}
        for name, other in self._holds:
            self._edges.setdefault(self._group(name), set()).add(self._group(other))
        for fact in self._facts:
            if not (fact.later or fact.sets or fact.is_loud):
                continue
            for name in fact.binds | fact.shallow | fact.deep:
                group = self._group(name)
                self._later.setdefault(group, set()).update(fact.later)
                self._sets.setdefault(group, set()).update(fact.sets)
                if fact.is_loud:
                    self._loud.add(group)

    def _reach_one(self, group: str) -> frozenset[str]:
        found = self._closures.get(group)
        if found is None:
            seen, waiting = {group}, [group]
            while waiting:
                for other in self._edges.get(waiting.pop(), ()):
                    if other not in seen:
                        seen.add(other)
                        waiting.append(other)
            found = self._closures[group] = frozenset(seen)
        return found

    def _reach(self, names: Iterable[str]) -> set[str]:
        """Return the groups whose objects the names may lead to, their own included."""
        groups = {self._group(name) for name in names}
        return set().union(*map(self._reach_one, groups))

    def _needs_later(self, names: Iterable[str]) -> set[str]:
        """Return what the functions that ``names`` may lead to read when they are called."""
        found: set[str] = set()
        done: set[str] = set()
        waiting = set(names)
        while waiting:
            groups = self._reach(waiting) - done
            done |= groups
            waiting = set().union(*(self._later.get(group, ()) for group in groups)) - found
            found |= waiting
        return found

    def _binds_later(self, names: set[str]) -> set[str]:
        """Return the globals that functions bind which these names may lead to."""
        groups = self._reach(names | self._needs_later(names))
        return set().union(*(self._sets.get(group, ()) for group in groups))

    def _loud_calls(self, fact: Facts) -> list[set[str]]:
        return [call for call in fact.calls if self._reach(call) & self._loud]

    def reads(self, fact: Facts) -> set[str]:
        """Return all names that a statement may read, in functions that it calls too."""
        return fact.reads | self._needs_later(fact.reads | fact.shallow | fact.deep)

    def matters(self, fact: Facts, live: set[str]) -> bool:
        """Whether a statement may change what the names of ``live`` stand for."""
        if fact.seeds or fact.binds & live:
            return True
        if self._binds_later(fact.reads) & live:
            return True
        deep = set(fact.deep).union(*self._loud_calls(fact)) - self._inert
        shallow = {self._group(name) for name in fact.shallow - self._inert}
        if not deep and not shallow:
            return False
        reached = self._reach(live - self._inert)
        return bool((shallow | self._reach(deep)) & reached)
