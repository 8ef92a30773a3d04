"""The pieces of a view: rows of a label and a sentence, and what unfolds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudassert_ipy import messages

if TYPE_CHECKING:
    from cudassert_ipy.report.phrase import Phrase
    from cudassert_ipy.report.picture import Picture


@dataclass(frozen=True, slots=True)
class Row:
    """One fact: what it is about, and a sentence."""

    key: str
    """Key into ``messages.LABELS``."""
    text: Phrase
    drawing: Picture | None = None
    """A range picture that says the same as the text."""

    @property
    def label(self) -> str:
        """The label as it is shown."""
        return messages.LABELS[self.key]


@dataclass(frozen=True, slots=True)
class Detail:
    """Rows that are folded away at first."""

    summary: str
    rows: tuple[Row, ...]


def row(key: str, text: Phrase, drawing: Picture | None = None) -> Row:
    """Return a row; ``key`` must be one of ``messages.LABELS``."""
    return Row(key, text, drawing)
