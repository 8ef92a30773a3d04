"""Reproducers in a real kernel: written, tried in a fresh process, printed, filed and shown."""

from __future__ import annotations

import subprocess
import sys

from cudassert_ipy import messages
from tests.kernel.driver import FAILING

SETUP = [
    "import torch\nfrom torch import nn",
    "unused = [1, 2, 3]\nprint(unused)",
    "SIZE = 1000",
    'model = nn.Embedding(SIZE, 128).to("cuda")',
    "!echo hello\nids = torch.arange(32).reshape(4, 8)",
    "ids[2, 5] = 1000",
    'batch = {"ids": ids.to("cuda")}',
]


def scripts_in(text):
    """Return the two scripts of what the magic printed."""
    one = text.index(messages.REPRO_OPERATION)
    cells = text.index(messages.REPRO_CELLS)
    return text[one:cells], text[cells:]


def prepared(start_kernel, **options):
    kernel = start_kernel(**options)
    for cell in SETUP:
        assert kernel.run(cell).status == "ok"
    return kernel


def test_both_scripts_are_verified_and_written(start_kernel, tmp_path):
    """After a replay: one operation in the user's spelling, and the cells without the unused."""
    kernel = prepared(start_kernel)
    assert kernel.run(FAILING).status == "error"
    assert kernel.run("%cuda_debug replay").status == "ok"
    outcome = kernel.run("%cuda_debug repro", timeout=120)
    assert outcome.status == "ok", outcome.traceback
    one, cells = scripts_in(outcome.stdout)
    assert messages.REPRO_RUNS in outcome.stdout
    for part in (one, cells):
        assert part.count(messages.REPRO_VERIFIED) == 2, part  # beside the title and in the script
    assert "torch.nn.functional.embedding(input, weight)" in one
    assert "weight = torch.zeros((1000, 128), dtype=torch.float32, device=device)" in one
    assert "1000" in one
    assert 'device = "cuda"' in one
    assert "unused" not in cells
    assert "SIZE = 1000" in cells
    assert 'rows = model(batch["ids"])' in cells
    assert "still running" not in cells

    file = tmp_path / "repro.py"
    outcome = kernel.run(f"%cuda_debug repro {file}", timeout=120)
    assert outcome.status == "ok", outcome.traceback
    assert f"Written to {file}. {messages.REPRO_VERIFIED}" in outcome.stdout
    text = file.read_text()
    again = kernel.run(f"%cuda_debug repro {file}")
    assert again.status == "error" or "exists already" in again.stderr
    assert file.read_text() == text
    on_cpu = text.replace('device = "cuda"', 'device = "cpu"')
    ran = subprocess.run(
        [sys.executable, "-c", on_cpu], capture_output=True, text=True, timeout=120, check=False
    )
    assert "IndexError: index out of range in self" in ran.stderr


def test_a_finding_of_the_guard(start_kernel):
    """Without any replay the cells tell the call, so that both scripts are there."""
    kernel = prepared(start_kernel)
    assert kernel.run(f"%%cuda_debug --no-checkpoint\n{FAILING}").status == "error"
    assert kernel.run("ids = ids.clamp(max=9)").status == "ok"
    outcome = kernel.run("%cuda_debug repro --cells", timeout=120)
    one, cells = scripts_in(outcome.stdout)
    assert messages.REPRO_VERIFIED in one
    assert messages.REPRO_VERIFIED in cells
    assert "clamp" not in cells


def test_names_that_come_unseen_keep_all_cells(start_kernel):
    """`import *` hides what a cell needs, so nothing is left out, and that is said."""
    kernel = prepared(start_kernel)
    assert kernel.run("from math import *").status == "ok"
    assert kernel.run(FAILING).status == "error"
    outcome = kernel.run("%cuda_debug repro", timeout=120)
    _, cells = scripts_in(outcome.stdout)
    assert "nothing was left out" in cells
    assert "unused" in cells
    assert "# get_ipython().system('echo hello')" in cells


def test_what_does_not_come_again_is_not_claimed(start_kernel, tmp_path):
    """Data that is gone meanwhile: the cells are said not to reproduce it, and why."""
    data = tmp_path / "data.pt"
    kernel = prepared(start_kernel)
    for cell in (
        f"path = {str(data)!r}\nimport os\nif not os.path.exists(path): torch.save(ids, path)",
        'stored = torch.load(path)\nbatch = {"ids": stored.to("cuda")}',
    ):
        assert kernel.run(cell).status == "ok"
    assert kernel.run(FAILING).status == "error"
    kernel.run("%cuda_debug replay")
    assert kernel.run("torch.save(ids.clamp(max=9), path)").status == "ok"
    outcome = kernel.run("%cuda_debug repro", timeout=120)
    one, cells = scripts_in(outcome.stdout)
    assert messages.REPRO_VERIFIED in one
    assert messages.REPRO_VERIFIED not in cells
    assert "Not reproduced: the script ran through" in cells


def test_nothing_to_reproduce(start_kernel):
    """Without a failure one line says so."""
    kernel = start_kernel()
    outcome = kernel.run("%cuda_debug repro")
    assert messages.REPRO_NOTHING in outcome.stdout + outcome.stderr + outcome.traceback


def test_the_button_asks_and_shows_the_scripts(start_kernel):
    """The first click asks in one line; the second runs; the scripts stand in text areas."""
    kernel = prepared(start_kernel, buttons=True)
    outcome = kernel.run(FAILING)
    panel = outcome.panels[0]
    kernel.click(panel, messages.BUTTON_REPLAY)

    def areas():
        states = kernel.visible(panel).values()
        return [s["value"] for s in states if s.get("_model_name") == "TextareaModel"]

    kernel.wait_until(lambda: "index out of range" in str(kernel.visible(panel)))
    kernel.click(panel, messages.BUTTON_REPRODUCE)
    kernel.click(panel, messages.BUTTON_REPRODUCE_GO)
    kernel.wait_until(lambda: len(areas()) == 2, 120)
    assert any("torch.nn.functional.embedding(input, weight)" in text for text in areas())
    shown = " ".join(str(state.get("value")) for state in kernel.visible(panel).values())
    assert "raises the same finding" in shown
