"""Restart and replay through the extension, in a real kernel on the simulator."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.kernel.driver import DIAGNOSIS, FAILING, SETUP

pytestmark = pytest.mark.kernel

FOUND = 1000


def diagnosis_of_last_update(kernel):
    shown = [
        m["content"]["data"][DIAGNOSIS]
        for m in kernel.log
        if m["msg_type"] in ("display_data", "update_display_data")
        and DIAGNOSIS in m["content"]["data"]
    ]
    return shown[-1] if shown else None


def check_the_new_kernel(kernel, pid, next_count):
    """The story after a restart: same process, blocking launches, numbers go on, CUDA works."""
    assert kernel.evaluate(
        "[__import__('os').getpid(), __import__('os').environ['CUDA_LAUNCH_BLOCKING']]"
    ) == [pid, "1"]
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"CUDA_LAUNCH_BLOCKING=1" in environ.split(b"\0")
    cell = kernel.run("torch.ones(2, device='cuda').sum().item()")
    assert cell.status == "ok", cell.traceback
    assert cell.count == next_count


def test_the_magic_restarts_in_place_and_replays(dead_kernel):
    """`%cuda_debug restart` execs inside its cell; the new process answers it with the finding."""
    kernel = dead_kernel
    pid = kernel.pid
    cell = kernel.run("%cuda_debug restart", timeout=90)
    assert cell.status == "ok", cell.traceback + cell.stderr
    assert cell.count == 4
    diagnosis = cell.diagnoses[-1]
    assert diagnosis["finding"]["bad_values"] == [FOUND]
    assert diagnosis["finding"]["line"] == 1
    assert diagnosis["replay"]["state"] == "checkpoint"
    assert diagnosis["context"] == "alive"
    check_the_new_kernel(kernel, pid, 5)
    assert kernel.evaluate("In[3]") == FAILING
    fixed = kernel.run("ids[2, 5] = 999; batch = {'ids': ids.cuda()}\n" + FAILING)
    assert fixed.status == "ok", fixed.traceback


def test_after_a_restart_places_are_those_of_a_plain_replay(start_kernel):
    """Lines count as typed, the origin too, and no value is said to be of an earlier time."""
    kernel = start_kernel()
    kernel.run("import torch\nemb = torch.nn.Embedding(10, 4).cuda()\nids = torch.arange(10)")
    cell = kernel.run("\n\nmoved = ids.cuda() + 1\nemb(moved).sum().item()")
    assert cell.status == "error"
    restarted = kernel.run("%cuda_debug restart", timeout=90)
    diagnosis = restarted.diagnoses[-1]
    assert diagnosis["finding"]["line"] == 4
    step = diagnosis["finding"]["origin"][-1]
    assert (step["line"], step["file"], step["expression"]) == (3, "", "ids.cuda() + 1")
    assert "end of cell" not in (diagnosis["replay"]["note"] or "")
    text = restarted.bundles[-1]["text/plain"]
    assert "line 3 · `ids.cuda() + 1`" in " ".join(text.split())


def test_the_replay_can_run_guarded_on_the_device(start_kernel):
    """With `replay_on = "gpu"` the new kernel runs the cell itself, guarded, and lives."""
    kernel = start_kernel()
    kernel.run("%config CudaDebug.replay_on = 'gpu'")
    kernel.run(SETUP)
    kernel.run(FAILING)
    cell = kernel.run("%cuda_debug restart", timeout=90)
    diagnosis = cell.diagnoses[-1]
    assert (diagnosis["replay"]["where"], diagnosis["replay"]["state"]) == ("gpu", "guard")
    assert diagnosis["finding"]["bad_values"] == [FOUND]
    assert diagnosis["failure"]["kind"] == "device_assert"
    assert diagnosis["context"] == "alive"
    assert kernel.evaluate("torch.ones(2).cuda().sum().item()") == 2.0


def test_two_clicks_restart_and_replay(start_kernel):
    """The first click shows the plan, the second restarts; all appears where the panel stands."""
    kernel = start_kernel(buttons=True)
    kernel.run(SETUP)
    kernel.run("!true")
    cell = kernel.run(FAILING)
    panel, pid = cell.panels[0], kernel.pid
    kernel.click(panel, "Restart and replay")
    kernel.wait_until(
        lambda: "CheckboxModel" in {s["_model_name"] for s in kernel.visible(panel).values()}
    )
    ticks = [
        s["value"] for s in kernel.visible(panel).values() if s["_model_name"] == "CheckboxModel"
    ]
    assert sorted(ticks) == [False, True]  # the shell-only cell is not ticked
    text = " ".join(str(s.get("value", "")) for s in kernel.visible(panel).values())
    assert "ids" in text  # a CPU variable that will be lost
    assert kernel.evaluate("1") == 1
    assert kernel.pid == pid
    labels = [
        s["description"]
        for s in kernel.visible(panel).values()
        if s["_model_name"] == "ButtonModel"
    ]
    kernel.click(panel, labels[0])
    kernel.wait_until(lambda: (diagnosis_of_last_update(kernel) or {}).get("finding"), timeout=90)
    update = [m for m in kernel.log if m["msg_type"] == "update_display_data"][-1]
    origin = next(m for m in cell.messages if m["msg_type"] == "display_data")
    assert update["content"]["transient"] == origin["content"]["transient"]
    assert update["parent_header"]["msg_id"] == origin["parent_header"]["msg_id"]
    assert diagnosis_of_last_update(kernel)["finding"]["bad_values"] == [FOUND]
    kernel.wait_until(
        lambda: (
            "Restart without"
            in " ".join(str(s.get("description")) for s in kernel.visible(panel).values())
        )
    )
    check_the_new_kernel(kernel, pid, 5)


def test_the_restart_button_runs_the_set_up_and_replays_nothing(start_kernel):
    """`Restart` shows the plan too, runs the set-up without blocking, and says it is alive."""
    kernel = start_kernel(buttons=True)
    kernel.run(SETUP)
    cell = kernel.run(FAILING)
    kernel.click(cell.panels[0], "Restart")
    kernel.click(cell.panels[0], "Restart now")
    kernel.wait_until(lambda: diagnosis_of_last_update(kernel)["context"] == "alive", timeout=60)
    shown = [m for m in kernel.log if m["msg_type"] == "update_display_data"][-1]
    assert "The kernel was restarted" in shown["content"]["data"]["text/plain"]
    blocking = "__import__('os').environ.get('CUDA_LAUNCH_BLOCKING')"
    assert kernel.evaluate(f"[{blocking}, model.weight.is_cuda]") == [None, True]


def test_the_badge_restarts_without_blocking(dead_kernel, start_kernel):
    """The button beside the badge restarts once more, without blocking launches."""
    kernel = start_kernel(buttons=True)
    kernel.run(SETUP)
    kernel.run(FAILING)
    cell = kernel.run("%cuda_debug restart", timeout=90)
    panel, pid = cell.panels[-1], kernel.pid
    kernel.click(panel, "Restart without")
    time.sleep(1)
    deadline = time.monotonic() + 60
    while b"CUDA_LAUNCH_BLOCKING" in Path(f"/proc/{pid}/environ").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert kernel.run("model.weight.device.type", timeout=60).bundles[-1]["text/plain"] == "'cuda'"
    assert kernel.evaluate("__import__('os').environ.get('CUDA_LAUNCH_BLOCKING')") is None


def test_a_set_up_cell_that_fails_stops_the_rest(start_kernel):
    """The set-up stops at the first cell that fails, and says which."""
    kernel = start_kernel()
    kernel.run("import os\nonce = os.environ.pop('ONLY_ONCE', None)")
    kernel.run("assert os.environ.setdefault('PYTHONHASHSEED_', str(os.getpid())); n = 0")
    kernel.run("import pathlib; flag = pathlib.Path('/tmp') / f'cudassert-test-{os.getpid()}'")
    kernel.run("assert not flag.exists(); flag.touch()")
    kernel.run("late = 1")
    kernel.run(SETUP)
    assert kernel.run(FAILING).status == "error"
    cell = kernel.run("%cuda_debug restart", timeout=90)
    kernel.run("flag.unlink(missing_ok=True)")
    assert "cell [5]" in cell.stdout
    assert "AssertionError" in cell.stdout
    assert kernel.evaluate("'late' in globals()") is False


def test_a_restart_by_hand_is_taken_up(start_kernel):
    """Where exec is not proven: printed steps, and the next `%load_ext` offers what was left."""
    kernel = start_kernel(VSCODE_PID="1")
    kernel.run(SETUP)
    assert kernel.run(FAILING).status == "error"
    cell = kernel.run("%cuda_debug restart")
    assert cell.status == "ok"
    assert "1. " in cell.stdout
    assert "CUDA_LAUNCH_BLOCKING=1" in cell.stdout
    kernel.restart_by_hand()
    offered = kernel.run("%load_ext cudassert_ipy")
    assert "%cuda_debug restart" in offered.stdout
    assert kernel.evaluate("'model' in globals()") is False
    sent = kernel.send("%cuda_debug restart")
    kernel.finish(sent)
    kernel.wait_until(lambda: (diagnosis_of_last_update(kernel) or {}).get("finding"))
    assert diagnosis_of_last_update(kernel)["finding"]["bad_values"] == [FOUND]
    assert kernel.evaluate("torch.ones(2).cuda().sum().item()") == 2.0


def test_a_handoff_that_is_not_ours_is_ignored(start_kernel, tmp_path):
    """A handoff from elsewhere runs nothing; the kernel starts as ever."""
    path = tmp_path / "handoff.json"
    path.write_text('{"version": 1, "pid": 1, "cells": [{"source": "ran = True"}]}')
    path.chmod(0o600)
    kernel = start_kernel(
        load=False,
        arguments=[
            f"--CudaDebug.handoff={path}",
            "--InteractiveShellApp.extra_extensions=cudassert_ipy",
        ],
    )
    assert kernel.evaluate("'ran' in globals()") is False
    assert kernel.run("%cuda_debug").status == "ok"


def test_cancel_stops_the_set_up(start_kernel):
    """The cancel button ends the set-up that runs again, between two cells."""
    kernel = start_kernel(buttons=True)
    for number in range(8):
        kernel.run(f"import time; time.sleep(0.5); ran = {number}")
    kernel.run(SETUP)
    cell = kernel.run(FAILING)
    kernel.click(cell.panels[0], "Restart and replay")
    kernel.click(cell.panels[0], "Restart now")
    kernel.click(cell.panels[0], "Cancel", timeout=60)
    kernel.wait_until(
        lambda: any(
            "ancelled" in str(s.get("value")) for s in kernel.visible(cell.panels[0]).values()
        )
    )
    assert kernel.evaluate("'model' in globals()") is False
    assert kernel.evaluate("ran") < 7
    cell = kernel.run("%cuda_debug restart", timeout=90)
    assert "run again: [2], [3], [4], [5], [6], [7], [8], [9], [10]" in cell.stdout
    assert cell.diagnoses[-1]["finding"]["bad_values"] == [FOUND]
    assert kernel.evaluate("ran") == 7


def test_an_old_failure_is_not_replayed_again(dead_kernel):
    """After a restart and a fix, the next restart runs everything and replays nothing."""
    kernel = dead_kernel
    kernel.run("%cuda_debug restart", timeout=90)
    kernel.run("ids[2, 5] = 999; batch = {'ids': ids.cuda()}")
    assert kernel.run(FAILING).status == "ok"
    kernel.run("later = 7")
    cell = kernel.run("%cuda_debug restart", timeout=90)
    assert "run again: [2], [5], [6], [7]" in cell.stdout
    assert cell.diagnoses == []
    assert kernel.evaluate("[later, value != 0, model.weight.is_cuda]") == [7, True, True]


@pytest.mark.parametrize(
    "wrapped",
    [
        "try:\n    model(batch['ids']).sum().item()\nexcept Exception: print('caught')",
        "%%capture\nmodel(batch['ids']).sum().item()",
    ],
)
def test_the_failed_cell_never_runs_as_set_up(start_kernel, wrapped):
    """A cell that caught its own CUDA error is not run again as set-up."""
    kernel = start_kernel()
    kernel.run(SETUP)
    kernel.run(wrapped)
    cell = kernel.run("%cuda_debug restart", timeout=90)
    assert cell.status == "ok", cell.stderr
    assert "run again: [2]" in cell.stdout
    assert kernel.evaluate("torch.ones(2).cuda().sum().item()") == 2.0


def test_restart_without_a_failure_runs_the_set_up(start_kernel):
    """`%cuda_debug restart` works when nothing failed: set-up only, and the simulator stays on."""
    kernel = start_kernel(simulator=False)
    kernel.run("%cuda_debug simulator on")
    kernel.run("import torch\nx = torch.ones(2).cuda()")
    cell = kernel.run("%cuda_debug restart", timeout=90)
    assert cell.status == "ok"
    assert kernel.evaluate("[x.sum().item(), x.is_cuda]") == [2.0, True]


def test_interrupt_and_shutdown_work_after_it(dead_kernel):
    """The stop button works in the new process, and the manager can restart it as ever."""
    kernel = dead_kernel
    kernel.run("%cuda_debug restart", timeout=90)
    sent = kernel.send("import time; time.sleep(60)")
    time.sleep(1)
    os.kill(kernel.pid, signal.SIGINT)
    assert kernel.finish(sent).reply["ename"] == "KeyboardInterrupt"


def test_prompt_numbers_and_line_numbers_in_the_panel(dead_kernel):
    """The cell that failed keeps its number after the restart."""
    cell = dead_kernel.run("%cuda_debug restart", timeout=90)
    assert cell.diagnoses[-1]["cell"]["execution_count"] == 3
    assert "cell [3]" in cell.bundles[-1]["text/plain"]
