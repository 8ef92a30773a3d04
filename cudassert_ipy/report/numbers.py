"""How numbers, shapes, ranges and positions are written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.model import Finding, TensorRow

Number = int | float | None


def number(value: Number) -> str:
    """Return a value as a person reads it: integers in full, floats with six digits."""
    if value is None:
        return "n/a"
    if isinstance(value, int):
        # Python refuses to print integers of more than 4300 digits, and nobody could read them.
        return str(value) if value.bit_length() <= 64 else f"±2^{value.bit_length()}"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.6g}"


def count(value: int) -> str:
    """Return a count with thousands separated."""
    return f"{value:,}" if value.bit_length() <= 64 else "very many"


def seconds(value: float) -> str:
    """Return a duration in seconds, short."""
    if not math.isfinite(value):
        return "?"
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def is_number(value: object) -> bool:
    """Return whether ``value`` is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def size_text(size_in_bytes: int) -> str:
    """Return a number of bytes for a person, in powers of 1000."""
    amount = float(min(max(size_in_bytes, 0), 10**18))
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.0f} TB"


def shape(sizes: Sequence[int]) -> str:
    """Return a shape or position in brackets; long ones are cut."""
    shown = ", ".join(number(size) for size in sizes[:8])
    return f"[{shown}, …]" if len(sizes) > 8 else f"[{shown}]"


def size(finding: Finding) -> int:
    """Return how many values the operand has."""
    return math.prod(finding.shape)


def is_all_nan(finding: Finding) -> bool:
    """Whether the operand holds nothing but NaN."""
    return 0 < size(finding) <= finding.nan_count


def allowed(item: Finding | TensorRow) -> str:
    """Return the valid range in words; empty where none is known."""
    low, high = bounds(item)
    if low is None and high is None:
        text = ""
    elif low is None:
        text = messages.ALLOWED_TO.format(high=number(high))
    elif high is None:
        text = messages.ALLOWED_FROM.format(low=number(low))
    elif high < low:
        text = messages.ALLOWED_NOTHING
    else:
        text = messages.ALLOWED.format(low=number(low), high=number(high))
    special = getattr(item, "special_values", ())
    if text and special:
        values = ", ".join(number(value) for value in special[:4])
        text += messages.ALLOWED_SPECIAL.format(values=values)
    return text


def bounds(item: Finding | TensorRow) -> tuple[Number, Number]:
    """Return the valid range; a side without limit (None, NaN or infinite) is None."""
    return _limit(item.valid_minimum), _limit(item.valid_maximum)


def _limit(value: Number) -> Number:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value
