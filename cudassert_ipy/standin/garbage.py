"""Results of the right shape for kernels that a device with a pending error does not run.

The operation runs on zeros of the same shapes: zeros are valid for every index, so that no CPU
kernel can meet a bad operand, and every operation has a result without a kernel for shapes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cudassert_ipy.standin.traits import Traits


def garbage(func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what ``func(*args, **kwargs)`` would have as shapes; written arguments stay as is.

    Raises ``IndexError`` or ``RuntimeError`` where even zeros are not valid (a size of 0).
    """
    if traits.written:
        written = [args[position] for position in traits.written if position < len(args)]
        returns = len(func._schema.returns)
        if returns == 0:
            return None
        if returns == len(written):
            return written[0] if returns == 1 else tuple(written)
    return func(*_zeros(args), **_zeros(kwargs))


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value, requires_grad=False)
    if type(value) in (list, tuple):
        return type(value)(_zeros(item) for item in value)
    if type(value) is dict:
        return {key: _zeros(item) for key, item in value.items()}
    return value
