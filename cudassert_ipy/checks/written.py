"""What the user wrote for an operand, also where torch reshaped it on the way to its kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from cudassert_ipy.checks.location import running

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.checks.location import SourceLocation, Written
    from cudassert_ipy.checks.operators import Operand, Operator


def written_for(operator: Operator, operand: Operand, location: SourceLocation) -> Written:
    """Return the expression for ``operand`` and its shape as the user knows it."""
    return location.written_for(_given(operator, operand), operand.name)


def _given(operator: Operator, operand: Operand) -> Tensor:
    """Return the target as torch's loss function was given it, or else the operand's own tensor.

    The loss of (N, C, d1, ...) scores hands its kernel a contiguous (N, 1, d1 * ...) target
    (``cross_entropy_loss`` and ``nll_loss_nd`` of ATen/native/LossNLL.cpp, seen in 2.13). The
    Python function of torch between the user and the kernel still holds what it was given.
    """
    import torch

    seen = operand.tensor
    if operand.role != "target":
        return seen
    for function in (*(caller.function for caller in operator.also), operator.name):
        frame = running(function)
        given: Any = None if frame is None else frame.f_locals.get(operand.name)
        if issubclass(type(given), torch.Tensor) and _is_reshaped(given, seen):
            return cast("Tensor", given)
    return seen


def _is_reshaped(given: Tensor, seen: Tensor) -> bool:
    """Whether ``seen`` is ``given`` with all dimensions but the first merged into (1, rest)."""
    import torch

    try:
        if given.dim() < 2 or seen.dim() != 3 or given.numel() != seen.numel():
            return False
        if seen.shape[:2] != (given.shape[0], 1):
            return False
        # A library may have changed the target on the way; values in the same order settle it.
        return torch.equal(given.detach().reshape(-1), seen.detach().reshape(-1))
    except (RuntimeError, NotImplementedError, TypeError):
        # Nested, functorch and foreign tensors: what the operation saw is shown.
        return False
