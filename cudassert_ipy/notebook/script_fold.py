"""The panel's button for a reproducer: asks, and shows the scripts in text areas to copy from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.report.fragments import render_line_html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cudassert_ipy.notebook.reproducing import Reproducer


class ScriptFold:
    """The button and what it unfolds: the scripts once they are made, and a question before.

    Args:
        widgets: ``ipywidgets``.
        make_starter: makes the button of the panel that starts the work.
        html: makes a widget that shows HTML.
        dispose: closes widgets for good.
        scripts: those that were made; they stand unfolded.

    """

    def __init__(
        self,
        widgets: Any,
        make_starter: Callable[[], Any],
        html: Callable[[str], Any],
        dispose: Callable[[Iterable[Any]], None],
        scripts: Sequence[Reproducer],
    ) -> None:
        self._widgets = widgets
        self._make_starter = make_starter
        self._html = html
        self._dispose = dispose
        self._scripts = scripts
        self.box = widgets.VBox([], layout={"width": "100%"})
        self.button = widgets.Button(
            description=messages.BUTTON_REPRODUCE,
            tooltip=messages.TOOLTIP_REPRODUCE,
            layout={"width": "auto", "min_width": "80px"},
        )
        self.button.on_click(self._toggle)
        if scripts:
            self._toggle(None)

    def _toggle(self, _: Any) -> None:
        if self.box.children:
            old, self.box.children = self.box.children, ()
            self._dispose(old)
            self.button.description = messages.BUTTON_REPRODUCE
            return
        parts = []
        for script in self._scripts:
            parts.append(self._html(render_line_html(f"{script.title} {script.status}")))
            if script.text:
                layout = {"width": "100%", "height": "16em", "max_width": "60em"}
                parts.append(self._widgets.Textarea(value=script.text, layout=layout))
        question = self._html(render_line_html(messages.REPRO_RUNS))
        self.box.children = [*parts, question, self._make_starter()]
        self.button.description = messages.BUTTON_REPRODUCE_HIDE
