"""The loop around a line, found in the source that a frame was compiled from."""

from __future__ import annotations
import __future__

import ast
import linecache
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

Loop: TypeAlias = ast.For | ast.While
SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
"""Nodes whose code is not that of the function around them."""
_SOURCE_LIMIT = 500_000


@dataclass(slots=True)
class Place:
    """A loop in its scope: what stands around it."""

    loop: Loop
    scope: ast.Module | ast.FunctionDef
    around: list[ast.stmt] = field(default_factory=list)


def is_module(code: CodeType) -> bool:
    """Whether ``code`` is a cell's or a file's own, not that of a function."""
    return code.co_name == "<module>" or code.co_name.startswith("<cell line")


def find_loop(code: CodeType, line: int) -> Place | None:
    """Return the innermost loop of the function (or module) ``code`` that holds ``line``."""
    text = "".join(linecache.getlines(code.co_filename))
    if not 0 < len(text) < _SOURCE_LIMIT:
        return None
    try:
        tree = ast.parse(text)
        scope = tree if is_module(code) else _function(tree, code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if scope is None:
        return None
    path = _path(scope, line)
    loops = [n for n, node in enumerate(path) if isinstance(node, ast.For | ast.While)]
    if not loops or any(isinstance(node, ast.AsyncFor | ast.AsyncWith) for node in path):
        return None
    loop = path[loops[-1]]
    return Place(cast("Loop", loop), scope, path[: loops[-1]])


def _function(tree: ast.Module, code: CodeType) -> ast.FunctionDef | None:
    """Return the definition that ``code`` was compiled from; None if the source has changed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            if first == code.co_firstlineno and _is_compiled_from(tree, code):
                return node
    return None


def _is_compiled_from(tree: ast.Module, code: CodeType) -> bool:
    """Whether compiling ``tree`` gives ``code`` again: a module's file may have been edited."""
    whole = compile(tree, code.co_filename, "exec", flags=compiler_flags(code), dont_inherit=True)
    waiting = [whole]
    while waiting:
        for item in waiting.pop().co_consts:
            if isinstance(item, type(code)):
                if item.co_qualname == code.co_qualname and item.co_code == code.co_code:
                    return item.co_firstlineno == code.co_firstlineno
                waiting.append(item)
    return False


def compiler_flags(code: CodeType) -> int:
    """Return the ``from __future__`` imports and top-level ``await`` that ``code`` was made with.

    ``CO_FUTURE_…`` and ``PyCF_…`` are the same bits (Include/cpython/code.h).
    """
    mask = 0
    for name in __future__.all_feature_names:
        mask |= getattr(__future__, name).compiler_flag
    return (code.co_flags & mask) | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def _path(scope: ast.AST, line: int) -> list[ast.stmt]:
    """Return the statements of ``scope`` that hold ``line``, the outermost first."""
    path: list[ast.stmt] = []
    node: ast.AST | None = scope
    while node is not None:
        node = next(
            (
                child
                for child in _statements(node)
                if child.lineno <= line <= (child.end_lineno or child.lineno)
                and not isinstance(child, SCOPES)
            ),
            None,
        )
        if isinstance(node, ast.stmt):
            path.append(node)
    return path


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.excepthandler | ast.match_case):
            yield from _statements(child)
