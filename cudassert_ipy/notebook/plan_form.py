"""The restart plan as a form: a tick per cell, and what is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.report.fragments import (
    render_line_html,
    render_losses_html,
    render_plan_total_html,
    render_step_html,
)
from cudassert_ipy.report.numbers import number

if TYPE_CHECKING:
    from cudassert_ipy.restart.plan import PlanStep, RestartPlan

_MAX_TICKS = 150


class PlanForm:
    """The widget is ``widget``; ``selected()`` is what the ticks say.

    Of a very long session only the last cells get a tick of their own (each is a widget that the
    page has to build); the earlier ones stay as planned.
    """

    def __init__(self, plan: RestartPlan) -> None:
        import ipywidgets

        self._plan = plan
        self._first = max(len(plan.steps) - _MAX_TICKS, 0)
        self.ticks: list[Any] = []
        rows = []
        for step in plan.steps[self._first :]:
            tick = _tick(ipywidgets, step)
            tick.observe(self._render_total, names="value")
            self.ticks.append(tick)
            text = ipywidgets.HTML(value=render_step_html(step), layout={"flex": "1 1 auto"})
            rows.append(ipywidgets.HBox([tick, text], layout={"width": "100%"}))
        self._total = ipywidgets.HTML(layout={"width": "auto"})
        self._render_total()
        parts = [ipywidgets.HTML(value=render_line_html(messages.PLAN_TITLE, strong=True))]
        if rows:
            parts.append(ipywidgets.HTML(value=render_line_html(messages.PLAN_RUNS)))
            if self._first:
                earlier = messages.PLAN_EARLIER.format(count=self._first)
                parts.append(ipywidgets.HTML(value=render_line_html(earlier)))
            parts.append(
                ipywidgets.VBox(rows, layout={"max_height": "280px", "overflow": "hidden auto"})
            )
            parts.append(self._total)
        else:
            parts.append(ipywidgets.HTML(value=render_line_html(messages.PLAN_RUNS_NONE)))
        parts.append(ipywidgets.HTML(value=render_losses_html(plan.losses, plan.children)))
        self.widget: Any = ipywidgets.VBox(parts, layout={"width": "100%"})

    def selected(self) -> list[int]:
        """Return the indices into ``plan.steps`` that are to run again, in order."""
        early = [index for index in range(self._first) if self._plan.steps[index].selected]
        ticked = [self._first + index for index, tick in enumerate(self.ticks) if tick.value]
        return early + ticked

    def _render_total(self, _: Any = None) -> None:
        chosen = [self._plan.steps[index] for index in self.selected()]
        duration = sum(step.seconds for step in chosen)
        self._total.value = render_plan_total_html(len(chosen), len(self._plan.steps), duration)


def _tick(ipywidgets: Any, step: PlanStep) -> Any:
    # The description names the cell for screen readers; the source stands beside it as HTML, since
    # descriptions set formulas.
    name = "" if step.execution_count is None else f"[{number(step.execution_count)}]"
    return ipywidgets.Checkbox(
        value=step.selected, description=name, indent=False, layout={"width": "64px"}
    )
