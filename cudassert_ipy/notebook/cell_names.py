"""Which variables a cell takes from before it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class _Reads(ast.NodeVisitor):
    """Collects names that are read before the cell has assigned them, in the order of execution."""

    def __init__(self, inert: Collection[str] = ()) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self._inert = inert

    def visit_Expr(self, node: ast.Expr) -> None:
        if _receiver(node) in self._inert and isinstance(node.value, ast.Call):
            for given in (*node.value.args, *node.value.keywords):
                self.visit(given)
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.id not in self.written:
                self.read.add(node.id)
        else:
            self.written.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if _receiver(node) in self._inert:
            self.visit(node.value)
            return  # not written either: what reads it later goes by its earlier value
        if isinstance(node.target, ast.Name) and node.target.id not in self.written:
            self.read.add(node.target.id)
        self.visit(node.value)
        self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self.visit(node.target)
        for child in (*node.body, *node.orelse):
            self.visit(child)


def names_read_first(source: str, inert: Collection[str] = ()) -> set[str]:
    """Return the names that a cell reads before it assigns them; all its words if it is no Python.

    Names that a function of an earlier cell reads are not seen.

    Args:
        source: the cell as IPython transformed it.
        inert: names of which ``name.append(…)`` and ``name += …`` are no reading: their values
            reach nothing else by it.

    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        words = "".join(c if c.isidentifier() or c.isdigit() else " " for c in source)
        return {word for word in words.split() if word.isidentifier()}
    reads = _Reads(inert)
    reads.visit(tree)
    return reads.read


_MOVING = frozenset(
    {
        "append",
        "appendleft",
        "add",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "send",
        "setdefault",
        "update",
    }
)
"""Methods of containers and generators that change them."""
_RECEIVING = frozenset({"add", "append", "appendleft", "extend", "insert", "update"})
"""Those that only put something in, where nobody takes what they return."""


def _receiver(statement: ast.stmt) -> str | None:
    """Return the name that ``statement`` only puts a value into; None if there is none."""
    if isinstance(statement, ast.AugAssign):
        return _dotted(statement.target)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return None
    called = statement.value.func
    if isinstance(called, ast.Attribute) and called.attr in _RECEIVING:
        return _dotted(called.value)
    return None


def names_moved_on(
    body: Sequence[ast.stmt], line: int, given: Sequence[str] = (), inert: Collection[str] = ()
) -> tuple[str, ...]:
    """Return what the body of a loop carries from round to round into the statement at ``line``.

    Names and attributes (``self.step``) that the body reads before it assigns them and that it
    assigns or changes somewhere, followed through its assignments. What the functions it calls
    change is not seen.

    Args:
        body: statements.
        line: of the statement asked for, as the nodes count.
        given: names that every round is given anew.
        inert: names that do not reach what is put into them: the statement at ``line`` does not go
            by ``losses`` in ``losses.append(…)`` or ``losses += …``.

    """
    first = _Reads()
    first.written.update(given)
    for statement in body:
        first.visit(statement)
    uses = [_uses(statement) for statement in body]
    reads, writes, changes = (set().union(*parts) for parts in zip(*uses, strict=True))
    attributes = {name for name in reads & writes if "." in name}
    own = {*given, *(writes - first.read)}
    carried = (first.read & writes) | attributes
    carried |= {name for name in changes if name.partition(".")[0] not in own}
    statements = [s for top in body for s in ast.walk(top) if isinstance(s, ast.stmt)]
    innermost = _at(statements, line)
    if innermost is None or not carried:
        return ()
    tainted = set(carried)
    size = -1
    while size != len(tainted):
        size = len(tainted)
        for statement in statements:
            read, written, _ = _uses(statement, deep=False)
            if read & tainted:
                tainted |= written
    if (receiver := _receiver(innermost)) is not None and receiver in inert:
        read, changed = _put_in(innermost)
    else:
        read, _, changed = _uses(innermost, deep=False)
    return tuple(sorted(carried)) if (read | changed) & tainted else ()


def _put_in(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return (read, changed in place) of what a statement puts into its receiver."""
    value: ast.expr = statement.value  # type: ignore[attr-defined]  # only those with a receiver
    given = [value]
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
        given = [*value.args, *(keyword.value for keyword in value.keywords)]
    uses = [_uses(item) for item in given]
    return set().union(*(use[0] for use in uses)), set().union(*(use[2] for use in uses))


def _at(statements: Sequence[ast.stmt], line: int) -> ast.stmt | None:
    """Return the innermost statement that holds ``line``."""
    here = [s for s in statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
    return max(here, key=lambda s: (s.lineno, -(s.end_lineno or s.lineno)), default=None)


def _uses(statement: ast.AST, *, deep: bool = True) -> tuple[set[str], set[str], set[str]]:
    """Return (read, bound, changed in place) of a statement; ``deep``: and of those inside it."""
    reads: set[str] = set()
    writes: set[str] = set()
    changes: set[str] = set()
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        children = list(ast.iter_child_nodes(node))
        if not deep:
            children = [c for c in children if not isinstance(c, ast.stmt | ast.excepthandler)]
        waiting += children
        if isinstance(node, ast.AugAssign) and (name := _dotted(node.target)):
            reads.add(name)
        if isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node)):
            (reads if isinstance(node.ctx, ast.Load) else writes).add(name)
        changed = _changed(node)
        if changed is not None and (name := _dotted(changed)):
            changes.add(name)
    return reads, writes, changes


def _changed(node: ast.AST) -> ast.expr | None:
    """Return what ``node`` changes in place; None if it does not."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr in _MOVING:
        return called.value
    if isinstance(called, ast.Name) and called.id == "next" and node.args:
        return node.args[0]
    return None


def _dotted(node: ast.expr) -> str | None:
    """Return ``a`` or ``a.b.c``; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None
