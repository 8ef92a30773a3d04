"""Moving tensors between the CPU and the stand-in device, with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.standin.tags import tag_of

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.standin.context import Context

_to = torch._C.TensorBase.to


def move(
    context: Context,
    tensor: Tensor,
    index: int | None,
    *,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """Return a copy of ``tensor`` on another device (``index`` None: on the CPU).

    A blocking copy waits for the device, where CUDA reports errors; so does every copy to ordinary
    (not pinned) CPU memory.
    """
    source = tag_of(tensor)
    if index is None or not non_blocking:
        context.initialized = True
        context.policy.synchronize()
    context.use()
    if index is None:
        context.policy.copied_to_host(tensor)
    substitute = source is not None and source.substitute
    plan = (context, index, source.device_index if source else None, substitute)
    if torch.is_grad_enabled() and tensor.requires_grad:
        moved: Tensor = ToCopy.apply(tensor, plan)
    else:
        moved = _copy(tensor, plan)
    if dtype is not None and dtype != moved.dtype:
        moved = _to(moved, dtype)
    if memory_format not in (None, torch.preserve_format):
        moved = moved.contiguous(memory_format=memory_format)
    return moved


def _copy(tensor: Tensor, plan: tuple[Any, ...]) -> Tensor:
    context, index, _, substitute = plan
    if index is not None:
        context.policy.reserve(tensor.numel() * tensor.element_size())
    with torch._C.DisableTorchFunction():
        moved = tensor.detach().clone()
    context.place(moved, index, substitute=substitute)
    return moved


class ToCopy(torch.autograd.Function):
    """The copy, seen by autograd: its gradient goes back to where the tensor came from."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, plan: tuple[Any, ...]) -> Tensor:
        """Copy to the device that ``plan`` names."""
        return _copy(tensor, plan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        """Remember the way back."""
        context, index, origin, substitute = inputs[1]
        ctx.back = (context, origin, index, substitute)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Copy the gradient back."""
        context, origin, _, _ = ctx.back
        return move(context, gradient, origin), None
