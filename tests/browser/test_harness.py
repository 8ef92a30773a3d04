"""The browser harness itself, on a notebook without the extension.

When the story test fails and these pass, it is the extension; when these fail, it is the harness
or the installed JupyterLab.
"""

from __future__ import annotations

from typing import Any

CLICK_ME = """\
import ipywidgets
button, label = ipywidgets.Button(description="Press me"), ipywidgets.Label("not yet")
def pressed(_):
    label.value = "pressed"
button.on_click(pressed)
ipywidgets.VBox([button, label])"""


def test_a_notebook_runs_and_its_button_answers(open_notebook: Any) -> None:
    """Cells run, a real click reaches the kernel, and its answer appears in the page."""
    notebook = open_notebook(["print(6 * 7)", CLICK_ME])
    notebook.run_cell(0)
    assert notebook.output(0).strip() == "42"
    notebook.run_cell(1)
    notebook.click_button(1, "Press me")
    notebook.wait_for_output(1, "pressed")
    assert notebook.prompt(1) == "[2]:"


def test_run_all_stops_at_an_error(open_notebook: Any) -> None:
    """Run All leaves the cells after a failing one without a number."""
    notebook = open_notebook(["x = 1", "1 / 0", "print('never')"])
    notebook.run_all()
    assert "ZeroDivisionError" in notebook.output(1)
    assert notebook.prompt(2) == "[ ]:"
    assert notebook.save().cells[2].execution_count is None


def test_theme_width_and_screenshot(open_notebook: Any) -> None:
    """Themes change the page and screenshots are written."""
    notebook = open_notebook(["print('hello')"])
    notebook.run_cell(0)
    notebook.set_theme("dark")
    notebook.set_width(700)
    dark = notebook.screenshot("harness_dark").read_bytes()
    notebook.set_theme("light")
    assert notebook.screenshot("harness_light", cell=0).read_bytes() != dark
