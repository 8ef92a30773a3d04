"""The source line of a finding, cut into the part before, the marked part and the part after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudassert_ipy.report.clean import clean

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding

_BEFORE = 60
_MARKED = 160
_AFTER = 60


@dataclass(frozen=True, slots=True)
class MarkedSource:
    """One source line; ``marked`` is the failing call or index expression (or empty)."""

    line: str
    """Line number, or empty."""
    before: str
    marked: str
    after: str

    @property
    def text(self) -> str:
        """The line as it is shown."""
        return self.before + self.marked + self.after


def marked_source(finding: Finding) -> MarkedSource | None:
    """Return the source line of a finding, dedented and bounded; None where it is not known."""
    raw = finding.source[:100_000]
    if not raw.strip():
        return None
    start = finding.column if finding.column is not None else 0
    end = finding.end_column if finding.end_column is not None else start
    start = min(max(start, 0), len(raw))
    end = min(max(end, start), len(raw))
    # Cleaning changes lengths, so the parts are cleaned one by one.
    before, marked, after = (_flat(raw[:start]), _flat(raw[start:end]), _flat(raw[end:]))
    before = before.lstrip()
    if not before and not marked:
        after = after.lstrip()
    if len(before) > _BEFORE:
        before = "… " + before[-_BEFORE:]
    if len(marked) > _MARKED:
        marked = marked[:_MARKED] + " …"
    limit = _AFTER if marked else _BEFORE + _MARKED
    after = after.rstrip()
    if len(after) > limit:
        after = after[:limit] + " …"
    line = "" if finding.line is None else str(finding.line)[:12]
    return MarkedSource(line, before, marked, after)


def _flat(text: str) -> str:
    return clean(text, 20_000).replace("\n", " ")
