"""The text of an :class:`~cudassert_ipy.OperandError`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.errors import OperandError

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding

_MAX_LINES = 6
_MAX_SOURCE = 200


def operand_error(finding: Finding) -> OperandError:
    """Return the exception for ``finding``; it can still be raised, pickled and compared."""
    return OperandError(describe(finding), finding)


def describe(finding: Finding) -> str:
    """Return the finding as a few plain lines; without values where the finding has none."""
    what = finding.operand
    if finding.expression and finding.expression != finding.operand:
        what = f"`{finding.expression}`"
    headline = (
        messages.OPERAND_HEADLINE_ONE if finding.bad_count == 1 else messages.OPERAND_HEADLINE
    )
    total = math.prod(finding.shape)
    lines = [
        headline.format(
            operation=finding.operation,
            count=finding.bad_count,
            total=total,
            what=what,
            valid=_valid(finding),
        )
    ]
    pairs = list(zip(finding.bad_values, finding.bad_positions, strict=False))[:_MAX_LINES]
    lines += [
        messages.OPERAND_VALUES.format(value=value, position=list(position))
        for value, position in pairs
    ]
    if pairs and finding.bad_count > len(pairs):
        lines.append(messages.OPERAND_MORE.format(count=finding.bad_count - len(pairs)))
    template = messages.OPERAND_TENSOR
    if finding.minimum is None:
        template = messages.OPERAND_TENSOR_PLAIN
    lines.append(
        template.format(
            operand=finding.operand,
            shape=list(finding.shape),
            dtype=finding.dtype,
            minimum=finding.minimum,
            maximum=finding.maximum,
        )
    )
    if finding.line is not None:
        source = finding.source.strip()[:_MAX_SOURCE]
        lines.append(messages.OPERAND_WHERE.format(line=finding.line, source=source))
    if finding.hint:
        lines.append(messages.OPERAND_HINT.format(hint=finding.hint))
    if finding.certainty == "depends_on_substitutes":
        lines.append(messages.OPERAND_SUBSTITUTE)
    return "\n".join(lines)


def _valid(finding: Finding) -> str:
    special = ", ".join(str(value) for value in finding.special_values)
    template = messages.OPERAND_VALID_SPECIAL if special else messages.OPERAND_VALID
    return template.format(low=finding.valid_minimum, high=finding.valid_maximum, special=special)
