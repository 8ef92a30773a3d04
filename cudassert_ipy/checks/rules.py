"""What a tensor of a batch may hold: rules that users write, and demands that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from cudassert_ipy import messages
from cudassert_ipy.checks.hints import hint_for
from cudassert_ipy.checks.inspect import dtype_name
from cudassert_ipy.checks.operators import Operand
from cudassert_ipy.checks.statistics import Offenders, is_outside, locate, summarize
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.model import MAX_POSITIONS, Finding
from cudassert_ipy.report.clean import clean_line

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.checks.location import SourceLocation
    from cudassert_ipy.checks.operators import Operator
    from cudassert_ipy.model import Role

Number: TypeAlias = int | float


@dataclass(frozen=True, slots=True)
class Rule:
    """What the values of one tensor may be: ``low <= value <= high``, both ends included.

    Without ``low`` or ``high`` that side is open. ``ignore`` are values that are valid beside the
    range, such as the ``ignore_index`` of a loss. NaN is never in a range; ``nan=True`` allows it.
    ``finite=True`` refuses the infinities too.

    >>> Rule(0, 9)  # labels of 10 classes
    Rule(low=0, high=9)
    >>> Rule(0, 9, ignore=-100)  # the same, where -100 marks "no label"
    Rule(low=0, high=9, ignore=(-100,))
    >>> Rule(0, 1)  # a probability
    Rule(low=0, high=1)
    >>> Rule(finite=True)  # any number, but neither NaN nor infinite
    Rule(finite=True)

    Raises ``CudassertError`` for bounds that are not numbers.
    """

    low: Number | None = None
    high: Number | None = None
    ignore: Number | tuple[Number, ...] = ()
    nan: bool = False
    finite: bool = False

    def __post_init__(self) -> None:
        ignore = self.ignore if isinstance(self.ignore, tuple | list | set) else (self.ignore,)
        object.__setattr__(self, "ignore", tuple(ignore))
        for bound in (self.low, self.high, *ignore):
            if bound is not None and not _is_bound(bound):
                raise CudassertError(messages.RULE_BOUND.format(bound=clean_line(repr(bound), 80)))
        is_empty = self.low is not None and self.high is not None and self.low > self.high
        if is_empty and self.nan:
            raise CudassertError(messages.RULE_ONLY_NAN)

    def __repr__(self) -> str:
        shown = {"low": self.low, "high": self.high, "ignore": self.ignore}
        shown |= {"nan": self.nan, "finite": self.finite}
        plain = (None, (), False)
        parts = [f"{k}={v!r}" for k, v in shown.items() if not any(v is p for p in plain)]
        return f"Rule({', '.join(parts)})"


def as_rule(value: Any) -> Rule:
    """Return a :class:`Rule` for what users may write instead of one.

    ``range(10)`` and ``10`` mean 0 to 9, ``(0, 9)`` both ends included.

    >>> as_rule(range(10)), as_rule(10), as_rule((0.0, 1.0))
    (Rule(low=0, high=9), Rule(low=0, high=9), Rule(low=0.0, high=1.0))
    """
    if isinstance(value, Rule):
        return value
    if isinstance(value, range) and value.step == 1:
        return Rule(value.start, value.stop - 1)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Rule(0, value - 1)
    if isinstance(value, tuple) and len(value) == 2:
        return Rule(*value)
    raise CudassertError(messages.RULE_UNKNOWN.format(rule=clean_line(repr(value), 80)))


@dataclass(frozen=True, slots=True)
class Demand:
    """What one tensor must be, and who demands it."""

    rule: Rule
    operation: str = "check_batch"
    aten: str = ""
    operand: str = "values"
    role: Role = "input"
    requirement: str = ""
    operator: Operator | None = None
    """The row of the operator table, where the demand was derived from one."""
    location: SourceLocation | None = None
    """The line that demands it, where a model was traced."""


def check(tensor: Tensor, demand: Demand, name: str) -> Finding | None:
    """Return what is wrong with ``tensor``, or None.

    One pass over the values and one transfer where all is well. Raises :class:`Unreadable` where
    the values cannot be compared at all (meta tensors and the like).
    """
    operand = _as_operand(tensor, demand)
    statistics = summarize(operand.tensor)
    if demand.rule.nan and statistics.nan_count:
        operand = replace(operand, tensor=_without_nan(operand))
        statistics = summarize(operand.tensor)
    if statistics.minimum is None and operand.tensor.numel():
        raise Unreadable(name)
    offenders = locate(operand) if is_outside(statistics, operand) else Offenders()
    if not offenders.bad_count:
        return None
    hint = ""
    if demand.operator is not None:
        hint = hint_for(demand.operator, operand, statistics, offenders)
    return Finding(
        operation=demand.operation,
        aten=demand.aten,
        operand=operand.name,
        expression=name,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor),
        minimum=statistics.minimum,
        maximum=statistics.maximum,
        valid_minimum=operand.low,
        valid_maximum=operand.high,
        special_values=operand.special,
        nan_count=statistics.nan_count,
        bad_count=offenders.bad_count,
        bad_positions=offenders.positions,
        bad_values=offenders.values,
        batch_rows=offenders.batch_rows,
        requirement=demand.requirement,
        hint=hint,
    )


def bad_rows(tensor: Tensor, demand: Demand, limit: int) -> list[int]:
    """Return the indices along dimension 0 that hold bad values, up to ``limit`` of them."""
    operand = _as_operand(tensor, demand)
    if demand.rule.nan:
        operand = replace(operand, tensor=_without_nan(operand))
    rows: list[int] = []
    start = 0
    while tensor.dim() and start < tensor.shape[0] and len(rows) < limit:
        found = locate(replace(operand, tensor=operand.tensor[start:])).batch_rows
        rows += [start + row for row in found]
        if len(found) < MAX_POSITIONS:  # a finding lists no more
            break
        start = rows[-1] + 1
    return rows[:limit]


class Unreadable(Exception):  # noqa: N818 - a signal between functions here, never shown
    """A tensor whose values cannot be read."""


def _as_operand(tensor: Tensor, demand: Demand) -> Operand:
    """Return the tensor with bounds that its dtype can be compared with exactly."""
    import torch

    rule = demand.rule
    low, high = rule.low, rule.high
    data = tensor.detach()
    if data.is_floating_point():
        if rule.finite and data.dtype.itemsize >= 2:
            limits = torch.finfo(data.dtype)
            low = limits.min if low is None else max(low, limits.min)
            high = limits.max if high is None else min(high, limits.max)
    else:
        low = None if low is None else _integer(low, math.ceil)
        high = None if high is None else _integer(high, math.floor)
    ignore = rule.ignore if isinstance(rule.ignore, tuple) else (rule.ignore,)
    return Operand(
        tensor=data,
        name=demand.operand,
        role=demand.role,
        low=low,
        high=high,
        special=ignore,
        requirement=demand.requirement,
    )


def _integer(bound: Number, rounding: Any) -> int | None:
    """Return a bound for integers; one that no 64-bit integer reaches is none."""
    if math.isinf(bound):
        return None
    value = int(rounding(bound))
    return max(-(2**63), min(2**63 - 1, value))


def _without_nan(operand: Operand) -> Tensor:
    """Return the values with a valid one in place of each NaN."""
    import torch

    valid = operand.low if operand.low is not None else operand.high
    return torch.nan_to_num(operand.tensor, nan=valid or 0.0, posinf=math.inf, neginf=-math.inf)


def _is_bound(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and not math.isnan(value)
