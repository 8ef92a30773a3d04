"""One operand of a call, and which of its values are valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from cudassert_ipy.model import Role

Arguments: TypeAlias = "Mapping[str, Any]"
"""The arguments of a call by the names of the operator's schema, defaults filled in."""


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One operand of a call and its valid range (closed on both sides; None: no bound)."""

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
    assertions: tuple[str, ...] = ()
    """Catalogue keys of what the kernel prints, the newest first; empty: it asserts nothing.

    Without an assertion torch checks on the host, or the kernel reads or writes out of bounds.
    """
    finite: bool = False
    """Whether infinities are bad although the range has no bound there."""
    bad: Callable[[], Tensor | None] | None = None
    """Which values are bad where a range cannot say it: order, sums, counts, ends.

    A boolean tensor of the operand's shape, or None for none. With bounds it is asked only about
    values outside them, and has the last word; without bounds it is always asked.
    """
    operation: str = ""
    """The user's name for the operation, where it depends on the arguments."""


def is_integral(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers; masks do not."""
    import torch

    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def counts_up(tensor: Tensor) -> bool:
    """Whether whole numbers go up by one along the last dimension, as positions do."""
    if not is_integral(tensor) or tensor.dim() == 0 or tensor.shape[-1] < 2:
        return False
    data = tensor.detach()
    return bool((data[..., 1:] - data[..., :-1] == 1).all())


def is_rule(operand: Operand) -> bool:
    """Whether no range says what must hold of the operand, but only its ``requirement``."""
    return operand.bad is not None and operand.low is None and operand.high is None


def size_along(tensor: Tensor, dimension: int) -> int:
    """Return the size of a dimension; a tensor without dimensions counts as one of size 1."""
    sizes = tuple(tensor.shape) or (1,)
    return sizes[dimension]
