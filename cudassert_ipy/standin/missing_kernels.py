"""Operations that the CPU has no kernel for: low precision is computed in float32, others said."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages
from cudassert_ipy.standin.unsupported import needs_device

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.traits import Traits

_NO_TYPE = re.compile(
    r"not implemented for '(?:Half|BFloat16|Float8_\w+|ComplexHalf)'"
    r"|MKL FFT doesn't support tensors of type: (?:Half|BFloat16)"
)
"""From AT_DISPATCH (aten/src/ATen/Dispatch.h) and mkl/SpectralOps.cpp, torch 2.4 to 2.14."""
_NO_BACKEND = re.compile(
    r"Could not run '[^']*' with arguments from the '\w+' backend"
    r"|no kernel (?:was )?registered|There was no kernel|does not have a.* kernel for.* cpu",
    re.IGNORECASE,
)
"""From aten/src/ATen/core/dispatch/OperatorEntry.cpp and torch/_library/custom_ops.py."""
_TORCH_NAMESPACES = frozenset(("aten", "prim", "prims", "profiler", "inductor", "higher_order"))
_WIDER = {torch.complex32: torch.complex64}


def run_otherwise(
    context: Context,
    func: Any,
    traits: Traits,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: RuntimeError,
) -> Any:
    """Run a device operation that raised ``error`` on the CPU in another way, or raise.

    Raises ``NeedsDeviceError`` for a custom operation without a CPU kernel, else ``error``.
    """
    text = str(error)
    missing = _NO_TYPE.search(text)
    if missing is not None:
        dtypes = _low_precision(args, kwargs)
        if dtypes:
            name = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
            context.policy.remark(messages.STANDIN_UPCAST.format(dtype=name))
            return _in_float32(func, traits, args, kwargs)
    if func.namespace not in _TORCH_NAMESPACES and _NO_BACKEND.search(text) is not None:
        what = messages.STANDIN_CUSTOM_OPERATION.format(name=func._schema.name)
        raise needs_device(context, what) from error
    raise error


def _low_precision(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[torch.dtype]:
    found = {
        item.dtype if isinstance(item, torch.Tensor) else item
        for item in _leaves([args, kwargs])
        if isinstance(item, torch.Tensor | torch.dtype)
    }
    return {dtype for dtype in found if _wider(dtype) is not None}


def _wider(dtype: torch.dtype) -> torch.dtype | None:
    if dtype.is_floating_point and dtype.itemsize < 4:
        return torch.float32
    return _WIDER.get(dtype)


def _narrower(dtype: torch.dtype, narrow: torch.dtype) -> torch.dtype | None:
    """Return what a result becomes again, of an operation whose operands were ``narrow``."""
    half = narrow in (torch.float16, torch.complex32)
    if dtype == torch.float32:
        return torch.float16 if half else narrow
    return torch.complex32 if dtype == torch.complex64 and half else None


def _leaves(value: Any) -> Any:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


def _in_float32(func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    widened: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            wider = _wider(value.dtype)
            if wider is None:
                return value
            if id(value) not in widened:
                widened[id(value)] = (value, torch.ops.aten._to_copy.default(value, dtype=wider))
            return widened[id(value)][1]
        if isinstance(value, torch.dtype):
            return _wider(value) or value
        if isinstance(value, list | tuple):
            return type(value)(widen(item) for item in value)
        return value

    first = next(item for item in _leaves([args, kwargs]) if _is_low(item))
    narrow = first.dtype if isinstance(first, torch.Tensor) else first
    requested = kwargs.get("dtype")
    narrow = requested if isinstance(requested, torch.dtype) else narrow
    out = func(*widen(args), **{key: widen(value) for key, value in kwargs.items()})
    given = {id(copy): value for value, copy in widened.values()}
    written = {
        id(item) for n in traits.written for item in _leaves(args[n] if n < len(args) else ())
    }
    written |= {id(value) for key, value in kwargs.items() if key in ("out", "grad_input")}
    for value, copy in widened.values():
        if id(value) in written:
            value.copy_(copy)

    def back(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) in given:
                return given[id(value)]
            target = _narrower(value.dtype, narrow)
            return value if target is None else torch.ops.aten._to_copy.default(value, dtype=target)
        if isinstance(value, list | tuple):
            return type(value)(back(item) for item in value)
        return value

    return back(out)


def _is_low(value: Any) -> bool:
    dtype = value.dtype if isinstance(value, torch.Tensor) else value
    return isinstance(dtype, torch.dtype) and _wider(dtype) is not None
