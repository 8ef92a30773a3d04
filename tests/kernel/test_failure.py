"""A cell dies of a device-side assert, in a real kernel on the simulator."""

from __future__ import annotations

import pytest
import torch

from tests.kernel.driver import FAILING, SETUP

pytestmark = pytest.mark.kernel

ASSERTION = "Assertion `srcIndex < srcSelectDimSize` failed."


@pytest.fixture
def died(start_kernel):
    kernel = start_kernel(buttons=True)
    assert kernel.run(SETUP).status == "ok"
    return kernel, kernel.run(FAILING)


def test_the_error_is_torchs_own_and_comes_late(died):
    """The cell fails at `.item()` with torch's class, code and text, after assertion lines."""
    _, cell = died
    assert cell.status == "error"
    assert "still running" in cell.stdout
    assert ASSERTION in cell.stderr
    assert cell.reply["ename"] == "AcceleratorError"
    assert cell.reply["evalue"].startswith("CUDA error: device-side assert triggered\n")
    assert "CUDA kernel errors might be asynchronously reported" in cell.reply["evalue"]
    assert (
        "value = score.item()" in cell.traceback.replace("\x1b[39m", "") or "item" in cell.traceback
    )


def test_one_line_stands_above_the_traceback(died):
    """The first line of the traceback says in plain words what happened."""
    _, cell = died
    first = cell.traceback.splitlines()[0]
    assert "device-side assert" in first
    assert "---" not in first
    assert cell.reply["traceback"][0] == first


def test_the_panel_says_what_happened(died):
    """The bundle carries text, HTML and the diagnosis, and a widget with the buttons follows."""
    kernel, cell = died
    [diagnosis] = cell.diagnoses
    data = next(b for b in cell.bundles if "text/html" in b and "text/plain" in b)
    for word in ("embedding", "cell [3]"):
        assert word in data["text/plain"]
    assert diagnosis["context"] == "dead"
    assert diagnosis["failure"]["kind"] == "device_assert"
    assert diagnosis["failure"]["code"] == 710
    [assertion] = diagnosis["failure"]["assertions"]
    assert assertion["expression"] == "srcIndex < srcSelectDimSize"
    assert assertion["count"] >= 1
    assert diagnosis["cell"] == {
        "execution_count": 3,
        "id": None,
        "first_failed": 3,
        "innocent": False,
    }
    assert diagnosis["reported_at"] == {"line": 4, "source": "value = score.item()"}
    assert diagnosis["environment"]["simulated"] is True
    assert diagnosis["environment"]["torch"] == torch.__version__
    assert len(cell.panels) == 1
    labels = [
        state["description"]
        for state in kernel.visible(cell.panels[0]).values()
        if state.get("_model_name") == "ButtonModel"
    ]
    assert labels[:3] == ["Replay on CPU", "Restart and replay", "Restart"]


def test_run_all_stops(start_kernel):
    """Cells queued behind the failing one are aborted."""
    kernel = start_kernel()
    kernel.run(SETUP)
    first, second = kernel.send(FAILING), kernel.send("after = 1")
    assert kernel.finish(first).status == "error"
    assert kernel.finish(second).status == "aborted"


def test_an_unnoticed_death_is_charged_to_its_cell(start_kernel):
    """A cell that ends before Python notices gets the error, and Run All stops there."""
    kernel = start_kernel()
    kernel.run(SETUP)
    first, second = kernel.send('rows = model(batch["ids"])'), kernel.send("after = 1")
    cell = kernel.finish(first)
    assert cell.status == "error"
    assert cell.reply["ename"] == "AcceleratorError"
    assert cell.diagnoses[0]["cell"]["execution_count"] == 3
    assert ASSERTION in cell.stderr
    assert kernel.finish(second).status == "aborted"


def test_later_cuda_cells_are_called_innocent(dead_kernel):
    """A later CUDA cell fails, and one line names the cell in which the context died."""
    cell = dead_kernel.run('x = torch.ones(3, device="cuda")')
    assert cell.status == "error"
    assert "cell [3]" in cell.traceback.splitlines()[0]
    assert cell.diagnoses == []


def test_cpu_cells_work_as_ever(dead_kernel):
    """CPU variables are untouched, and CPU torch works on the dead context."""
    cell = dead_kernel.run("(ids + 1).max().item()")
    assert cell.status == "ok"
    assert cell.bundles[-1]["text/plain"] == "1001"
    assert dead_kernel.run("1 / 0").diagnoses == []


def test_a_dead_tensor_can_be_shown(dead_kernel):
    """Showing a lost tensor says so instead of raising."""
    cell = dead_kernel.run('batch["ids"]')
    assert cell.status == "ok"
    assert "lost: context dead since cell [3]" in cell.bundles[-1]["text/plain"]


def test_out_of_memory_gets_one_line_and_no_panel(start_kernel):
    """An error that leaves the context alive is explained in one line; the kernel goes on."""
    kernel = start_kernel()
    cell = kernel.run('import torch\nx = torch.empty(1 << 40, device="cuda")')
    assert cell.status == "error"
    assert cell.reply["ename"] == "OutOfMemoryError"
    assert "no restart" in cell.traceback.splitlines()[0].lower()
    assert cell.diagnoses == []
    assert kernel.run('torch.ones(2, device="cuda").sum().item()').status == "ok"


def test_a_swallowed_error_is_found_and_the_status_kept(start_kernel):
    """The user's own `except` decides the status; the panel appears all the same."""
    kernel = start_kernel()
    kernel.run(SETUP)
    cell = kernel.run(
        "try:\n    model(batch['ids']).sum().item()\nexcept Exception as error:\n    print(error)"
    )
    assert cell.status == "ok"
    assert cell.diagnoses[0]["context"] == "dead"
    assert kernel.run("%cuda_debug replay").diagnoses[0]["finding"]["bad_values"] == [1000]


def test_loaded_after_the_crash(start_kernel):
    """A kernel that is dead already is told so when the extension is loaded."""
    kernel = start_kernel(load=False, simulator=False, buttons=True)
    kernel.run("from cudassert_ipy.standin import simulator\nsimulator.on()")
    assert kernel.run(SETUP).status == "ok"
    assert kernel.run(FAILING).status == "error"
    cell = kernel.run("%load_ext cudassert_ipy")
    assert cell.status == "ok"
    [diagnosis] = cell.diagnoses
    assert diagnosis["context"] == "dead"
    assert diagnosis["cell"]["execution_count"] == 3
    assert "restart_and_replay" in diagnosis["actions"]
    assert len(cell.panels) == 1


def test_with_blocking_launches_the_line_is_the_cause(start_kernel):
    """Under CUDA_LAUNCH_BLOCKING=1 the error comes at the operation, and the panel knows it."""
    kernel = start_kernel(CUDA_LAUNCH_BLOCKING="1")
    kernel.run(SETUP)
    cell = kernel.run(FAILING)
    assert cell.status == "error"
    assert "still running" not in cell.stdout
    [diagnosis] = cell.diagnoses
    assert diagnosis["failure"]["blocking"] is True
    assert diagnosis["reported_at"]["line"] == 1
    text = next(b["text/plain"] for b in cell.bundles if "text/html" in b)
    assert "Only where Python noticed" not in text
    assert "Only where Python noticed" not in cell.traceback


def test_a_look_alike_by_hand_is_no_dead_context(start_kernel):
    """An exception with the words but a living device is not called a dead context."""
    kernel = start_kernel()
    kernel.run('import torch\nt = torch.ones(2, device="cuda")')
    cell = kernel.run('raise RuntimeError("CUDA error: device-side assert triggered")')
    assert cell.diagnoses == []
    assert kernel.run("t.sum().item()").status == "ok"
