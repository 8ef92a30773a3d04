"""A diagnosis as HTML for notebooks.

Autoescape is the only wall between hostile text and the page: ``ipywidgets.HTML`` and trusted
notebooks sanitize nothing. So: no scripts, no frames, no external resources, no links, no command
buttons; every value passes through the template engine. Untrusted notebooks drop ``<style>`` and
``<svg>``: the markup is readable without them, and the range picture has a text twin.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.report.numbers import count
from cudassert_ipy.report.private import without_values
from cudassert_ipy.report.tensors import tensor_lines
from cudassert_ipy.report.view import SIGNS, view

if TYPE_CHECKING:
    from jinja2 import Environment

    from cudassert_ipy.model import Diagnosis, Role
    from cudassert_ipy.report.parts import Row


def render_html(diagnosis: Diagnosis, *, show_values: bool = True) -> str:
    """Return the diagnosis as one HTML fragment that brings its own style."""
    if not show_values:
        diagnosis = without_values(diagnosis)
    return render_template("diagnosis.html.j2", **_parts(diagnosis))


def render_finding_html(diagnosis: Diagnosis, *, show_values: bool = True) -> str:
    """Return the outcome as one line that unfolds to everything but the tensor table.

    For a widget that has a table of its own.
    """
    if not show_values:
        diagnosis = without_values(diagnosis)
    return render_template("headline.html.j2", **{**_parts(diagnosis), "lines": (), "more": 0})


def render_tensors_html(
    diagnosis: Diagnosis,
    *,
    role: Role | None = None,
    only_bad: bool = False,
    show_values: bool = True,
) -> str:
    """Return the tensor table, optionally of one role or only of rows with offending values."""
    if not show_values:
        diagnosis = without_values(diagnosis)
    lines, more = tensor_lines(diagnosis, role=role, only_bad=only_bad)
    return render_template("tensors.html.j2", lines=lines, more=more)


def _parts(diagnosis: Diagnosis) -> dict[str, Any]:
    said = view(diagnosis)
    lines, more = tensor_lines(diagnosis)
    summary = messages.DETAILS_TENSORS.format(count=count(len(diagnosis.tensors)))
    return {"said": said, "lines": lines, "more": more, "tensors_summary": summary}


def render_template(name: str, **values: Any) -> str:
    """Return one of our templates, filled; every value is escaped."""
    template = _environment().get_template(name)
    return template.render(m=messages, count=count, signs=SIGNS, **values).strip()


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("cudassert_ipy.report"),
        autoescape=True,  # of every template, whatever its name
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["labeled"] = _labeled
    return environment


def _labeled(rows: tuple[Row, ...]) -> list[tuple[str, list[Row]]]:
    """Return neighboring rows with the same label as one group, so that it is written once."""
    return [(label, list(group)) for label, group in itertools.groupby(rows, lambda row: row.label)]
