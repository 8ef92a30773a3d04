"""One likely cause of a bad operand, told by the shape of its values; empty where none is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.checks.operand import counts_up

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.checks.operators import Operand, Operator
    from cudassert_ipy.checks.statistics import Offenders, Statistics

_NAN_AS_INTEGER = -(2**63)
_NO_LABEL = 255
"""Marks pixels without a label in Pascal VOC, Cityscapes and others; white in a mask image."""


def hint_for(
    operator: Operator,
    operand: Operand,
    statistics: Statistics,
    offenders: Offenders,
    source: str = "",
) -> str:
    """Return a hint for off-by-one values, labels that start at 1, and stray negative markers.

    ``source`` is the line that calls torch: one that speaks of positions looks up positions.
    """
    if operand.role in ("probability", "count", "offset", "input"):
        return _hint_for_amounts(operator, operand, statistics)
    return _hint_for_places(operator, operand, statistics, offenders, source)


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
    operator: Operator,
    operand: Operand,
    statistics: Statistics,
    offenders: Offenders,
    source: str,
) -> str:
    family = operator.family
    low, high = operand.low, operand.high
    if low is not None and low < 0:
        family = "index"
    values = set(offenders.values)
    lowest, highest = statistics.minimum, statistics.maximum
    if operand.bad is not None and offenders.bad_count <= len(offenders.values) and values:
        lowest, highest = min(values), max(values)  # the others may be padding
    if lowest is None or highest is None or low is None:
        return ""
    if lowest == _NAN_AS_INTEGER and lowest in values:
        return messages.HINT_NAN_AS_INTEGER
    if high is None:
        return ""
    size = high + 1
    if high < low:
        return messages.HINT_EMPTY
    # Only the first offending values are listed: the extremes speak for the others.
    too_small = lowest < low and lowest not in operand.special
    too_large = highest > high and highest not in operand.special
    is_table = family in ("embedding", "index", "gather")
    if is_table and too_large and not too_small and _are_positions(operand, source):
        return messages.HINT_POSITIONS.format(size=size, needed=highest + 1)
    if values == {size} and highest == size and not too_small:
        if family == "target" and lowest == 1:
            return messages.HINT_LABELS_FROM_ONE.format(classes=size)
        template = messages.HINT_OFF_BY_ONE[family]
        return template.format(size=size, last=high, needed=size + 1)
    if family == "target" and (hint := _hint_for_markers(operand, values, lowest, highest)):
        return hint
    if values and max(values) < low and not too_large:
        return messages.HINT_NEGATIVE[family].format(low=low)
    if values and min(values) > high and not too_small:
        return messages.HINT_TOO_LARGE[family].format(size=size, needed=highest + 1)
    return ""


def _hint_for_markers(
    operand: Operand, values: set[int | float], lowest: int | float, highest: int | float
) -> str:
    """Return the hint for labels that mark "no label"; empty where other values are bad too."""
    tensor, high = operand.tensor, operand.high
    if high is None or not operand.special or not _is_plain(tensor):
        return ""
    # A model may pad with its own ignore_index, which is the smallest then.
    known = lowest in values or lowest in operand.special
    if values in ({-1}, {-100}) and known and highest <= high:
        label = next(iter(values))
        return messages.HINT_UNIGNORED_LABEL.format(label=label, ignore_index=operand.special[0])
    if (
        values != {_NO_LABEL}
        or highest != _NO_LABEL
        or (lowest < 0 and lowest != operand.special[0])
    ):
        return ""
    if not bool((tensor[tensor > high] == _NO_LABEL).all()):
        return ""
    is_gray = bool(((tensor == 0) | (tensor == _NO_LABEL)).all())
    return messages.HINT_GRAY_LABELS if is_gray else messages.HINT_NO_LABEL


def _are_positions(operand: Operand, source: str) -> bool:
    if "position" in source.lower():
        return True
    return operand.low == 0 and _is_plain(operand.tensor) and counts_up(operand.tensor)


def _is_plain(tensor: Tensor) -> bool:
    return not (tensor.is_nested or tensor.is_sparse)
