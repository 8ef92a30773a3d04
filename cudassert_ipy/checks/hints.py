"""One likely cause of a bad operand, told by the shape of its values; empty where none is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy import messages

if TYPE_CHECKING:
    from cudassert_ipy.checks.operators import Operand, Operator
    from cudassert_ipy.checks.statistics import Offenders, Statistics


def hint_for(
    operator: Operator, operand: Operand, statistics: Statistics, offenders: Offenders
) -> str:
    """Return a hint for off-by-one values, labels that start at 1, and stray negative markers."""
    low, high = operand.low, operand.high
    if statistics.minimum is None or statistics.maximum is None or high is None or low is None:
        return ""
    values = set(offenders.values)
    size = high + 1
    if high < low:
        return messages.HINT_EMPTY
    # Only the first offending values are listed: the extremes speak for the others.
    lowest, highest = statistics.minimum, statistics.maximum
    too_small = lowest < low and lowest not in operand.special
    too_large = highest > high and highest not in operand.special
    if values == {size} and highest == size and not too_small:
        if operator.family == "target" and statistics.minimum >= 1:
            return messages.HINT_LABELS_FROM_ONE.format(classes=size)
        template = messages.HINT_OFF_BY_ONE[operator.family]
        return template.format(size=size, last=high, needed=size + 1)
    if operator.family == "target" and values == {-1}:
        ignore = operand.special[0] if operand.special else -100
        return messages.HINT_MINUS_ONE_LABEL.format(ignore_index=ignore)
    if values and max(values) < low and not too_large:
        return messages.HINT_NEGATIVE[operator.family].format(low=low)
    if values and min(values) > high and not too_small:
        template = messages.HINT_TOO_LARGE[operator.family]
        return template.format(size=size, needed=max(statistics.maximum, *values) + 1)
    return ""
