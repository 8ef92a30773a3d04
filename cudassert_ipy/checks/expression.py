"""What the user wrote for an operand, found by identity and without running any user code.

The call or index expression at the frame's current instruction is parsed; each part of it that is
made of names, attributes and constant subscripts is looked up in the frame's variables, and the one
that *is* the operand names it. Only builtin containers and plain instance dictionaries are read:
properties, ``__getattr__`` and ``__getitem__`` of user classes are never called.
"""

from __future__ import annotations

import ast
import collections
import functools
import linecache
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from cudassert_ipy.checks.frames import Span

_MISSING = object()
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_SOURCE_LIMIT = 500_000


@dataclass(frozen=True, slots=True)
class Expression:
    """The text of an expression, and its value where the value was found."""

    text: str | None
    value: Any = None


def find_expression(
    frame: FrameType,
    span: Span,
    matches: Callable[[Any], bool],
    operand: str,
    callee: FrameType | None = None,
) -> Expression | None:
    """Return the expression whose value ``matches``; None where that is not certain.

    ``operand`` is the operation's name for it: where the operand was a temporary (``ids.cuda()``),
    its text is still certain if the call is one whose signature says which argument it was, or if
    ``callee``, the frame that ``frame`` called, is a module that was given this very value.
    """
    tree, text = _parse(frame.f_code.co_filename) or (None, "")
    node = None if tree is None else _node_at(tree, span)
    if node is not None:
        variables = _Variables(frame.f_locals, frame.f_globals, frame.f_builtins)
        for part in _parts(node):
            value = variables.value(part)
            if matches(value):
                return Expression(ast.get_source_segment(text, part), value)
        argument = _argument_of(node, operand, variables)
        if argument is not None:
            return Expression(ast.get_source_segment(text, argument))
        for argument, value in _given_to_module(node, callee, variables):
            if matches(value):
                return Expression(ast.get_source_segment(text, argument), value)
    # Without the source (or its columns) a variable that is the operand still names it.
    for name, value in frame.f_locals.items():
        if not name.startswith(("_", ".")) and matches(value):
            return Expression(name, value)
    return None


def _parse(filename: str) -> tuple[ast.AST, str] | None:
    text = "".join(linecache.getlines(filename))
    return _parse_text(text) if 0 < len(text) < _SOURCE_LIMIT else None


@functools.lru_cache(maxsize=32)
def _parse_text(text: str) -> tuple[ast.AST, str] | None:
    try:
        return ast.parse(text), text
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # A cell with magics that IPython had not translated, or a file changed since its import.
        return None


def _node_at(tree: ast.AST, span: Span) -> ast.expr | None:
    """Return the expression that starts and ends exactly where the instruction's source does."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.expr)
            and (node.lineno, node.end_lineno) == (span.line, span.end_line)
            and (node.col_offset, node.end_col_offset) == span.byte_columns
        ):
            return node
    return None


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the arguments or indices of ``node`` first, then everything inside it."""
    if isinstance(node, ast.Call):
        yield from node.args
        yield from (keyword.value for keyword in node.keywords)
    elif isinstance(node, ast.Subscript):
        yield from node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    yield from (item for item in ast.walk(node) if isinstance(item, ast.expr))


def _argument_of(node: ast.expr, operand: str, variables: _Variables) -> ast.expr | None:
    """Return the argument that must be ``operand`` by the signature of what is called."""
    if isinstance(node, ast.Subscript):
        certain = operand == "index" and not isinstance(node.slice, ast.Tuple | ast.Slice)
        return node.slice if certain else None
    if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    position = _positions().get(_callable_key(variables.value(node.func)), {}).get(operand)
    if position is None:
        return None
    for keyword in node.keywords:
        if keyword.arg == operand:
            return keyword.value
    return node.args[position] if position < len(node.args) else None


def _given_to_module(
    node: ast.expr, callee: FrameType | None, variables: _Variables
) -> Iterator[tuple[ast.expr, Any]]:
    """Yield the arguments of ``module(...)`` with their values, read from torch's frame for it.

    ``Module._wrapped_call_impl(self, *args, **kwargs)`` (seen in torch 2.1 to 2.14) does not rebind
    its arguments. Nothing is yielded unless it was this call that called it, and the module itself.
    """
    if callee is None or not isinstance(node, ast.Call):
        return
    if callee.f_code.co_name != "_wrapped_call_impl" or not _is_of_module(callee):
        return
    given = callee.f_locals
    if "self" not in given or variables.value(node.func) is not given["self"]:
        return
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return
    yield from zip(node.args, given.get("args", ()), strict=False)
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg in given.get("kwargs", {}):
            yield keyword.value, given["kwargs"][keyword.arg]


def _is_of_module(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "torch.nn.modules.module"


def _callable_key(value: Any) -> Any:
    return (
        value if isinstance(value, types.FunctionType | types.BuiltinFunctionType) else type(value)
    )


@functools.cache
def _positions() -> dict[Any, dict[str, int]]:
    """Positions of the checked operands in the calls that users make (torch documentation)."""
    import torch

    nn, functional = torch.nn, torch.nn.functional
    table: tuple[tuple[dict[str, int], tuple[Any, ...]], ...] = (
        ({"index": 2}, (torch.gather, torch.scatter, torch.scatter_add, torch.scatter_reduce)),
        ({"index": 2}, (torch.index_select, torch.index_add, torch.index_copy, torch.index_fill)),
        ({"index": 1}, (torch.take,)),
        ({"indices": 1}, (torch.take_along_dim,)),
        ({"input": 0}, (nn.Embedding, functional.embedding)),
        ({"input": 0, "offsets": 1}, (nn.EmbeddingBag,)),
        ({"tensor": 0}, (functional.one_hot,)),
        ({"input": 0}, (torch.multinomial, torch.bernoulli, torch.poisson, torch.bincount)),
        ({"input": 0, "target": 1}, (nn.BCELoss, functional.binary_cross_entropy)),
        ({"target": 1}, (nn.CrossEntropyLoss, functional.cross_entropy)),
        ({"target": 1}, (nn.NLLLoss, functional.nll_loss)),
        ({"target": 1}, (nn.MultiMarginLoss, functional.multi_margin_loss)),
        ({"target": 1}, (nn.MultiLabelMarginLoss, functional.multilabel_margin_loss)),
        ({"targets": 1}, (nn.CTCLoss, functional.ctc_loss)),
    )
    return {call: positions for positions, calls in table for call in calls}


class _Variables:
    """Values of expressions in a frame, by reading only."""

    def __init__(self, *scopes: Mapping[str, Any]) -> None:
        self._scopes = scopes

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return next((s[node.id] for s in self._scopes if node.id in s), _MISSING)
        if isinstance(node, ast.Attribute):
            return _attribute(self.value(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return _item(self.value(node.value), self._key(node.slice))
        return _MISSING

    def _key(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._key(node.operand)
            return -inner if type(inner) is int else _MISSING
        value = self.value(node) if isinstance(node, ast.Name) else _MISSING
        return value if type(value) in (int, str) else _MISSING


def _attribute(owner: Any, name: str) -> Any:
    if owner is _MISSING:
        return _MISSING
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, _MISSING)
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        own = {}
    if type(own) is not dict:
        own = {}
    for kind in type(owner).__mro__:
        descriptor = vars(kind).get(name, _MISSING)
        if isinstance(descriptor, types.MemberDescriptorType):
            return _read_descriptor(descriptor, owner)
        if type(descriptor).__name__ == "_tuplegetter" and isinstance(owner, tuple):
            return _read_descriptor(descriptor, owner)
        if descriptor is not _MISSING and hasattr(type(descriptor), "__set__"):
            return _MISSING
    if name in own:
        return own[name]
    for table in _MODULE_TABLES:
        entries: Any = own.get(table)
        if type(entries) in (dict, collections.OrderedDict) and name in entries:
            return entries[name]
    return _MISSING


def _read_descriptor(descriptor: Any, owner: Any) -> Any:
    try:
        return descriptor.__get__(owner, type(owner))
    except AttributeError:
        return _MISSING


def _item(owner: Any, key: Any) -> Any:
    if key is _MISSING or type(key) not in (int, str):
        return _MISSING
    if isinstance(owner, collections.UserDict):
        owner = vars(owner).get("data", _MISSING)
    reader = next((kind for kind in (dict, list, tuple) if isinstance(owner, kind)), None)
    if reader is None or type(owner).__getitem__ is not reader.__getitem__:
        return _MISSING
    try:
        return reader.__getitem__(owner, key)
    except (KeyError, IndexError, TypeError):
        return _MISSING
