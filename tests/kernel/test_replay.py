"""Replays in a forked child, in a real kernel."""

from __future__ import annotations

import pytest

from tests.kernel.driver import FAILING, SETUP

pytestmark = pytest.mark.kernel


def test_the_magic_finds_line_operand_values_and_rows(dead_kernel):
    """`%cuda_debug replay` names the call, the operand as typed, its range, values and rows."""
    cell = dead_kernel.run("%cuda_debug replay")
    assert cell.status == "ok"
    [diagnosis] = cell.diagnoses
    finding = diagnosis["finding"]
    assert finding["operation"] == "torch.nn.functional.embedding"
    assert finding["expression"] == 'batch["ids"]'
    assert finding["line"] == 1
    assert finding["source"] == 'rows = model(batch["ids"])'
    marked = finding["source"][finding["column"] : finding["end_column"]]
    assert marked == 'model(batch["ids"])'
    assert finding["shape"] == [4, 8]
    assert finding["dtype"] in ("int64", "torch.int64")
    assert (finding["minimum"], finding["maximum"]) == (0, 1000)
    assert (finding["valid_minimum"], finding["valid_maximum"]) == (0, 999)
    assert finding["bad_count"] == 1
    assert finding["bad_positions"] == [[2, 5]]
    assert finding["bad_values"] == [1000]
    assert finding["batch_rows"] == [2]
    assert finding["certainty"] == "exact"
    replay = diagnosis["replay"]
    assert (replay["where"], replay["state"], replay["outcome"]) == (
        "cpu",
        "after_failure",
        "raised",
    )
    assert "index out of range in self" in replay["exception"]
    [row] = [row for row in diagnosis["tensors"] if row["bad_count"]]
    assert (row["role"], row["maximum"], row["valid_maximum"]) == ("index", 1000, 999)
    assert diagnosis["context"] == "dead"
    text = cell.bundles[-1]["text/plain"]
    for part in ("1000", "0", "999", 'batch["ids"]', "[2, 5]"):
        assert part in text


def test_the_button_updates_the_panel_in_place(start_kernel):
    """A click shows the finding where the panel stands, and the kernel serves cells meanwhile."""
    kernel = start_kernel(buttons=True)
    kernel.run(SETUP)
    cell = kernel.run(FAILING)
    kernel.click(cell.panels[0], "Replay on CPU")
    kernel.wait_until(
        lambda: any(
            d.get("finding")
            for m in kernel.log
            if m["msg_type"] == "update_display_data"
            for d in [m["content"]["data"]["application/vnd.cudassert.diagnosis.v1+json"]]
        )
    )
    shown = [m for m in kernel.log if m["msg_type"] == "update_display_data"][-1]["content"]
    first = next(m for m in cell.messages if m["msg_type"] == "display_data")["content"]
    assert shown["transient"]["display_id"] == first["transient"]["display_id"]
    assert kernel.report()["finding"]["bad_values"] == [1000]


def test_without_copies_the_outcome_is_inconclusive(start_kernel):
    """A lost index operand is neither a made-up finding nor clean."""
    kernel = start_kernel()
    kernel.run("%config CudaDebug.copies = False")
    kernel.run(SETUP)
    assert kernel.run(FAILING).status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"] is None
    assert diagnosis["replay"]["outcome"] == "inconclusive"
    assert diagnosis["replay"]["substituted"] > 0


def test_values_made_on_the_cpu_side_need_no_copies(start_kernel):
    """An operand that the cell itself brings from the host is known without copies."""
    kernel = start_kernel()
    kernel.run("%config CudaDebug.copies = False")
    kernel.run(SETUP)
    assert kernel.run("model(ids.to('cuda')).sum().item()").status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"]["bad_values"] == [1000]


def test_variables_files_and_iterators_stay_as_they_were(start_kernel, tmp_path):
    """The replay changes nothing in the kernel."""
    data = tmp_path / "data.txt"
    data.write_text("one\ntwo\nthree\n")
    kernel = start_kernel()
    kernel.run(SETUP)
    kernel.run(
        f"file = open({str(data)!r}); numbers = iter(range(100)); seen = []; file.readline()"
    )
    kernel.run("seen.append(file.readline()); seen.append(next(numbers)); written = 5\n" + FAILING)
    before = kernel.evaluate("[file.tell(), seen, torch.initial_seed()]")
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"]["bad_values"] == [1000]
    assert kernel.evaluate("[file.tell(), seen, torch.initial_seed()]") == before
    assert kernel.evaluate("[next(numbers), file.readline()]") == [1, "three\n"]


@pytest.mark.parametrize(
    ("body", "operation", "bad"),
    [
        (
            "labels[3] = 7\nloss = F.cross_entropy(logits, labels.cuda())\nloss.item()",
            "torch.nn.functional.cross_entropy",
            [7],
        ),
        ("rows = table[index.cuda()]\nrows.sum().item()", "x[index]", [-11, 10]),
    ],
)
def test_the_other_families(start_kernel, body, operation, bad):
    """Labels out of range and `x[idx]` are found like embedding indices."""
    kernel = start_kernel()
    kernel.run(
        "import torch, torch.nn.functional as F\n"
        "logits = torch.randn(6, 5, device='cuda'); labels = torch.tensor([0, 1, -100, 4, 0, 1])\n"
        "table = torch.randn(10, 3, device='cuda'); index = torch.tensor([0, -11, 10, -10])"
    )
    assert kernel.run(body).status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    finding = diagnosis["finding"]
    assert operation in finding["operation"]
    assert finding["bad_values"] == bad


def test_ignore_index_is_respected(start_kernel):
    """Labels equal to ignore_index are valid whatever the range."""
    kernel = start_kernel()
    cell = kernel.run(
        "import torch, torch.nn.functional as F\n"
        "labels = torch.tensor([0, 255, 4]).cuda()\n"
        "F.cross_entropy(torch.randn(3, 5).cuda(), labels, ignore_index=255).item()"
    )
    assert cell.status == "ok"


def test_a_crash_of_the_child_is_told(start_kernel):
    """A child that is killed by a signal is called crashed, and the kernel goes on."""
    kernel = start_kernel()
    kernel.run(SETUP)
    kernel.run("import os, signal\nmain = os.getpid()")
    kernel.run("if os.getpid() != main:\n    os.kill(os.getpid(), signal.SIGSEGV)\n" + FAILING)
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["replay"]["outcome"] == "crashed"
    assert "SIGSEGV" in diagnosis["replay"]["note"]
    assert kernel.run("1").status == "ok"


def test_a_child_that_hangs_is_ended(start_kernel):
    """The time limit ends a replay, and the panel says so."""
    kernel = start_kernel()
    kernel.run("%config CudaDebug.replay_seconds = 1.0")
    kernel.run(SETUP)
    kernel.run("import os, time\nmain = os.getpid()")
    kernel.run("if os.getpid() != main:\n    time.sleep(600)\n" + FAILING)
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["replay"]["outcome"] == "timed_out"
    assert kernel.run("1").status == "ok"


def test_the_cancel_button_ends_a_replay(start_kernel):
    """Cancel ends a running replay at once; the panel says so and can be used again."""
    kernel = start_kernel(buttons=True)
    kernel.run(SETUP)
    kernel.run("import os, time\nmain = os.getpid()")
    cell = kernel.run("if os.getpid() != main:\n    time.sleep(600)\n" + FAILING)
    kernel.click(cell.panels[0], "Replay on CPU")
    kernel.click(cell.panels[0], "Cancel")
    kernel.wait_until(lambda: kernel.report()["replay"] is not None)
    assert kernel.report()["replay"]["outcome"] == "cancelled"
    kernel.click(cell.panels[0], "Replay on CPU")


def test_nothing_to_replay_is_said(start_kernel):
    """Without a failure the magic says so."""
    cell = start_kernel().run("%cuda_debug replay")
    assert cell.status == "error"
    assert "nothing to replay" in cell.stderr


@pytest.mark.parametrize(
    "talk",
    [
        "print('hello')",
        "import sys; print('err', file=sys.stderr); sys.stdout.write('x')",
        "display('shown'); display({'text/html': '<b>x</b>', 'text/plain': 'x'}, raw=True)",
        "!echo from the shell",
        "import warnings; warnings.warn('careful')",
        "import logging; logging.warning('careful')",
        "from IPython.display import clear_output, HTML; clear_output(); display(HTML('<i>x</i>'))",
        "import os; os.write(1, b'fd 1'); os.write(2, b'fd 2')",
        "get_ipython().run_cell('1 + 1')",
        "%matplotlib --list",
    ],
)
def test_a_cell_that_talks_is_replayed(start_kernel, talk):
    """Whatever the cell shows before the bad operand, the finding is the same."""
    kernel = start_kernel()
    kernel.run(SETUP)
    assert kernel.run(f"{talk}\n{FAILING}\n1 + 1").status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["replay"]["outcome"] == "raised", diagnosis["replay"]
    assert diagnosis["finding"]["bad_values"] == [1000]


def test_the_last_expression_of_a_replayed_cell_is_shown(start_kernel):
    """A replay that runs through displays its last expression like any cell."""
    kernel = start_kernel()
    kernel.run(SETUP)
    kernel.run("import os\nmain = os.getpid()")
    kernel.run("if os.getpid() == main:\n    model(batch['ids'])\nbatch['ids'].shape")
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["replay"]["exception"] is None


def test_inputs_that_the_cell_changed_are_put_back(start_kernel):
    """A replay after the failure does not accuse what only the failed cell's own changes made."""
    kernel = start_kernel()
    kernel.run(
        "import torch, torch.nn.functional as F\n"
        "y = torch.tensor([1, 2, 3]); lg = torch.randn(3, 2).cuda(); offset = 5\n"
        "emb = torch.nn.Embedding(10, 3).cuda(); queue = [0, 1, 2, 3]\n"
        "data = torch.tensor([[1, 2], [3, 4], [5, 10], [1, 1]])"
    )
    cases = [
        ("y -= 1\nF.cross_entropy(lg, y.cuda()).item()", [2], 2),
        (
            (
                "offset += 3; ids = torch.arange(2).cuda() + offset\nemb(ids).sum().item()\n"
                "offset += 100; ids2 = torch.arange(2).cuda() + 9\nemb(ids2).sum().item()"
            ),
            [10],
            4,
        ),
        ("while queue:\n    k = queue.pop(0)\n    emb(data[k].cuda()).sum().item()", [10], 3),
    ]
    for cell, bad, line in cases:
        assert kernel.run(cell).status == "error"
        [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
        finding = diagnosis["finding"]
        assert (finding["bad_values"], finding["line"]) == (bad, line)
        assert finding["certainty"] == "exact"
        kernel.run("%cuda_debug simulator off")
        kernel.run("%cuda_debug simulator on")
        kernel.run("lg = torch.randn(3, 2).cuda(); emb = torch.nn.Embedding(10, 3).cuda()")


def test_inputs_that_are_gone_are_named(start_kernel):
    """An iterator that the cell has used up makes the replay say so, not 'clean'."""
    kernel = start_kernel()
    kernel.run(SETUP)
    kernel.run("rows = iter([torch.tensor([1]), torch.tensor([1000]), torch.tensor([2])])")
    cell = "next(rows)\nrow = next(rows)\nmodel(row.cuda()).sum().item()"
    assert kernel.run(cell).status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"] is None
    assert diagnosis["replay"]["outcome"] == "inconclusive"
    assert "rows" in diagnosis["replay"]["note"]


def test_lines_count_in_the_cell_as_typed(start_kernel):
    """Blank lines at the top of a cell, which IPython drops, are counted."""
    kernel = start_kernel()
    kernel.run(SETUP)
    cell = kernel.run("\n  \n" + FAILING)
    assert cell.diagnoses[0]["reported_at"]["line"] == 6
    assert kernel.run("%cuda_debug replay").diagnoses[0]["finding"]["line"] == 3


def test_an_awaiting_cell_is_replayed(start_kernel):
    """A cell with top-level await runs in the child on a loop of its own."""
    kernel = start_kernel()
    kernel.run(SETUP)
    assert kernel.run("import asyncio\nawait asyncio.sleep(0)\n" + FAILING).status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"]["line"] == 3


def test_lines_in_other_cells_and_files_are_named(start_kernel, tmp_path):
    """A line in a function of another cell or file is told with that cell or file."""
    (tmp_path / "mymod.py").write_text(
        "class Tagger:\n    def __init__(self, emb):\n        self.emb = emb\n\n"
        "    def loss(self, ids):\n        return self.emb(ids)\n"
    )
    kernel = start_kernel(PYTHONPATH=str(tmp_path))
    kernel.run(SETUP)
    kernel.run("import mymod\n\n\ndef step(ids):\n    return model(ids)")
    assert kernel.run("x = 1\nout = step(batch['ids'])\nout.sum().item()").status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    frames = diagnosis["finding"]["frames"]
    assert [(f["function"], f["line"], f["file"]) for f in frames] == [
        ("<module>", 2, ""),
        ("step", 5, "cell [3]"),
    ]
    assert diagnosis["finding"]["line"] == 5
    assert diagnosis["reported_at"]["line"] == 3
    kernel.run("%cuda_debug restart")
    kernel.run("ok = mymod.Tagger(model)")
    cell = kernel.run("%%cuda_debug\nok.loss(batch['ids'])")
    frames = cell.diagnoses[0]["finding"]["frames"]
    assert [(f["line"], f["file"]) for f in frames] == [(2, ""), (6, "mymod.py")]
    assert "mymod.py" in cell.bundles[-1]["text/plain"]


def test_a_timed_cell_keeps_line_and_name(start_kernel):
    """Under `%%time`, which compiles the body on its own, line and operand are known as ever."""
    kernel = start_kernel()
    kernel.run(SETUP)
    cell = kernel.run("%%time\nx = 1\nrows = model(batch['ids'])\nrows.sum().item()")
    assert cell.status == "error"
    assert cell.diagnoses[0]["reported_at"] == {"line": 4, "source": "rows.sum().item()"}
    finding = kernel.run("%cuda_debug replay").diagnoses[0]["finding"]
    assert (finding["line"], finding["expression"]) == (3, "batch['ids']")
