"""What the user wrote for an operand, found by identity and without running any user code.

The call or index expression at the frame's current instruction is parsed; each part of it that is
made of names, attributes and constant subscripts is looked up in the frame's variables, and the one
that *is* the operand names it, or the container that holds it.
"""

from __future__ import annotations

import ast
import functools
import linecache
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudassert_ipy.checks.variables import MISSING, Variables, tensors_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from torch import Tensor

    from cudassert_ipy.checks.frames import Span

_SOURCE_LIMIT = 500_000
_METHODS = frozenset(
    (
        *("gather", "scatter", "scatter_add", "scatter_reduce", "take", "take_along_dim"),
        *("index_select", "index_add", "index_copy", "index_fill"),
    )
)
"""Methods that take their operands as the function of that name does, after the tensor itself."""


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
        variables = Variables(frame.f_locals, frame.f_globals, frame.f_builtins)
        for part in _parts(node):
            value = variables.value(part)
            if matches(value):
                return Expression(ast.get_source_segment(text, part), value)
        argument = _argument_of(node, operand, variables)
        if argument is not None:
            return Expression(ast.get_source_segment(text, argument))
        for name, tensor in _given(node, text, callee, variables):
            if matches(tensor):
                return Expression(name, tensor)
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


def _argument_of(node: ast.expr, operand: str, variables: Variables) -> ast.expr | None:
    """Return the argument that must be ``operand`` by the signature of what is called."""
    if isinstance(node, ast.Subscript):
        certain = operand == "index" and not isinstance(node.slice, ast.Tuple | ast.Slice)
        return node.slice if certain else None
    if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    position = _positions().get(_callable_key(variables.value(node.func)), {}).get(operand)
    if position is None:
        position = _method_position(node.func, operand, variables)
    if position is None:
        return None
    for keyword in node.keywords:
        if keyword.arg == operand:
            return keyword.value
    return node.args[position] if position < len(node.args) else None


def given_tensors(
    frame: FrameType, span: Span, callee: FrameType | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that the call at the current instruction was given, as the user wrote them.

    Those in containers too: ``model(**batch)`` gives ``batch["input_ids"]``.
    """
    tree, text = _parse(frame.f_code.co_filename) or (None, "")
    node = None if tree is None else _node_at(tree, span)
    if node is not None:
        variables = Variables(frame.f_locals, frame.f_globals, frame.f_builtins)
        yield from _given(node, text, callee, variables)


def _given(
    node: ast.expr, text: str, callee: FrameType | None, variables: Variables
) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(node, ast.Call):
        return
    arguments = [a.value if isinstance(a, ast.Starred) else a for a in node.args]
    for part in (*arguments, *(keyword.value for keyword in node.keywords)):
        yield from tensors_inside(ast.get_source_segment(text, part) or "", variables.value(part))
    for name, value in _received(node, text, callee, variables):
        yield from tensors_inside(name, value)


_MODULE_CALLS = (
    ("torch.nn.modules.module", "_wrapped_call_impl"),
    ("torch._dynamo.eval_frame", "__call__"),
)


def _received(
    node: ast.Call, text: str, callee: FrameType | None, variables: Variables
) -> Iterator[tuple[str, Any]]:
    """Yield the values of the arguments as torch's frame for the call received them.

    ``Module._wrapped_call_impl(self, *args, **kwargs)``, ``OptimizedModule.__call__`` of
    ``torch.compile`` (both seen in torch 2.1 to 2.14) and the wrapper
    that ``torch.no_grad`` and the like put around a function (``decorate_context(*args, **kwargs)``
    of torch/utils/_contextlib.py, seen in 2.1 to 2.14; ``generate`` of transformers has it) do not
    rebind their arguments. Nothing is yielded unless it was this call that called them.
    """
    if callee is None:
        return
    given = callee.f_locals
    values, named = given.get("args"), given.get("kwargs")
    if type(values) is not tuple or type(named) is not dict:
        return
    place = (callee.f_globals.get("__name__"), callee.f_code.co_name)
    if place in _MODULE_CALLS:
        called = variables.value(node.func)
        if called is MISSING:
            # `nn.CrossEntropyLoss()(…)`, `emb.to(device)(…)`, `layers[2](…)`
            made_here = isinstance(node.func, ast.Call | ast.Subscript)
            if not made_here or not _fits(node, values, named, variables):
                return
        elif "self" not in given or called is not given["self"]:
            return
    elif place == ("torch.utils._contextlib", "decorate_context"):
        if getattr(node.func, "attr", None) != getattr(given.get("func"), "__name__", ""):
            return
    else:
        return
    function = ast.get_source_segment(text, node.func) or ""
    if not any(isinstance(argument, ast.Starred) for argument in node.args):
        # The first of a method's arguments is the object itself.
        for argument, value in zip(node.args[::-1], values[::-1], strict=False):
            yield ast.get_source_segment(text, argument) or "", value
    written = {keyword.arg: keyword.value for keyword in node.keywords}
    for name, value in named.items():
        if name in written:
            yield ast.get_source_segment(text, written[name]) or "", value
        elif None in written:
            yield f"{function}({name}=...)", value


def _fits(
    node: ast.Call, values: tuple[Any, ...], named: dict[str, Any], variables: Variables
) -> bool:
    """Whether a call was made with just these arguments, as far as their values are known.

    Else something in C may have been called, and have called the module with others.
    """
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return False
    written = {keyword.arg: keyword.value for keyword in node.keywords}
    if len(node.args) != len(values) or set(written) != set(named):
        return False
    pairs = [*zip(node.args, values, strict=True), *((written[key], named[key]) for key in named)]
    known = ((variables.value(part), value) for part, value in pairs)
    return all(seen is MISSING or seen is value for seen, value in known)


def _method_position(function: ast.expr, operand: str, variables: Variables) -> int | None:
    """Return the position of ``operand`` in a method of a plain tensor (``x.index_add_(…)``)."""
    import torch

    if not isinstance(function, ast.Attribute):
        return None
    name = function.attr.removesuffix("_")
    if name not in _METHODS or type(variables.value(function.value)) not in (
        torch.Tensor,
        torch.nn.Parameter,
    ):
        return None
    position = _positions().get(getattr(torch, name, None), {}).get(operand)
    return position - 1 if position else None  # the tensor itself is no argument of the method


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
