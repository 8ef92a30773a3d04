"""Minimum, maximum, NaN and infinity counts of a tensor, and where its bad values are.

One ``aminmax`` pass decides: it propagates NaN and the infinities, so a finite minimum and maximum
mean that there are none. Masks and counts cost several passes and are made only after that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cudassert_ipy.checks.operand import is_rule
from cudassert_ipy.model import MAX_POSITIONS

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.checks.operand import Operand

Number: TypeAlias = int | float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Range of a tensor's values; ``minimum`` and ``maximum`` are None where not available."""

    minimum: Number | None = None
    maximum: Number | None = None
    nan_count: int = 0
    inf_count: int = 0


@dataclass(frozen=True, slots=True)
class Offenders:
    """The values of an operand that are outside its valid range."""

    bad_count: int = 0
    positions: tuple[tuple[int, ...], ...] = ()
    """One index per dimension; the first ``MAX_POSITIONS``."""
    values: tuple[Number, ...] = ()
    """The values at ``positions``."""
    batch_rows: tuple[int, ...] = ()
    """Indices along dimension 0 that hold a bad value (the first ``MAX_POSITIONS``)."""


def summarize(tensor: Tensor) -> Statistics:
    """Return the range of any tensor's values; an empty ``Statistics`` where it has none.

    Never raises for odd tensors (sparse, quantized, meta, nested, batched, empty). Errors of the
    device itself (``torch.AcceleratorError``) do pass: they are the user's, not the statistic's.
    """
    import torch

    try:
        return _summarize(_plain(tensor))
    except getattr(torch, "AcceleratorError", ()):
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError):
        # Layouts, subclasses and dtypes without these kernels: not available is a true answer.
        return Statistics()


def locate(operand: Operand) -> Offenders:
    """Return which values of ``operand`` are bad; special values are not."""
    import torch

    with torch.no_grad():
        mask = bad_values(operand)
        bad_count = 0 if mask is None else int(mask.sum().item())
        if mask is None or bad_count == 0:
            return Offenders()
        data = _plain(operand.tensor)
        places = mask.nonzero()[:MAX_POSITIONS]
        positions = tuple(tuple(place) for place in places.tolist())
        values = tuple(_number(value) for value in data[mask][:MAX_POSITIONS].tolist())
        rows: list[int] = []
        if mask.dim():
            bad_rows = mask.flatten(1).any(1) if mask.dim() > 1 else mask
            rows = bad_rows.nonzero().flatten()[:MAX_POSITIONS].tolist()
    return Offenders(bad_count, positions, values, tuple(rows))


def is_outside(statistics: Statistics, operand: Operand) -> bool:
    """Whether a value can be bad: ``statistics`` do not prove the contrary, as one pass does."""
    if is_rule(operand):
        return True
    if statistics.nan_count or (operand.finite and statistics.inf_count):
        return True
    if statistics.minimum is None or statistics.maximum is None:
        return False
    low, high = operand.low, operand.high
    return (low is not None and statistics.minimum < low) or (
        high is not None and statistics.maximum > high
    )


def bad_values(operand: Operand) -> Tensor | None:
    """Return where the values of ``operand`` are bad, as a mask of its shape; None for nowhere."""
    import torch

    if operand.bad is not None:
        return operand.bad()
    data = _plain(operand.tensor)
    if not data.is_floating_point():
        # Compared with small integers, a bound would wrap: -100 is 156 as uint8.
        data = data.to(torch.int64)
    mask = data != data
    if operand.finite:
        mask = mask | torch.isinf(data)
    if operand.low is not None:
        mask = mask | (data < operand.low)
    if operand.high is not None:
        mask = mask | (data > operand.high)
    for value in operand.special:
        mask = mask & (data != value)
    return mask


def _plain(tensor: Tensor) -> Tensor:
    """Return a dense tensor of an ordinary dtype with the same values."""
    import torch

    data = tensor.detach()
    if data.layout is not torch.strided:
        data = data.values()
    if data.is_quantized:
        data = data.dequantize()
    if data.dtype.is_complex:
        data = torch.view_as_real(data.resolve_conj())
    if data.dtype in _CAST_TO:
        data = data.to(_CAST_TO[data.dtype])
    return data


def _cast_table() -> dict[Any, Any]:
    """Dtypes without min, max and comparison kernels, and a wider dtype that has them."""
    import torch

    table = {}
    for name in ("uint16", "uint32", "uint64"):
        if hasattr(torch, name):
            table[getattr(torch, name)] = torch.int64
    for name in dir(torch):
        if name.startswith("float8_"):
            table[getattr(torch, name)] = torch.float32
    return table


_CAST_TO = _cast_table()


def _summarize(data: Tensor) -> Statistics:
    import torch

    if data.numel() == 0:
        return Statistics()
    low, high = _range(data)
    if math.isfinite(low) and math.isfinite(high):
        return Statistics(low, high)
    nan_mask = data != data
    nan_count = int(nan_mask.sum().item())
    inf_count = int(torch.isinf(data).sum().item())
    if nan_count:
        rest = data[~nan_mask]
        low, high = _range(rest) if rest.numel() else (math.nan, math.nan)
    return Statistics(low, high, nan_count, inf_count)


def _range(data: Tensor) -> tuple[Number, Number]:
    import torch

    minimum, maximum = torch.aminmax(data)
    if data.is_cpu:
        return _number(minimum.item()), _number(maximum.item())
    # One transfer for both values: each waits for the device.
    low, high = torch.stack((minimum, maximum)).tolist()
    return _number(low), _number(high)


def _number(value: Any) -> Number:
    return int(value) if isinstance(value, bool) else value
