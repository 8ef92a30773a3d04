"""The story of the README with real clicks in a real JupyterLab, in light and in dark.

Screenshots of every station go to tests/screenshots/ for a person to look at.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from cudassert_ipy import messages

LOAD, SIMULATOR, SETUP, FAILING, INNOCENT, CPU = range(6)
CELLS = [
    "%load_ext cudassert_ipy",
    "%cuda_debug simulator on",
    """\
import os, torch
from torch import nn
torch.manual_seed(0)
tokens, positions = nn.Embedding(1000, 128).cuda(), nn.Embedding(16, 128).cuda()
head = nn.Linear(128, 10).cuda()
batch = {"ids": torch.randint(0, 1000, (32, 16))}
batch["ids"][7, 3] = 1000""",
    """\
ids = batch["ids"].cuda()
places = positions(torch.arange(16, device="cuda"))
logits = head(tokens(ids) + places)
score = logits.mean()
print(score.item())""",
    "torch.ones(3, device='cuda').sum().item()",
    "print('pid', os.getpid(), 'blocking', os.environ.get('CUDA_LAUNCH_BLOCKING'), len(batch))",
]
DIAGNOSIS = "application/vnd.cudassert.diagnosis.v1+json"


def _diagnosis(notebook: Any, cell: int) -> dict[str, Any]:
    """Return the last diagnosis in the saved outputs of a cell."""
    outputs = notebook.save().cells[cell].outputs
    found = [o.data[DIAGNOSIS] for o in outputs if DIAGNOSIS in o.get("data", {})]
    assert found, f"no diagnosis in the outputs of cell {cell}"
    return dict(found[-1])


def _pid(notebook: Any) -> str:
    found = re.search(r"pid (\d+) blocking", notebook.output(CPU))
    assert found, notebook.output(CPU)
    return found.group(1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_from_the_crash_to_the_living_kernel(open_notebook: Any, theme: str) -> None:
    """Crash, panel, innocent cell, replay, restart and replay, and CUDA works again."""
    notebook = open_notebook(CELLS, name=f"story-{theme}")
    notebook.set_theme(theme)
    picture = f"story_{theme}"

    # 1. The cell fails lines later, keeps its error, and Run All stops.
    notebook.run_all(timeout=90)
    notebook.button(FAILING, messages.BUTTON_REPLAY).wait_for()
    shown = notebook.output(FAILING)
    assert "AcceleratorError" in shown
    assert "CUDA error: device-side assert triggered" in shown
    assert "srcIndex < srcSelectDimSize" in notebook.whole_output(FAILING)
    assert notebook.prompt(FAILING) == "[4]:"
    assert notebook.prompt(INNOCENT) == "[ ]:"
    notebook.screenshot(f"{picture}_1_panel", cell=FAILING)

    # 2. A further CUDA cell is innocent; CPU cells work as ever.
    notebook.run_cell(INNOCENT)
    assert messages.INNOCENT.format(cell=4) in notebook.output(INNOCENT)
    notebook.run_cell(CPU)
    assert "blocking None 1" in notebook.output(CPU)
    pid = _pid(notebook)
    notebook.screenshot(f"{picture}_2_innocent", cell=INNOCENT)

    # 3. The replay finds the value without touching the kernel.
    notebook.click_button(FAILING, messages.BUTTON_REPLAY)
    notebook.wait_for_output(FAILING, "batch rows")
    notebook.wait_for_idle()
    finding = _diagnosis(notebook, FAILING)["finding"]
    assert finding["expression"] == "ids"
    assert finding["line"] == 3
    marked = finding["source"][finding["column"] : finding["end_column"]]
    assert marked == "tokens(ids)"
    assert finding["bad_values"] == [1000]
    assert finding["batch_rows"] == [7]
    assert "999" in notebook.output(FAILING)
    notebook.screenshot(f"{picture}_3_finding", cell=FAILING)
    notebook.set_width(620)
    notebook.screenshot(f"{picture}_3_finding_narrow", cell=FAILING)
    notebook.set_width(1280)
    table = notebook.cell(FAILING).locator(".jp-OutputArea .widget-html table").last
    assert "arange" in table.inner_text()
    notebook.cell(FAILING).get_by_label(messages.FILTER_BAD).click()
    table.filter(has_not_text="arange").wait_for()
    notebook.click_button(FAILING, messages.BUTTON_REPORT)
    report = notebook.cell(FAILING).locator("textarea").last
    report.wait_for()
    assert "tokens(ids)" in report.input_value()
    notebook.click_button(FAILING, messages.BUTTON_REPORT_HIDE)
    notebook.run_cell(CPU)
    assert _pid(notebook) == pid

    # 4. Restart and replay: the first click tells, the second does; one may go back.
    notebook.click_button(FAILING, messages.BUTTON_RESTART)
    notebook.click_button(FAILING, messages.BUTTON_BACK)
    notebook.click_button(FAILING, messages.BUTTON_RESTART_AND_REPLAY)
    notebook.button(FAILING, messages.BUTTON_CONFIRM).wait_for()
    assert "batch" in notebook.output(FAILING)
    notebook.screenshot(f"{picture}_4_plan", cell=FAILING)
    notebook.click_button(FAILING, messages.BUTTON_CONFIRM)
    notebook.button(FAILING, messages.BUTTON_PLAIN).wait_for(timeout=90_000)
    notebook.wait_for_idle(timeout=90)
    diagnosis = _diagnosis(notebook, FAILING)
    assert diagnosis["context"] == "alive"
    assert diagnosis["finding"]["bad_values"] == [1000]
    notebook.screenshot(f"{picture}_5_restarted", cell=FAILING)
    notebook.run_cell(CPU)
    assert _pid(notebook) == pid
    assert "blocking 1 1" in notebook.output(CPU)
    notebook.run_cell(INNOCENT)
    assert notebook.output(INNOCENT).strip().endswith("3.0")
    assert notebook.prompt(INNOCENT) == "[9]:"
    notebook.screenshot(f"{picture}_6_alive")
