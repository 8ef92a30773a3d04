"""The tensor table: one line for each tensor that the cell's operations took as operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.report import numbers
from cudassert_ipy.report.clean import clean_line
from cudassert_ipy.report.finding import position_texts, short_operation

if TYPE_CHECKING:
    from cudassert_ipy.model import Diagnosis, Finding, Role, TensorRow

MAX_LINES = 40


@dataclass(frozen=True, slots=True)
class TensorLine:
    """One line of the table; ``cells`` stand under ``messages.TENSORS_HEAD``."""

    cells: tuple[str, ...]
    is_bad: bool
    positions: tuple[str, ...]
    """``value at [position]`` of the first offending values, where the finding knows them."""
    more: str
    """How many more there are, in words; empty where these are all."""


def tensor_lines(
    diagnosis: Diagnosis, *, role: Role | None = None, only_bad: bool = False
) -> tuple[list[TensorLine], int]:
    """Return the lines, those with offending values first, and how many more were cut off."""
    rows = [
        tensor
        for tensor in diagnosis.tensors
        if (role is None or tensor.role == role) and (tensor.bad_count > 0 or not only_bad)
    ]
    rows.sort(key=lambda tensor: tensor.bad_count == 0)
    lines = [_line(tensor, diagnosis.finding) for tensor in rows[:MAX_LINES]]
    return lines, len(rows) - len(lines)


def roles(diagnosis: Diagnosis) -> list[Role]:
    """Return the roles that occur, in the order in which they occur."""
    return list(dict.fromkeys(tensor.role for tensor in diagnosis.tensors))


def _line(tensor: TensorRow, finding: Finding | None) -> TensorLine:
    kind = clean_line(tensor.dtype, 30)
    if tensor.substitute:
        kind += f" {messages.SUBSTITUTE_MARK}"
    low, high = numbers.bounds(tensor)
    limits = ""
    if low is not None or high is not None:
        low_text = "" if low is None else numbers.number(low)
        limits = f"{low_text} … {'' if high is None else numbers.number(high)}".strip()
    odd = [
        f"{numbers.count(amount)} {word}"
        for amount, word in ((tensor.nan_count, "NaN"), (tensor.inf_count, "inf"))
        if amount > 0
    ]
    bad = f"✗ {numbers.count(tensor.bad_count)}" if tensor.bad_count > 0 else ""
    cells = (
        clean_line(tensor.name, 60) or "?",
        tensor.role,
        short_operation(tensor.operation),
        numbers.shape(tensor.shape),
        kind,
        numbers.number(tensor.minimum) if tensor.minimum is not None else "",
        ", ".join(
            filter(
                None, [numbers.number(tensor.maximum) if tensor.maximum is not None else "", *odd]
            )
        ),
        limits,
        bad,
        "" if tensor.line is None else numbers.number(tensor.line),
    )
    positions: list[str] = []
    more = ""
    if finding is not None and _is_of(tensor, finding):
        positions = position_texts(finding, len(finding.bad_positions))
        rest = finding.bad_count - len(finding.bad_positions)
        if rest > 0:
            more = messages.AND_MORE.format(count=numbers.count(rest))
    return TensorLine(cells, tensor.bad_count > 0, tuple(positions), more)


def _is_of(tensor: TensorRow, finding: Finding) -> bool:
    return (
        tensor.bad_count > 0
        and tensor.bad_count == finding.bad_count
        and tensor.shape == finding.shape
        and tensor.operation in (finding.operation, finding.aten)
    )
