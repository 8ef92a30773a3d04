"""Where the values of a finding came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.report import numbers
from cudassert_ipy.report.clean import clean_line
from cudassert_ipy.report.parts import Row, row
from cudassert_ipy.report.phrase import Phrase, code, join, plain
from cudassert_ipy.report.places import line_of

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding, Origin

_SHOWN_STEPS = 6


def origin_rows(finding: Finding) -> list[Row]:
    """Return one row for each of the last operations that made the values, the last one last."""
    return [row("origin", _step(item)) for item in finding.origin[-_SHOWN_STEPS:]]


def _step(item: Origin) -> Phrase:
    where = line_of(item.line, item.function, item.file)
    parts = [plain(where)] if where else []
    text = item.expression or item.source.strip()
    parts.append(code(clean_line(text, 100)) if text else code(clean_line(item.operation, 80)))
    given = _values(item.given_dtype, item.given_minimum, item.given_maximum, item.given_nan_count)
    made = _values(item.dtype, item.minimum, item.maximum, item.nan_count)
    parts.append(plain(f"{given} → {made}" if given else made))
    if item.note:
        parts.append(plain(item.note))
    return join([part for part in parts if part], " · ")


def _values(dtype: str, low: float | None, high: float | None, nan_count: int) -> str:
    """Return ``int64 0 to 9``; only the type where the values are not known."""
    words = [clean_line(dtype, 20)] if dtype else []
    if low is not None and high is not None:
        words.append(
            messages.ORIGIN_RANGE.format(low=numbers.number(low), high=numbers.number(high))
        )
    text = " ".join(words)
    if nan_count > 0:
        text += messages.ORIGIN_WITH_NAN.format(count=numbers.count(nan_count))
    return text
