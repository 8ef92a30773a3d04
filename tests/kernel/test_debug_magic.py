"""`%%cuda_debug` in a real kernel: the guard, and the checkpoint."""

from __future__ import annotations

import pytest

from tests.kernel.driver import FAILING, SETUP

pytestmark = pytest.mark.kernel


@pytest.fixture
def kernel(start_kernel):
    kernel = start_kernel()
    assert kernel.run(SETUP).status == "ok"
    return kernel


def test_the_guard_raises_before_the_launch(kernel):
    """The mistake is an ordinary exception with the finding, and the kernel lives."""
    cell = kernel.run("%%cuda_debug\n" + FAILING)
    assert cell.status == "error"
    assert cell.reply["ename"] == "OperandError"
    assert "1000" in cell.reply["evalue"]
    assert "still running" not in cell.stdout
    [diagnosis] = cell.diagnoses
    finding = diagnosis["finding"]
    assert finding["bad_values"] == [1000]
    assert finding["line"] == 2
    assert finding["source"] == 'rows = model(batch["ids"])'
    assert diagnosis["replay"]["state"] == "guard"
    assert diagnosis["context"] == "alive"
    assert [row["maximum"] for row in diagnosis["tensors"]] == [1000]
    assert kernel.run("batch['ids'].max().item()").bundles[-1]["text/plain"] == "1000"


def test_an_error_that_a_library_made_of_the_guards_is_explained_too(kernel):
    """Who catches IndexError and raises an error of its own does not hide the finding."""
    cell = kernel.run(
        "%%cuda_debug\n"
        "try:\n"
        "    model(batch['ids'])\n"
        "except IndexError as error:\n"
        "    raise RuntimeError('bad input') from error"
    )
    assert cell.reply["ename"] == "RuntimeError"
    [diagnosis] = cell.diagnoses
    assert diagnosis["finding"]["bad_values"] == [1000]
    assert diagnosis["finding"]["line"] == 3
    assert "bad input" in cell.traceback
    assert "cudassert_ipy/" not in cell.traceback


def test_what_the_cells_own_except_swallowed_is_shown(kernel):
    """The cell stays good, its findings are shown once per place, and `report` knows them."""
    cell = kernel.run(
        "%%cuda_debug\n"
        "for attempt in range(3):\n"
        "    try:\n"
        "        model(batch['ids'])\n"
        "    except Exception:\n"
        "        pass\n"
        "try:\n"
        "    model(batch['ids'] + 1)\n"
        "except Exception:\n"
        "    after = 1"
    )
    assert cell.status == "ok"
    assert "An except in this cell swallowed this:" in cell.stdout
    [diagnosis] = cell.diagnoses
    assert (diagnosis["finding"]["line"], diagnosis["finding"]["bad_values"]) == (4, [1000])
    assert [item["line"] for item in diagnosis["more"]] == [8]
    assert diagnosis["context"] == "alive"
    assert kernel.evaluate("after") == 1
    report = kernel.run("%cuda_debug report")
    assert report.status == "ok"
    assert "1000" in report.stdout + str(report.bundles)
    assert kernel.run("%%cuda_debug\nafter").diagnoses == []


def test_no_frames_of_ours_in_the_traceback(kernel):
    """Between the user's line and the message stands nothing of ours."""
    cell = kernel.run("%%cuda_debug\n" + FAILING)
    assert "cudassert_ipy/" not in cell.traceback
    assert "python_dispatch" not in cell.traceback


def test_without_the_guard_the_replay_comes_by_itself(kernel):
    """A death under `--no-guard` is replayed from the state of before the cell."""
    cell = kernel.run("%%cuda_debug --no-guard\nids.zero_()\n" + FAILING)
    assert cell.status == "error"
    assert cell.reply["ename"] == "AcceleratorError"
    [diagnosis] = cell.diagnoses
    assert diagnosis["replay"]["state"] == "checkpoint"
    assert diagnosis["replay"]["outcome"] == "raised"
    assert diagnosis["finding"]["bad_values"] == [1000]
    assert diagnosis["finding"]["line"] == 3
    assert diagnosis["context"] == "dead"


def test_a_loop_over_a_loader_replays_from_its_first_batch(kernel):
    """The checkpoint holds iterators and generators as they were before the cell."""
    kernel.run(
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "data = torch.arange(40); data[17] = 2000\n"
        "loader = DataLoader(TensorDataset(data), batch_size=8, shuffle=True)\n"
        "steps = iter(range(1000)); next(steps)"
    )
    cell = kernel.run(
        "%%cuda_debug --no-guard\n"
        "for (batch,) in loader:\n"
        "    step = next(steps)\n"
        "    out = model(batch.cuda())\n"
        "out.sum().item()"
    )
    assert cell.status == "error"
    [diagnosis] = cell.diagnoses
    assert diagnosis["replay"]["state"] == "checkpoint"
    assert diagnosis["finding"]["bad_values"] == [2000]
    assert diagnosis["finding"]["line"] == 4


def test_a_good_cell_is_as_without_the_magic(kernel):
    """Status, display of the last expression, await and numbers are the cell's own."""
    cell = kernel.run("%%cuda_debug\nimport asyncio\nawait asyncio.sleep(0)\nids.max() - 1000")
    assert cell.status == "ok"
    assert cell.bundles[-1]["text/plain"] == "tensor(0)"
    assert [m["msg_type"] for m in cell.messages if m["msg_type"] == "execute_result"]
    error = kernel.run("%%cuda_debug\nx = 1\ny = 2\n1 / 0")
    assert "line 4" in error.traceback
    assert error.count == cell.count + 1


def test_stats_show_the_checked_tensors(kernel):
    """`--stats` shows the ranges of a healthy cell."""
    cell = kernel.run("%%cuda_debug --stats\nmodel(ids[:2].cuda()).sum().item()")
    assert cell.status == "ok"
    [diagnosis] = cell.diagnoses
    assert diagnosis["tensors"][0]["maximum"] == 15
    assert diagnosis["finding"] is None


def test_an_unknown_option_gets_the_usage(kernel):
    """A wrong option lists the accepted ones, and the cell does not run."""
    cell = kernel.run("%%cuda_debug --nonsense\nran = True")
    assert cell.status == "error"
    assert "--no-guard" in cell.stderr
    assert kernel.evaluate("'ran' in globals()") is False


def test_guard_on_checks_every_cell(kernel):
    """`%cuda_debug guard on` guards the following cells until it is turned off."""
    kernel.run("%cuda_debug guard on")
    assert kernel.run(FAILING).reply["ename"] == "OperandError"
    kernel.run("%cuda_debug guard off")
    assert kernel.run(FAILING).reply["ename"] == "AcceleratorError"


def test_without_a_device_it_says_so(start_kernel):
    """No GPU and no simulator: one sentence, and the cell runs; CPU operands are checked."""
    kernel = start_kernel(simulator=False)
    kernel.run("import torch\nemb = torch.nn.Embedding(10, 2)")
    cell = kernel.run("%%cuda_debug\nemb(torch.tensor([3])).shape")
    assert cell.status == "ok"
    assert "no CUDA device" in cell.stdout
    assert kernel.run("%%cuda_debug\nemb(torch.tensor([10]))").reply["ename"] == "OperandError"


def test_values_stay_out_of_the_notebook_on_request(kernel):
    """With `show_values = False` no tensor value reaches an output."""
    kernel.run("%config CudaDebug.show_values = False")
    cell = kernel.run("%%cuda_debug\nmodel(ids.cuda() * 7)")
    assert cell.reply["ename"] == "OperandError"
    assert "7000" not in str([m["content"] for m in cell.messages]) + str(cell.reply)
    assert cell.diagnoses[0]["finding"]["bad_positions"]


def test_the_time_limit_of_the_cell_counts(kernel):
    """`--timeout` limits the replay that comes by itself."""
    kernel.run("import os, time\nmain = os.getpid()")
    cell = kernel.run(
        "%%cuda_debug --no-guard --timeout 1\nif os.getpid() != main: time.sleep(600)\n" + FAILING
    )
    assert cell.diagnoses[0]["replay"]["outcome"] == "timed_out"


def test_a_checkpoint_that_was_killed_is_told(kernel):
    """Without its checkpoint the death is explained all the same."""
    kernel.run("import os, psutil, signal")
    cell = kernel.run(
        "%%cuda_debug --no-guard\n"
        "for child in psutil.Process().children(recursive=True): child.kill()\n" + FAILING
    )
    assert cell.status == "error"
    assert cell.diagnoses[0]["context"] == "dead"
    assert "your cell is not affected" not in cell.stdout
    found = kernel.run("%cuda_debug replay").diagnoses[0]["finding"]
    assert found["bad_values"] == [1000]


def test_an_interrupt_while_it_prepares_stops_the_cell(kernel):
    """Ctrl-C before the cell starts keeps it from running, rather than running it unguarded."""
    kernel.run(
        "import os, signal\nfrom cudassert_ipy.notebook import debugging\n"
        "def interrupt(self, **options):\n"
        "    debugging.DebugCell._prepare = original\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    import time; time.sleep(5)\n"
        "original = debugging.DebugCell._prepare\n"
        "debugging.DebugCell._prepare = interrupt"
    )
    cell = kernel.run("%%cuda_debug\nran = True")
    assert cell.status == "error"
    assert kernel.evaluate("'ran' in globals()") is False
    assert kernel.run("%%cuda_debug\nran = True").status == "ok"


def test_no_child_is_left(kernel):
    """After good cells and bad ones no process of ours remains."""
    kernel.run("%%cuda_debug\n1")
    kernel.run("%%cuda_debug --no-guard\n" + FAILING)
    kernel.run("%cuda_debug replay")
    code = "import psutil; left = [p.name() for p in psutil.Process().children(recursive=True)]"
    kernel.run(code)
    assert kernel.evaluate("left") == []
