"""Which variables a cell takes from before it."""

from __future__ import annotations

import ast


class _Reads(ast.NodeVisitor):
    """Collects names that are read before the cell has assigned them, in the order of execution."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()

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


def names_read_first(source: str) -> set[str]:
    """Return the names that a cell reads before it assigns them; all its words if it is no Python.

    ``source``: the cell as IPython transformed it. Names that a function of an earlier cell reads
    are not seen.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        words = "".join(c if c.isidentifier() or c.isdigit() else " " for c in source)
        return {word for word in words.split() if word.isidentifier()}
    reads = _Reads()
    reads.visit(tree)
    return reads.read
