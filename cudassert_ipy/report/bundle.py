"""A diagnosis as a display bundle: text, HTML and data, saying the same."""

from __future__ import annotations

from typing import Any

from cudassert_ipy.model import MIME_TYPE, Diagnosis
from cudassert_ipy.report.html import render_html
from cudassert_ipy.report.private import without_values
from cudassert_ipy.report.text import render_text


def bundle(diagnosis: Diagnosis, *, show_values: bool = True) -> dict[str, Any]:
    """Return MIME types and their data, ready for ``display(…, raw=True)``.

    With ``show_values`` false, no tensor value is in any of them.
    """
    if not show_values:
        diagnosis = without_values(diagnosis)
    return {
        "text/plain": render_text(diagnosis),
        "text/html": render_html(diagnosis),
        MIME_TYPE: diagnosis.to_dict(),
    }
