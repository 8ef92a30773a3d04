"""The range picture: where the values lie against the valid range; as geometry and as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudassert_ipy.report.numbers import Number, bounds, count, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.model import Finding


@dataclass(frozen=True, slots=True)
class Picture:
    """A track for the valid range, drawn to scale, and what lies outside of it, not to scale."""

    low: str
    """Label of the left end; empty where the range has no lower limit."""
    high: str
    fill: tuple[float, float] | None
    """Which part of the track the values inside the valid range cover, as fractions of it; None
    where no value lies inside."""
    below: str
    """The smallest value, where it lies below the range; else empty."""
    above: str
    nan: str
    """How many values are NaN, in words; else empty."""

    @property
    def left(self) -> str:
        """The left end of the track in words."""
        return f"[{self.low}" if self.low else "…"

    @property
    def right(self) -> str:
        """The right end of the track in words."""
        return f"{self.high}]" if self.high else "…"

    @property
    def before(self) -> list[str]:
        """What lies outside on the left, in words."""
        return [f"✗ {self.below}"] if self.below else []

    @property
    def after(self) -> list[str]:
        """What lies outside on the right or nowhere, in words."""
        return [f"✗ {label}" for label in (self.above, self.nan) if label]

    def track(self, width: int) -> str:
        """Return the track as ``width`` characters."""
        start = end = 0
        if self.fill is not None:
            start = min(math.floor(self.fill[0] * width), width - 1)
            end = max(math.ceil(self.fill[1] * width), start + 1)
        return "─" * start + "━" * (end - start) + "─" * (width - end)


def picture(finding: Finding) -> Picture | None:
    """Return the picture of a finding; None where no range or no value is known."""
    low, high = bounds(finding)
    minimum, maximum = _finite(finding.minimum), _finite(finding.maximum)
    nan = f"{count(finding.nan_count)} NaN" if finding.nan_count > 0 else ""
    if (low is None and high is None) or (minimum is None and maximum is None and not nan):
        return None
    if low is not None and high is not None and high < low:
        return None
    smallest = finding.minimum if minimum is None else minimum
    largest = finding.maximum if maximum is None else maximum
    smallest = _extreme(finding, smallest, min)
    largest = _extreme(finding, largest, max)
    below = number(smallest) if low is not None and _less(smallest, low) else ""
    above = number(largest) if high is not None and _less(high, largest) else ""
    return Picture(
        low="" if low is None else number(low),
        high="" if high is None else number(high),
        fill=_fill(low, high, minimum, maximum),
        below=below,
        above=above,
        nan=nan,
    )


def _extreme(
    finding: Finding, value: Number, choose: Callable[[list[int | float]], int | float]
) -> Number:
    """Return the extreme that is drawn as bad: a special value is allowed, so look beside it."""
    if value is None or value not in finding.special_values:
        return value
    bad = [item for item in finding.bad_values if _finite(item) is not None]
    return choose(bad) if bad else None


def text_bar(drawing: Picture, width: int = 34) -> str:
    """Return the picture on one line, e.g. ``[0 ━━━━━━━━────── 999] ✗ 1000``."""
    parts = [
        *drawing.before,
        f"{drawing.left} {drawing.track(width)} {drawing.right}",
        *drawing.after,
    ]
    return " ".join(parts)


def _finite(value: Number) -> Number:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _less(left: Number, right: Number) -> bool:
    return left is not None and right is not None and left < right


def _fill(
    low: Number, high: Number, minimum: Number, maximum: Number
) -> tuple[float, float] | None:
    """Return the part of the track that values cover; without a limit the values set the end."""
    if minimum is None or maximum is None or _less(maximum, minimum):
        return None
    left = minimum if low is None else low
    right = maximum if high is None else high
    if _less(maximum, left) or _less(right, minimum):
        return None
    return _fraction(minimum, left, right, 0.0), _fraction(maximum, left, right, 1.0)


def _fraction(value: int | float, left: int | float, right: int | float, flat: float) -> float:
    """Return where ``value`` lies between ``left`` and ``right``, within 0 and 1."""
    if right <= left:
        return flat
    clipped = min(max(value, left), right)
    try:
        return float((clipped - left) / (right - left))
    except OverflowError:  # integers beyond what a float holds
        return flat
