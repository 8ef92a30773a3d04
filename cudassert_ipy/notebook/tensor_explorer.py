"""The tensor table as a widget: filter by role, show only rows with offending values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.report.html import render_tensors_html
from cudassert_ipy.report.tensors import roles

if TYPE_CHECKING:
    from cudassert_ipy.model import Diagnosis


class TensorExplorer:
    """The widget is ``widget``; its controls are there only where there is something to choose."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        import ipywidgets

        self._diagnosis = diagnosis
        known = roles(diagnosis)
        options = [(messages.FILTER_ALL, ""), *((role, role) for role in known)]
        self.role = ipywidgets.Dropdown(
            options=options,
            value="",
            description=messages.FILTER_ROLE,
            style={"description_width": "initial"},
            layout={"width": "180px"},
        )
        self.only_bad = ipywidgets.Checkbox(
            value=False, description=messages.FILTER_BAD, indent=False, layout={"width": "auto"}
        )
        self.table = ipywidgets.HTML(layout={"width": "auto"})
        self.role.observe(self._render, names="value")
        self.only_bad.observe(self._render, names="value")
        self._render()
        controls = ipywidgets.HBox(
            [self.role, self.only_bad],
            layout={"flex_flow": "row wrap", "align_items": "center", "width": "100%"},
        )
        few = len(diagnosis.tensors) < 2
        self.widget: Any = ipywidgets.VBox(
            [self.table] if few else [controls, self.table], layout={"width": "100%"}
        )

    def _render(self, _: Any = None) -> None:
        self.table.value = render_tensors_html(
            self._diagnosis, role=self.role.value or None, only_bad=self.only_bad.value
        )
