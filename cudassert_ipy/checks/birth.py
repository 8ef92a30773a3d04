"""What one operation did to the values of an index: said only where its ranges prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages

if TYPE_CHECKING:
    from cudassert_ipy.checks.history import Step, Summary
    from cudassert_ipy.checks.operand import Operand
    from cudassert_ipy.checks.statistics import Statistics

_ARITHMETIC = {
    "add": lambda value, other: value + other,
    "sub": lambda value, other: value - other,
    "rsub": lambda value, other: other - value,
    "mul": lambda value, other: value * other,
}


def bounds_of(name: str, func: Any, args: tuple[Any, ...]) -> tuple[int, int] | None:
    """Return what an operation can give by its arguments: of randint, randperm, ``%`` and argmax.

    Args:
        name: of the ATen operator.
        func: its ``OpOverload``.
        args: its positional arguments.

    """
    bare = name.removesuffix("_")
    first = args[0] if args else None
    if bare == "randint":
        low, high = (first, args[1]) if func._overloadname.startswith("low") else (0, first)
        return (low, high - 1) if type(low) is int and type(high) is int else None
    if bare == "randperm" and type(first) is int:
        return 0, first - 1
    if bare == "remainder" and len(args) > 1 and type(args[1]) is int and args[1] != 0:
        return (0, args[1] - 1) if args[1] > 0 else (args[1] + 1, 0)
    if bare in ("argmax", "argmin") and isinstance(first, torch.Tensor):
        dim = args[1] if len(args) > 1 else None
        size = first.numel() if dim is None else tuple(first.shape or (1,))[dim]
        return 0, size - 1
    return None


def number_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return the whole number that a calculation has beside its tensor; None where there is none.

    ``alpha``, by which ``add`` and ``sub`` multiply, is in it.
    """
    other = args[1] if len(args) > 1 else None
    factor = kwargs.get("alpha", 1)
    return other * factor if type(other) is int and type(factor) is int else None


def what_it_did(step: Step, operand: Operand) -> str:
    """Return one sentence about a step towards ``operand``, whose range is known; often empty."""
    made, given = step.result, step.given
    if step.is_batch:
        return messages.ORIGIN_BATCH
    if made.dtype.is_floating_point:
        return ""
    if given is not None and given.statistics is not None and made.statistics is not None:
        text = _lost(step, given, given.statistics, made.statistics)
        if text:
            return text
        comparable = step.alone and not given.dtype.is_floating_point and operand.bad is None
        was_inside = comparable and _inside(given.statistics, operand)
        if was_inside and not _inside(made.statistics, operand):
            return messages.ORIGIN_BORN
    if step.bounds is not None:
        low, high = step.bounds
        if not _allows(operand, low, high):
            return messages.ORIGIN_CAN.format(low=low, high=high)
    return ""


def _lost(step: Step, given: Summary, before: Statistics, after: Statistics) -> str:
    """Return how a conversion or a calculation left the range of its type."""
    limits = torch.iinfo(step.result.dtype)
    low, high = before.minimum, before.maximum
    dtype = str(step.result.dtype).removeprefix("torch.")
    name = step.func._schema.name.partition("::")[2].removesuffix("_")
    if name in ("_to_copy", "copy"):
        if given.dtype.is_floating_point and before.nan_count:
            return messages.ORIGIN_NAN.format(
                count=before.nan_count, dtype=dtype, value=after.minimum
            )
        if low is not None and high is not None and not limits.min <= low <= high <= limits.max:
            return messages.ORIGIN_WRAPPED.format(dtype=dtype, least=limits.min, most=limits.max)
        return ""
    if low is None or high is None or given.dtype.is_floating_point:
        return ""
    calculate = _ARITHMETIC.get(name)
    other = step.number
    if calculate is None or other is None:
        return ""
    ends = (calculate(low, other), calculate(high, other))
    if min(ends) < limits.min or max(ends) > limits.max:
        return messages.ORIGIN_WRAPPED.format(dtype=dtype, least=limits.min, most=limits.max)
    return ""


def _inside(statistics: Statistics, operand: Operand) -> bool:
    low, high = statistics.minimum, statistics.maximum
    return low is not None and high is not None and _allows(operand, low, high)


def _allows(operand: Operand, low: float, high: float) -> bool:
    """Whether all values from ``low`` to ``high`` are valid; special values count as their own."""
    if operand.low is None and operand.high is None:
        return True
    return (operand.low is None or operand.low <= low) and (
        operand.high is None or high <= operand.high
    )
