"""Small pieces of HTML for the widget panel, escaped by the same templates as everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cudassert_ipy import messages
from cudassert_ipy.report import numbers
from cudassert_ipy.report.clean import clean, clean_line
from cudassert_ipy.report.html import render_template
from cudassert_ipy.report.phrase import Phrase, phrase, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_LOSSES = 8


class Step(Protocol):
    """A cell of a restart plan (``restart.plan.PlanStep``)."""

    @property
    def source(self) -> str:
        """Source as typed."""

    @property
    def execution_count(self) -> int | None:
        """Its number."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    @property
    def shell_only(self) -> bool:
        """Whether it only calls the shell."""

    @property
    def long(self) -> bool:
        """Whether it took long."""


class Lost(Protocol):
    """A variable that a restart loses (``restart.plan.Loss``)."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def type(self) -> str:
        """Name of its type."""

    @property
    def size(self) -> int:
        """Bytes; 0 where not known."""


def render_line_html(
    text: str, *, aside: str = "", strong: bool = False, badge: bool = False, trusted: bool = False
) -> str:
    """Return one line; only with ``trusted`` do back-quoted words of ``text`` become code."""
    said = phrase(text) if trusted else plain(text)
    return render_template(
        "line.html.j2", text=said, aside=clean_line(aside, 80), strong=strong, badge=badge
    )


def render_step_html(step: Step) -> str:
    """Return the first source line of a cell, its seconds, and what makes it stand out."""
    marks = []
    if step.long:
        marks.append(messages.PLAN_LONG)
    if step.shell_only:
        marks.append(messages.PLAN_SHELL_ONLY)
    return render_template(
        "step.html.j2",
        source=first_line(step.source),
        seconds=messages.PLAN_SECONDS.format(seconds=numbers.seconds(step.seconds)),
        marks=marks,
    )


def render_plan_total_html(chosen: int, total: int, duration: float) -> str:
    """Return how many cells will run and how long they took before."""
    text = messages.PLAN_TOTAL.format(
        count=chosen, total=total, seconds=numbers.seconds(float(duration))
    )
    return render_line_html(text)


def render_losses_html(losses: Sequence[Lost], children: Sequence[str]) -> str:
    """Return the list of what a restart loses, the first variables by name."""
    lines: list[Phrase] = [phrase(messages.PLAN_LOST_GPU)]
    lines += [
        phrase(
            messages.PLAN_LOST_VARIABLE if loss.size > 0 else messages.PLAN_LOST_UNSIZED,
            name=clean_line(loss.name, 60),
            type=clean_line(loss.type, 40),
            size=numbers.size_text(loss.size),
        )
        for loss in losses[:_SHOWN_LOSSES]
    ]
    if len(losses) > _SHOWN_LOSSES:
        lines.append(phrase(messages.PLAN_MORE, count=len(losses) - _SHOWN_LOSSES))
    lines += [
        phrase(messages.PLAN_LOST_CHILD, name=clean_line(child, 60))
        for child in children[:_SHOWN_LOSSES]
    ]
    return render_template("losses.html.j2", lines=lines)


def first_line(source: str) -> str:
    """Return the first line of code in ``source``; an ellipsis shows that there are more."""
    lines = [line.strip() for line in clean(source).splitlines() if line.strip()]
    code = [line for line in lines if not line.startswith("#")] or lines or [""]
    return clean_line(code[0], 90) + (" …" if len(lines) > 1 else "")
