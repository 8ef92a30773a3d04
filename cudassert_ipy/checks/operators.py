"""The one table of operations that a CUDA kernel can assert in, and what their operands must be.

The guard, the replay and the simulator read it; an operation is found by one dictionary lookup on
its ``OpOverload``. Which user call reaches which overload, and in which state the operand is then
(negative indices not wrapped yet, ``ignore_index`` an argument), was observed with a
``TorchDispatchMode`` on torch 2.13 and 2.14.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor

    from cudassert_ipy.model import Role

Arguments: TypeAlias = "Mapping[str, Any]"
"""The arguments of a call by the names of the operator's schema, defaults filled in."""


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One operand of a call and its valid range (closed on both sides)."""

    tensor: Tensor
    name: str
    """The operation's name for it, e.g. ``input``."""
    role: Role
    low: int | float | None
    high: int | float | None
    special: tuple[int | float, ...] = ()
    requirement: str = ""
    position: int | None = None
    """For ``x[a, b]``: which of the indices this is."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operation whose kernel asserts on bad operands."""

    name: str
    """The user's name, e.g. ``torch.nn.functional.embedding``."""
    aten: str
    operands: Callable[[Arguments], Iterable[Operand]]
    assertion_key: Callable[[Arguments], str]
    """The row of the assertion catalogue whose text its kernel prints."""
    family: str
    """Which hints apply: ``embedding``, ``index``, ``target`` or ``gather``."""
    also: str = ""
    """Another function of the user's that reaches it."""
    names: tuple[str, ...] = ()
    defaults: Mapping[str, Any] | None = None

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call by name."""
        return {**(self.defaults or {}), **dict(zip(self.names, args, strict=False)), **kwargs}


def lookup(func: Any) -> Operator | None:
    """Return the row for an ``OpOverload``, or None for operations that cannot assert."""
    return table().get(func)


@functools.cache
def table() -> dict[Any, Operator]:
    """Return all rows by ``OpOverload``; overloads that this torch does not have are left out."""
    rows = {}
    for entry in _ENTRIES:
        for aten in entry.atens:
            func = _overload(aten)
            if func is None:
                continue
            arguments = func._schema.arguments
            rows[func] = Operator(
                name=entry.name,
                aten=aten,
                operands=entry.operands,
                assertion_key=entry.assertion_key,
                family=entry.family,
                also=entry.also,
                names=tuple(item.name for item in arguments),
                defaults={i.name: i.default_value for i in arguments if i.has_default_value()},
            )
    return rows


def _overload(aten: str) -> Any:
    """Return ``torch.ops.<namespace>.<name>.<overload>``, or None in a torch without it."""
    import torch

    namespace, _, rest = aten.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return getattr(packet, overload or "default", None)


# What torch itself refuses before any kernel (wrong dtypes, missing or empty dimensions) has no
# operand here: its own error says more.


def _embedding(arguments: Arguments) -> Iterable[Operand]:
    weight, indices = arguments["weight"], arguments["indices"]
    if weight.dim() and _holds_integers(indices):
        rows = weight.shape[0]
        requirement = "0 <= input < num_embeddings"
        yield Operand(indices, "input", "index", 0, rows - 1, (), requirement)


def _along_dimension(arguments: Arguments) -> Iterable[Operand]:
    source, index, dimension = arguments["self"], arguments["index"], arguments["dim"]
    sizes = tuple(source.shape) or (1,)
    if -len(sizes) <= dimension < len(sizes) and _holds_integers(index):
        requirement = "0 <= index < size of the indexed dimension"
        yield Operand(index, "index", "index", 0, sizes[dimension] - 1, (), requirement)


def _advanced_index(arguments: Arguments) -> Iterable[Operand]:
    import torch

    operands = []
    sizes = list(arguments["self"].shape)
    dimension = 0
    for position, index in enumerate(arguments["indices"]):
        if index is None:
            dimension += 1
            continue
        is_mask = index.dtype in (torch.bool, torch.uint8)
        last = dimension + (index.dim() if is_mask else 1)
        if last > len(sizes) or not _holds_integers(index):
            return
        if not is_mask:
            size = sizes[dimension]
            if size == 0:
                return
            requirement = "-size <= index < size of the indexed dimension"
            operand = Operand(index, "index", "index", -size, size - 1, (), requirement, position)
            operands.append(operand)
        sizes[dimension:last] = [index.numel()] * (last - dimension)
        dimension = last
    if 0 not in sizes:  # a result without elements needs no kernel: any index will do
        yield from operands


def _target(arguments: Arguments) -> Iterable[Operand]:
    scores, target = arguments["self"], arguments["target"]
    if not scores.dim() or not _holds_integers(target):
        return
    classes = scores.shape[0] if scores.dim() == 1 else scores.shape[1]
    ignore_index = arguments["ignore_index"]
    special = () if 0 <= ignore_index < classes else (ignore_index,)
    requirement = "0 <= target < number of classes, or target == ignore_index"
    yield Operand(target, "target", "target", 0, classes - 1, special, requirement)


def _holds_integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _target_key(arguments: Arguments) -> str:
    return "nll_loss" if arguments["reduction"] else "nll_loss_no_reduce"


def _target_2d_key(arguments: Arguments) -> str:
    return "nll_loss2d" if arguments["reduction"] else "nll_loss2d_no_reduce"


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    family: str
    atens: tuple[str, ...]
    operands: Callable[[Arguments], Iterable[Operand]]
    assertion_key: Callable[[Arguments], str]
    also: str = ""


_ENTRIES = (
    _Entry(
        "torch.nn.functional.embedding",
        "embedding",
        ("aten::embedding.default",),
        _embedding,
        lambda _: "embedding",
    ),
    _Entry(
        "x[index]",
        "index",
        ("aten::index.Tensor", "aten::_unsafe_index.Tensor"),
        _advanced_index,
        lambda _: "index",
    ),
    _Entry(
        "x[index] = value",
        "index",
        (
            "aten::index_put_.default",
            "aten::_index_put_impl_.default",
            "aten::index_put.default",
            "aten::_unsafe_index_put.default",
        ),
        _advanced_index,
        lambda _: "index",
    ),
    _Entry(
        "torch.nn.functional.cross_entropy",
        "target",
        ("aten::nll_loss_forward.default",),
        _target,
        _target_key,
        "torch.nn.functional.nll_loss",
    ),
    _Entry(
        "torch.nn.functional.cross_entropy",
        "target",
        ("aten::nll_loss2d_forward.default",),
        _target,
        _target_2d_key,
        "torch.nn.functional.nll_loss",
    ),
    _Entry(
        "torch.index_select",
        "gather",
        ("aten::index_select.default",),
        _along_dimension,
        lambda _: "embedding",
    ),
)
