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
    if operand.role in ("probability", "count", "offset", "input"):
        return _hint_for_amounts(operator, operand, statistics)
    return _hint_for_places(operator, operand, statistics, offenders)


def _hint_for_amounts(operator: Operator, operand: Operand, statistics: Statistics) -> str:
    if operand.role != "probability":
        return ""
    if statistics.nan_count or statistics.inf_count:
        return messages.HINT_NOT_FINITE
    low, high = statistics.minimum, statistics.maximum
    if low is None or high is None or not operator.name.endswith(".binary_cross_entropy"):
        return ""
    return messages.HINT_LOGITS if operand.name == "input" and (low < 0 or high > 1) else ""


def _hint_for_places(
    operator: Operator, operand: Operand, statistics: Statistics, offenders: Offenders
) -> str:
    family = operator.family
    if operand.low is not None and operand.low < 0:
        family = "index"
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
        if family == "target" and statistics.minimum >= 1:
            return messages.HINT_LABELS_FROM_ONE.format(classes=size)
        template = messages.HINT_OFF_BY_ONE[family]
        return template.format(size=size, last=high, needed=size + 1)
    if family == "target" and values == {-1}:
        ignore = operand.special[0] if operand.special else -100
        return messages.HINT_MINUS_ONE_LABEL.format(ignore_index=ignore)
    if values and max(values) < low and not too_large:
        return messages.HINT_NEGATIVE[family].format(low=low)
    if values and min(values) > high and not too_small:
        template = messages.HINT_TOO_LARGE[family]
        return template.format(size=size, needed=max(statistics.maximum, *values) + 1)
    return ""
