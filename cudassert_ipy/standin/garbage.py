"""Results of the right shape for kernels that a device with a pending error does not run.

The operation runs on zeros of the same shapes, which are valid for every index; where they are not
valid (probabilities, asserted conditions) on ones, and at last on tensors without values.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cudassert_ipy.standin.traits import Traits


def garbage(func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what ``func(*args, **kwargs)`` would have as shapes; written arguments stay as is.

    An ``out`` argument gets the shape of the result. Raises ``RuntimeError`` where nothing tells
    the shape.
    """
    written = [args[position] for position in traits.written if position < len(args)]
    returns = len(func._schema.returns)
    if written and returns == 0:
        return None
    if written and returns == len(written):
        return written[0] if returns == 1 else tuple(written)
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        result = _without_values(func, args, kwargs)
    names = [item.name for item in func._schema.arguments]
    outs = [kwargs[names[n]] for n in traits.written if names[n] in kwargs]
    if not outs:
        return result
    for out, like in zip(outs, result if returns > 1 else (result,), strict=False):
        if out.shape != like.shape:
            out.resize_(like.shape)
    return outs[0] if returns == 1 else tuple(outs)


def _without_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return func(*_filled(args, torch.zeros_like), **_filled(kwargs, torch.zeros_like))
    except _INVALID as error:
        first = error
    with contextlib.suppress(*_INVALID):
        return func(*_filled(args, torch.ones_like), **_filled(kwargs, torch.ones_like))
    try:
        shapes = func(*_filled(args, _on_meta), **_filled(kwargs, _on_meta))
    except _INVALID:
        raise first from None
    return _filled(shapes, lambda item, **_: torch.zeros_like(item, device="cpu"))


_INVALID = (RuntimeError, IndexError, ValueError)


def _on_meta(tensor: torch.Tensor, **_: Any) -> torch.Tensor:
    return tensor.detach().to("meta")


def _filled(value: Any, fill: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # A mask decides over a shape, and no mask is out of range.
        keeps = value.dtype is torch.bool and fill is torch.zeros_like
        return value if keeps else fill(value, requires_grad=False)
    if type(value) in (list, tuple):
        return type(value)(_filled(item, fill) for item in value)
    if type(value) is dict:
        return {key: _filled(item, fill) for key, item in value.items()}
    return value
