"""The same mistakes in a real kernel: ``%%cuda_debug``, and a replay after the death."""

from __future__ import annotations

import pytest

from tests.kernel.conftest import start_kernel  # noqa: F401 - a fixture
from tests.models.mistakes import MISTAKES

pytestmark = pytest.mark.kernel

GUARDED = (
    "bert: id",
    "gpt2: label of padding",
    "t5: decoder id from a label",
    "graph: edge to a node that is not there",
    "graph: SAGEConv",
    "graph: GATConv",
)


def named(finding):
    return finding["expression"] or (finding["holder"] or {}).get("expression")


def test_the_guard_and_the_replay_name_the_users_tensor(start_kernel):  # noqa: F811
    """Six cells under ``%%cuda_debug`` leave the kernel alive; the seventh dies and is replayed."""
    kernel = start_kernel()
    for name in GUARDED:
        mistake = MISTAKES[name]
        assert kernel.run(mistake.setup, timeout=120).status == "ok"
        cell = kernel.run("%%cuda_debug\n" + mistake.cell, timeout=120)
        assert cell.status == "error", name
        [diagnosis] = cell.diagnoses
        finding = diagnosis["finding"]
        assert named(finding) == mistake.yours, name
        assert finding["frames"][0]["line"] == mistake.line + 1
        assert diagnosis["replay"]["state"] == "guard"
        assert diagnosis["context"] == "alive"
        assert "cudassert_ipy/" not in cell.traceback, name

    mistake = MISTAKES["llama: label"]
    kernel.run(mistake.setup)
    cell = kernel.run(mistake.cell + "\nout.loss.item()", timeout=120)
    assert cell.reply["ename"] == "AcceleratorError"
    replayed = kernel.run("%cuda_debug replay", timeout=120)
    diagnosis = replayed.diagnoses[-1]
    assert diagnosis["replay"]["outcome"] == "raised"
    assert diagnosis["finding"]["certainty"] == "exact"
    assert diagnosis["finding"]["frames"][0]["line"] == mistake.line
    holder = diagnosis["finding"]["holder"]
    assert (holder["expression"], holder["positions"]) == (mistake.yours, [[1, 4]])
    text = " ".join(replayed.bundles[-1]["text/plain"].split())
    assert 'values made from batch["labels"] is out of range for cross_entropy' in text
