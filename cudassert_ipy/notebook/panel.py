"""The widget under the outputs: buttons, the restart plan, progress and the tensor table.

Everything stands in one container, because a container that the page already shows can be taken
over by the process that comes after a restart in place (``Panel.adopt``), while new widgets cannot
be shown in a cell of a page that was reloaded. Every text goes into HTML widgets through the
escaping templates of ``cudassert_ipy.report``: labels and descriptions of ipywidgets would set
``$…$`` from a user's source line as a formula.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from cudassert_ipy import messages
from cudassert_ipy.notebook.plan_form import PlanForm
from cudassert_ipy.notebook.script_fold import ScriptFold
from cudassert_ipy.notebook.tensor_explorer import TensorExplorer
from cudassert_ipy.report.fragments import render_line_html
from cudassert_ipy.report.html import render_finding_html
from cudassert_ipy.report.numbers import count, is_number, seconds
from cudassert_ipy.report.output import render_output_html
from cudassert_ipy.report.private import without_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cudassert_ipy.model import Diagnosis
    from cudassert_ipy.notebook.reproducing import Reproducer
    from cudassert_ipy.restart.plan import RestartPlan

log = logging.getLogger(__name__)

_BUTTON_WIDTH = "auto"


class PanelActions(Protocol):
    """What the buttons do. Called in a widget callback: long work is started, not awaited."""

    def replay(self) -> None:
        """Replay the failing cell."""

    def replay_whole(self) -> None:
        """Replay the whole cell, not only the body of a loop in it."""

    def cancel(self) -> None:
        """Cancel what the progress bar shows."""

    def plan_restart(self, *, replay: bool) -> None:
        """Show the plan of a restart, with or without a replay after it."""

    def confirm_restart(self, selected: Sequence[int]) -> None:
        """Restart now; run again the steps of the plan with these indices."""

    def back(self) -> None:
        """Leave the plan."""

    def report_markdown(self) -> str:
        """Return the report to copy from."""

    def reproduce(self) -> None:
        """Write a reproducer and try it."""

    def restart_plain(self) -> None:
        """Restart without blocking launches."""


class Panel:
    """One panel; its content is one of the states below, the last one shown.

    A click disables all buttons until the next state or note, so that a second click (or that of
    somebody else in a shared notebook) does nothing.
    """

    def __init__(self, actions: PanelActions, *, show_values: bool = True, box: Any = None) -> None:
        import ipywidgets

        self._widgets = ipywidgets
        self._actions = actions
        self._show_values = show_values
        self._box = box if box is not None else ipywidgets.VBox(layout={"width": "100%"})
        self._main: list[Any] = []
        self._note: Any = None
        self._badge: list[Any] = []
        self._buttons: list[Any] = []
        self._bar: Any = None
        self._bar_text: Any = None
        self._closed = False
        self._output = ""
        self._scripts: Sequence[Reproducer] = ()

    @classmethod
    def adopt(
        cls, actions: PanelActions, comm_id: str, kernel: Any, *, show_values: bool = True
    ) -> Panel | None:
        """Return a panel that takes over the container which the page shows under ``comm_id``.

        For the process after a restart in place: no ``comm_open`` is sent, since the page knows the
        widget already. None where this is not possible: without the package ``comm`` (ipykernel
        6.17 with ipywidgets 7.7), or where its interface is another one (seen with comm 0.2).
        """
        box = _adopted_box(comm_id, kernel)
        if box is None:
            return None
        panel = cls(actions, show_values=show_values, box=box)
        panel._refresh()
        return panel

    @property
    def comm_id(self) -> str | None:
        """Id of the container's comm, for the handoff; None once closed."""
        found: str | None = getattr(self._box.comm, "comm_id", None)
        return found

    def display(self) -> None:
        """Show the panel as an output of the running cell."""
        from IPython.display import display

        display(self._box)

    def offer(self, diagnosis: Diagnosis) -> None:
        """Show the buttons for ``diagnosis.actions``; after a replay, its result as well."""
        if diagnosis.replay is not None or diagnosis.finding is not None:
            self.result(diagnosis)
        else:
            self._set([*self._action_rows(diagnosis.actions)])

    def result(self, diagnosis: Diagnosis, output: str | None = None) -> None:
        """Show the outcome in one line that unfolds, the tensor table, and the next buttons.

        ``output``: what the cell printed in the replay, folded away; None for what it was before.

        The ordinary output above shows the outcome as well, but cannot be reached any more when the
        page was reloaded during a replay or restart.
        """
        if not self._show_values:
            diagnosis = without_values(diagnosis)
        parts = [self._html(render_finding_html(diagnosis))]
        if diagnosis.tensors:
            parts.append(TensorExplorer(diagnosis).widget)
        self._output = self._output if output is None else output
        if self._output.strip():
            parts.append(self._html(render_output_html(self._output)))
        self._set([*parts, *self._action_rows(diagnosis.actions)])

    def show_scripts(self, scripts: Sequence[Reproducer], diagnosis: Diagnosis) -> None:
        """Show reproducers, with what trying them showed, under the buttons of ``diagnosis``."""
        self._scripts = scripts
        self.offer(diagnosis)

    def show_plan(self, plan: RestartPlan) -> None:
        """Show what a restart runs again and what it loses; the next click does it."""
        form = PlanForm(plan)
        confirm = self._button(
            messages.BUTTON_CONFIRM,
            lambda: self._actions.confirm_restart(form.selected()),
            style="warning",
        )
        back = self._button(messages.BUTTON_BACK, self._actions.back)
        self._set([form.widget, self._row([confirm, back])], buttons=[confirm, back])

    def progress(self, label: str, done: float | None, total: float | None) -> None:
        """Show a bar with a cancel button; without ``total`` only the label and the time.

        ``done`` and ``total`` count whatever the caller counts; without ``total``, ``done`` is
        seconds.
        """
        known = is_number(done) and is_number(total) and float(total or 0) > 0
        if self._bar is None:
            self._start_bar()
        if known:
            fraction = min(max(float(done or 0) / float(total or 1), 0.0), 1.0)
            text = f"{count(int(done or 0))} / {count(int(total or 0))}"
        else:
            fraction = 0.0
            text = f"{seconds(float(done))} s" if done is not None and is_number(done) else ""
        self._bar.value = fraction
        # An empty or a full bar would say something that is not known.
        self._bar.layout.display = None if known else "none"
        self._bar_text.value = render_line_html(label, aside=text)

    def note(self, text: str) -> None:
        """Show one line under the current state, and enable its buttons again."""
        old, self._note = self._note, self._html(render_line_html(text))
        for button in self._buttons:
            button.disabled = False
        self._refresh()
        _dispose([old] if old is not None else [])

    def blocking_badge(self) -> None:
        """Show, under every later state, that blocking launches are on and how to leave them."""
        if not self._badge:
            text = self._html(render_line_html(messages.BLOCKING_BADGE, trusted=True, badge=True))
            button = self._button(messages.BUTTON_PLAIN, self._actions.restart_plain)
            self._badge = [self._row([text, button])]
            self._buttons.append(button)
        self._refresh()

    def close(self) -> None:
        """Take the panel off the page; may be called again."""
        if not self._closed:
            self._closed = True
            children, self._box.children = self._box.children, ()
            _dispose([*children, self._box])

    def _set(self, main: list[Any], buttons: list[Any] | None = None) -> None:
        """Make ``main`` the state, and drop the widgets of the state before."""
        old = [*self._main, *([] if self._note is None else [self._note])]
        self._main = main
        self._note = self._bar = self._bar_text = None
        if buttons is not None:
            self._buttons = buttons
        for widget in _tree(self._badge):  # the badge outlives the states, with its button
            if hasattr(widget, "click"):
                widget.disabled = False
                self._buttons.append(widget)
        self._refresh()
        _dispose(old if not self._closed else [*old, *main])

    def _refresh(self) -> None:
        if not self._closed:
            note = [] if self._note is None else [self._note]
            self._box.children = (*self._main, *note, *self._badge)

    def _action_rows(self, actions: Sequence[str]) -> list[Any]:
        """Return the button row and, folded away at first, the report under it."""
        report = _Report(self._widgets, self._actions, self._html)
        table: dict[str, tuple[str, str, Callable[[], object], str]] = {
            "replay": (
                messages.BUTTON_REPLAY,
                messages.TOOLTIP_REPLAY,
                self._actions.replay,
                "primary",
            ),
            "replay_whole": (
                messages.BUTTON_REPLAY_WHOLE,
                messages.TOOLTIP_REPLAY_WHOLE,
                self._actions.replay_whole,
                "primary",
            ),
            "restart_and_replay": (
                messages.BUTTON_RESTART_AND_REPLAY,
                messages.TOOLTIP_RESTART_AND_REPLAY,
                lambda: self._actions.plan_restart(replay=True),
                "",
            ),
            "restart": (
                messages.BUTTON_RESTART,
                messages.TOOLTIP_RESTART,
                lambda: self._actions.plan_restart(replay=False),
                "",
            ),
        }
        buttons = []
        for action in actions:
            if action in table:
                label, tooltip, click, style = table[action]
                buttons.append(self._button(label, click, tooltip=tooltip, style=style))
        self._buttons = list(buttons)
        if "report" not in actions:
            return [self._row(buttons)] if buttons else []
        fold = ScriptFold(self._widgets, self._starter, self._html, _dispose, self._scripts)
        return [self._row([*buttons, report.button, fold.button]), report.box, fold.box]

    def _starter(self) -> Any:
        """Return the button that makes reproducers; any click of the panel disables it too."""
        button = self._button(messages.BUTTON_REPRODUCE_GO, self._actions.reproduce)
        self._buttons.append(button)
        return button

    def _start_bar(self) -> None:
        self._bar = self._widgets.FloatProgress(
            value=0.0, min=0.0, max=1.0, layout={"width": "100%", "max_width": "420px"}
        )
        bar, text = self._bar, self._html("")
        cancel = self._button(messages.BUTTON_CANCEL, self._actions.cancel)
        self._set([text, self._row([bar, cancel])], buttons=[cancel])
        self._bar, self._bar_text = bar, text

    def _html(self, value: str) -> Any:
        return self._widgets.HTML(value=value, layout={"width": "auto"})

    def _row(self, children: list[Any]) -> Any:
        # Wraps: a sidebar or a phone shows the buttons under each other.
        return self._widgets.HBox(
            children, layout={"flex_flow": "row wrap", "align_items": "center", "width": "100%"}
        )

    def _button(
        self, label: str, click: Callable[[], object], *, tooltip: str = "", style: str = ""
    ) -> Any:
        button = self._widgets.Button(
            description=label,
            tooltip=tooltip,
            button_style=style,
            layout={"width": _BUTTON_WIDTH, "min_width": "80px"},
        )
        button.on_click(lambda _: self._clicked(click))
        return button

    def _clicked(self, action: Callable[[], object]) -> None:
        if any(button.disabled for button in self._buttons):
            return  # a click that was already on its way when the first one was handled
        for button in self._buttons:
            button.disabled = True
        try:
            action()
        except Exception as error:
            # An exception in a widget callback shows nowhere in the notebook, so it is said here.
            log.exception("a button of the panel failed")
            self.note(f"{type(error).__name__}: {error}")


class _Report:
    """The report button and the text area that it opens."""

    def __init__(self, widgets: Any, actions: PanelActions, html: Callable[[str], Any]) -> None:
        self._widgets = widgets
        self._actions = actions
        self._html = html
        self.box = widgets.VBox([], layout={"width": "100%"})
        self.button = widgets.Button(
            description=messages.BUTTON_REPORT,
            tooltip=messages.TOOLTIP_REPORT,
            layout={"width": _BUTTON_WIDTH, "min_width": "80px"},
        )
        self.button.on_click(self._toggle)

    def _toggle(self, _: Any) -> None:
        if self.box.children:
            old, self.box.children = self.box.children, ()
            _dispose(old)
            self.button.description = messages.BUTTON_REPORT
            return
        text = self._actions.report_markdown()
        area = self._widgets.Textarea(
            value=text, layout={"width": "100%", "height": "18em", "max_width": "60em"}
        )
        self.box.children = (self._html(render_line_html(messages.REPORT_PREVIEW)), area)
        self.button.description = messages.BUTTON_REPORT_HIDE


def _tree(widgets: Iterable[Any]) -> list[Any]:
    """Return the widgets with all that they contain."""
    found = []
    for widget in widgets:
        found.append(widget)
        found += _tree(getattr(widget, "children", ()))
    return found


def _dispose(widgets: Iterable[Any]) -> None:
    """Close widgets with all that they contain; otherwise kernel and page keep them for ever."""
    for widget in _tree(widgets):
        for part in (getattr(widget, "layout", None), getattr(widget, "style", None), widget):
            if part is not None:
                part.close()


def _adopted_box(comm_id: str, kernel: Any) -> Any:
    """Return a container bound to the comm that an earlier process opened; None where impossible.

    Seen to work with comm 0.2 and ipywidgets 8.1 under ipykernel 6.29 and 7.4: a comm that is not
    primary sends no ``comm_open``; ipywidgets sends only through a comm that knows its kernel.
    """
    try:
        import comm
        import ipywidgets
    except ImportError:
        return None
    try:
        adopted = comm.create_comm(target_name="jupyter.widget", comm_id=comm_id, primary=False)
        adopted.kernel = kernel
        comm.get_comm_manager().register_comm(adopted)
        box = ipywidgets.VBox(comm=adopted, layout={"width": "100%"})
        box.send_state()
    except (AttributeError, TypeError):  # another interface than the one this was written for
        log.warning("the panel of the earlier process cannot be taken over", exc_info=True)
        return None
    return box
