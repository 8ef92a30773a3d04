"""Which calls and functions change what they are given, by their text."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SHALLOW: Final = frozenset(
    (
        *("append", "extend", "insert", "add", "update", "pop", "popitem", "clear", "remove"),
        *("discard", "sort", "reverse", "setdefault", "appendleft", "popleft", "extendleft"),
    )
)
"""Methods that change a container itself, not what is in it."""
DEEP: Final = frozenset(
    (
        *("to", "cuda", "cpu", "half", "float", "double", "bfloat16", "train", "eval", "apply"),
        *("step", "backward", "load_state_dict", "register_buffer", "register_parameter"),
        *("add_module", "register_module", "zero_grad", "scale", "fit", "partial_fit", "send"),
        *("next", "throw", "close", "write", "read", "readline", "seek", "execute", "__setitem__"),
    )
)
"""Methods that may change an object and what it holds."""
PURE: Final = frozenset(
    (
        *("print", "len", "isinstance", "issubclass", "type", "repr", "str", "int", "float"),
        *("range", "abs", "round", "bool", "hasattr", "display", "id", "hash", "ord", "chr"),
        *("callable", "format", "divmod", "pow"),
    )
)
"""Functions that change nothing and whose result shares nothing with what they are given."""
CONSUMING: Final = frozenset(
    (
        *("next", "iter", "list", "tuple", "set", "frozenset", "dict", "sum", "min", "max"),
        *("sorted", "any", "all", "zip", "map", "filter", "enumerate", "reversed"),
        *("setattr", "delattr", "join"),
    )
)
"""Functions that may use up an iterator, or change what they are given."""


def names_in(*nodes: ast.AST | None) -> set[str]:
    """Return the names in expressions, those in lambdas too."""
    return {
        item.id
        for node in nodes
        if node is not None
        for item in ast.walk(node)
        if isinstance(item, ast.Name)
    }


def base_of(node: ast.expr) -> ast.expr:
    """Return what attributes and indices are taken of."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node


def bases_of(node: ast.expr) -> set[str]:
    """Return the names whose object an assignment to ``node`` may change."""
    found = base_of(node)
    return {found.id} if isinstance(found, ast.Name) else names_in(found)


def flat_targets(target: ast.expr) -> Iterator[ast.expr]:
    """Yield the single targets of an assignment."""
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from flat_targets(item)
    elif isinstance(target, ast.Starred):
        yield from flat_targets(target.value)
    else:
        yield target


def is_loud(function: ast.AST) -> bool:
    """Whether a function may change objects that it did not make: parameters, globals, ``self``."""
    is_init = getattr(function, "name", "") in ("__init__", "__post_init__", "__new__")
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal | ast.Delete | ast.Yield | ast.YieldFrom):
            return True
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [item for target in node.targets for item in flat_targets(target)]
        elif isinstance(node, ast.AugAssign):
            return True
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            if not isinstance(node.iter, ast.Call) or names_in(node.iter) - PURE:
                return True
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            text = ast.unparse(call.func)
            if is_init and text in ("super().__init__", "nn.Module.__init__"):
                continue
            if not (isinstance(call.func, ast.Name) and call.func.id in PURE):
                return True
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in SHALLOW or name in CONSUMING or name in DEEP - {"to", "cuda", "cpu"}:
                return True
            if name.endswith("_") and not name.endswith("__"):
                return True
        for target in targets:
            if not isinstance(target, ast.Name) and not (is_init and bases_of(target) == {"self"}):
                return True
    return False
