"""Look at the operands of one call: table rows and findings. Shared by guard, replay, simulator."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy.checks.hints import hint_for
from cudassert_ipy.checks.holder import find_holder
from cudassert_ipy.checks.location import SourceLocation, call_site, locate_call, running
from cudassert_ipy.checks.statistics import Offenders, Statistics, is_outside, locate, summarize
from cudassert_ipy.checks.written import written_for
from cudassert_ipy.model import Finding, TensorRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from cudassert_ipy.checks.location import Written
    from cudassert_ipy.checks.operand import Arguments, Operand
    from cudassert_ipy.checks.operators import Operator
    from cudassert_ipy.model import Holder, Origin

MAX_ROWS = 200
"""Operands that a table lists; those with bad values are always listed."""

MAX_RANGES = 8
"""Valid ranges of one operand at one place that a table lists, beside those with bad values."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One operand and what its values are."""

    operand: Operand
    statistics: Statistics
    offenders: Offenders


def check_operands(operator: Operator, arguments: Arguments) -> list[Checked]:
    """Return each operand of a call with its statistics and its bad values.

    Never raises for odd arguments. Errors of the device itself (``torch.AcceleratorError``) pass.
    """
    import torch

    checked: list[Checked] = []
    try:
        for operand in operator.operands(arguments):
            if operand.tensor.is_nested:
                if operand.bad is not None:
                    continue
                # A nested tensor has no shape to tell positions in: its values in a row have.
                operand = replace(operand, tensor=operand.tensor.values())  # noqa: PLW2901
            previous = checked[-1] if checked else None
            if previous is not None and previous.operand.tensor is operand.tensor:
                statistics = previous.statistics
            else:
                statistics = summarize(operand.tensor)
            offenders = Offenders()
            if is_outside(statistics, operand) and _has_values(operand.tensor):
                offenders = locate(operand)
            checked.append(Checked(operand, statistics, offenders))
    except getattr(torch, "AcceleratorError", ()):
        raise
    except _ODD:
        # Fake, batched, nested and foreign tensors, symbolic sizes, arguments that torch itself
        # refuses: what was checked before stands, the rest cannot be checked.
        pass
    return checked


_ODD = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, LookupError)


def _has_values(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and not tensor.is_meta


class _Row:
    """One row of the table while calls are added to it: a record and the values that change."""

    __slots__ = (
        *("_bad", "_high", "_inf", "_low", "_nan"),
        *("_record", "_seen", "_shape", "_substitute"),
    )

    def __init__(self, record: TensorRow, seen: tuple[int, ...]) -> None:
        self._record = record
        self._seen = seen
        self._shape = record.shape
        self._low, self._high = record.minimum, record.maximum
        self._nan, self._inf, self._bad = record.nan_count, record.inf_count, record.bad_count
        self._substitute = record.substitute

    def add(self, item: Checked, substitute: bool, written: Callable[[], tuple[int, ...]]) -> None:
        """Widen the range by one more call; this is on the path of every healthy operation.

        ``written`` looks up the operand's shape as the user wrote it. It is called only where the
        shape changed, and is not the one that the operation sees.
        """
        self.add_bad(item.offenders.bad_count)
        self._substitute = self._substitute or substitute
        low, high = item.statistics.minimum, item.statistics.maximum
        if low is not None and (self._low is None or low < self._low):
            self._low = low
        if high is not None and (self._high is None or high > self._high):
            self._high = high
        self._nan += item.statistics.nan_count
        self._inf += item.statistics.inf_count
        seen = tuple(item.operand.tensor.shape)
        if seen != self._seen:
            self._shape = seen if self._shape == self._seen else written()
            self._seen = seen

    def add_bad(self, count: int) -> None:
        """Count values that break another rule for the same operand."""
        self._bad += count

    def to_record(self) -> TensorRow:
        """Return the row; its shape is that of the last call."""
        return replace(
            self._record,
            shape=self._shape,
            minimum=self._low,
            maximum=self._high,
            nan_count=self._nan,
            inf_count=self._inf,
            bad_count=self._bad,
            substitute=self._substitute,
        )


class Inspector:
    """Checks calls, and keeps one bounded table of the operands it saw.

    A call in a loop is one row: its range is that of all rounds, its shape the last one's. Where
    the valid range differs (a helper that looks up two tables), there is a row for each.

    Args:
        is_substitute: whether a tensor's values are not the real ones.
        origin_of: which operations made an operand's values.

    """

    def __init__(
        self,
        is_substitute: Callable[[Tensor], bool] = lambda _: False,
        origin_of: Callable[[Operand], tuple[Origin, ...]] = lambda _: (),
    ) -> None:
        self._is_substitute = is_substitute
        self._origin_of = origin_of
        self._rows: dict[Any, _Row] = {}
        self._ranges: dict[Any, int] = {}

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The table, in the order of first use."""
        return tuple(row.to_record() for row in self._rows.values())

    def inspect(
        self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Checked], list[Finding]]:
        """Check the operands of one call, note them in the table, and return what is wrong.

        Must be called below the user's frames: they are read from the running stack.
        """
        checked = check_operands(operator, operator.arguments(args, kwargs))
        site = call_site()
        location: SourceLocation | None = None
        findings = []
        previous = None
        key: Any = None
        for item in checked:
            operand = item.operand
            is_again = previous is not None and previous.tensor is operand.tensor
            place = (site, operator.aten, operand.name, operand.position)
            if not is_again or key[0] != place:  # else it is another rule for the same operand
                key = (place, operand.low, operand.high)
            previous = operand
            bad = item.offenders.bad_count > 0
            if key not in self._rows and (bad or self._has_room(place)):
                location = location or locate_call()
                record = self._row(operator, item, location)
                self._rows[key] = _Row(record, tuple(item.operand.tensor.shape))
                self._ranges[place] = self._ranges.get(place, 0) + 1
            elif key in self._rows and is_again:
                self._rows[key].add_bad(item.offenders.bad_count)
            elif key in self._rows:
                written = functools.partial(_written_shape, operator, item.operand)
                self._rows[key].add(item, self._is_substitute(item.operand.tensor), written)
            if bad:
                location = location or locate_call()
                findings.append(self._finding(operator, item, location))
        return checked, findings

    def _has_room(self, place: Any) -> bool:
        return len(self._rows) < MAX_ROWS and self._ranges.get(place, 0) < MAX_RANGES

    def _row(self, operator: Operator, item: Checked, location: SourceLocation) -> TensorRow:
        operand, statistics = item.operand, item.statistics
        written = written_for(operator, operand, location)
        return TensorRow(
            name=written.expression or operand.name,
            role=operand.role,
            operation=called(operator, operand),
            shape=written.shape,
            dtype=dtype_name(operand.tensor),
            device=str(operand.tensor.device),
            minimum=statistics.minimum,
            maximum=statistics.maximum,
            nan_count=statistics.nan_count,
            inf_count=statistics.inf_count,
            valid_minimum=operand.low,
            valid_maximum=operand.high,
            bad_count=item.offenders.bad_count,
            substitute=self._is_substitute(operand.tensor),
            line=location.line,
        )

    def _finding(self, operator: Operator, item: Checked, location: SourceLocation) -> Finding:
        operand, statistics, offenders = item.operand, item.statistics, item.offenders
        substitute = self._is_substitute(operand.tensor)
        written = written_for(operator, operand, location)
        if written.shape != tuple(operand.tensor.shape):
            # The same values in the same order: only the positions and the batch rows change.
            offenders = locate(_reshaped(operand, written.shape))
        return Finding(
            operation=called(operator, operand),
            aten=operator.aten,
            operand=operand.name,
            expression=written.expression,
            line=location.line,
            column=location.column,
            end_column=location.end_column,
            source=location.source,
            frames=location.frames,
            library=location.library,
            holder=_holder(operand, offenders, written, location),
            shape=written.shape,
            dtype=dtype_name(operand.tensor),
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
            certainty="depends_on_substitutes" if substitute else "exact",
            requirement=operand.requirement,
            hint=hint_for(operator, operand, statistics, offenders, _source(location)),
            origin=self._origin_of(operand),
        )


def _holder(
    operand: Operand, offenders: Offenders, written: Written, location: SourceLocation
) -> Holder | None:
    if written.expression is not None:
        return None
    return find_holder(operand.tensor, offenders.positions, location.given_tensors())


def _source(location: SourceLocation) -> str:
    """Return the line that calls torch: a library's, or the user's own."""
    return location.source if location.library is None else location.library.source


def _written_shape(operator: Operator, operand: Operand) -> tuple[int, ...]:
    return written_for(operator, operand, locate_call()).shape


def _reshaped(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """Return the operand in the shape in which the user wrote it."""
    ask = operand.bad

    def bad() -> Tensor | None:
        mask = None if ask is None else ask()
        return None if mask is None else mask.reshape(shape)

    tensor = operand.tensor.detach().reshape(shape)
    return replace(operand, tensor=tensor, bad=None if ask is None else bad)


def called(operator: Operator, operand: Operand) -> str:
    """Return the user's name for the running operation."""
    for caller in operator.also:
        if running(caller.function):
            return caller.name
    return operand.operation or operator.name


def dtype_name(tensor: Tensor) -> str:
    """Return ``int64`` for ``torch.int64``."""
    return str(tensor.dtype).removeprefix("torch.")
