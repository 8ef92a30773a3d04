"""Integer division by zero: CPU torch raises, a GPU gives an unspecified number and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context

_DIVISIONS = frozenset(("div", "floor_divide", "remainder", "fmod", "divide"))


def divides_by_zero(func: Any, error: RuntimeError) -> bool:
    """Whether ``error`` is CPU torch's for a whole number divided by zero.

    ``ZeroDivisionError`` in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp, torch 2.4 to 2.14; the
    CUDA kernels (native/cuda/BinaryDivFloorKernel.cu, BinaryRemainderKernel.cu) check nothing.
    """
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    return str(error).startswith("ZeroDivisionError") and name in _DIVISIONS


def divide_anyway(
    context: Context, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the quotients, with all bits set where the divisor is zero; the result is a guess."""
    context.policy.remark(messages.STANDIN_ZERO_DIVISION)
    divisor = args[1]
    safe: Any = 1
    is_zero = torch.ones((), dtype=torch.bool, device="cpu")
    if isinstance(divisor, torch.Tensor):
        is_zero = divisor == 0
        safe = torch.where(is_zero, torch.ones_like(divisor), divisor)
    out = func(args[0], safe, *args[2:], **kwargs)
    return out.masked_fill_(is_zero, -1 if out.dtype.is_signed else torch.iinfo(out.dtype).max)
