"""What a replayed cell printed, kept apart from what is said about it."""

from __future__ import annotations

from typing import Final

from cudassert_ipy import messages
from cudassert_ipy.report.clean import clean
from cudassert_ipy.report.html import render_template
from cudassert_ipy.report.numbers import count

OUTPUT_LIMIT: Final = 20_000
"""Characters that are shown."""


def shown_output(text: str) -> str:
    """Return the output as text that is safe to show, the end of a long one cut, and said so.

    The first and the last part stay: a progress bar fills the middle, the end is where it failed.
    """
    text = text.rstrip()
    if len(text) <= OUTPUT_LIMIT:
        return clean(text, OUTPUT_LIMIT)
    half = OUTPUT_LIMIT // 2
    left_out = messages.OUTPUT_LEFT_OUT.format(count=count(len(text) - 2 * half))
    return f"{clean(text[:half], half)}\n{left_out}\n{clean(text[-half:], half)}"


def render_output_html(text: str) -> str:
    """Return the output under a fold that is closed at first."""
    return render_template("output.html.j2", output=shown_output(text))
