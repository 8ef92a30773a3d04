"""The tier of Google Colab: text panel, CPU replay, guard, printed restart steps.

With the versions Colab pins, real kernels, and Colab's mark in the environment. It is not Colab
itself: its front end is not here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata, util
from typing import Any

import pytest
from jupyter_client import KernelManager

DIAGNOSIS = "application/vnd.cudassert.diagnosis.v1+json"
LINE = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [53,0,0], "
    "thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    "RuntimeError: CUDA error: device-side assert triggered\n"
)
SETUP = """\
import os, torch
from torch import nn
model = nn.Embedding(1000, 16).cuda()
ids = torch.arange(12).reshape(3, 4)
ids[2, 1] = 1000"""
FAILING = """\
rows = model(ids.cuda())
score = rows.sum()
print(score.item())"""


class Answer:
    """What one cell showed and replied."""

    def __init__(self, status: str, messages: list[dict[str, Any]]) -> None:
        self.status = status
        self.messages = messages

    def _contents(self, kind: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] == kind]

    @property
    def text(self) -> str:
        """Streams, plain texts and tracebacks, without colors."""
        parts = [content["text"] for content in self._contents("stream")]
        parts += [content["data"].get("text/plain", "") for content in self.bundles]
        parts += ["\n".join(content["traceback"]) for content in self._contents("error")]
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))

    @property
    def bundles(self) -> list[dict[str, Any]]:
        return self._contents("display_data") + self._contents("update_display_data")

    @property
    def diagnosis(self) -> dict[str, Any]:
        found = [c["data"][DIAGNOSIS] for c in self.bundles if DIAGNOSIS in c["data"]]
        assert found, f"no diagnosis; the cell showed:\n{self.text}"
        return dict(found[-1])


Run = Callable[[str], Answer]


@pytest.fixture
def run() -> Iterator[Run]:
    """Run cells in a fresh kernel whose first cells load the extension and the simulator."""
    manager = KernelManager(kernel_name="python3")
    environment = {**os.environ, "COLAB_RELEASE_TAG": "release-test", "OMP_NUM_THREADS": "1"}
    environment.pop("JPY_SESSION_NAME", None)
    manager.start_kernel(env=environment)
    client = manager.client()
    client.start_channels()

    def execute(code: str) -> Answer:
        status = "aborted"
        while status == "aborted":  # it came while the kernel still emptied its queue of an error
            messages: list[dict[str, Any]] = []
            reply = client.execute_interactive(code, timeout=90, output_hook=messages.append)
            status = reply["content"]["status"]
        return Answer(status, messages)

    try:
        client.wait_for_ready(timeout=60)
        yield execute
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture
def run_loaded(run: Run) -> Run:
    for cell in ("%load_ext cudassert_ipy", "%cuda_debug simulator on", SETUP):
        answer = run(cell)
        assert answer.status == "ok", answer.text
    return run


def test_this_leg_has_the_versions_of_colab() -> None:
    """The leg would prove nothing with other versions, or with the package `comm`."""
    versions = [metadata.version(name) for name in ("ipython", "ipykernel", "ipywidgets")]
    assert versions == ["7.34.0", "6.17.1", "7.7.1"]
    assert util.find_spec("comm") is None


def test_healthy_cells_run_as_ever(run: Run) -> None:
    """Loading works, without torch being imported, and cells keep their results and errors."""
    assert run("%load_ext cudassert_ipy").status == "ok"
    assert "False" in run("import sys; print('torch' in sys.modules)").text
    assert "42" in run("print(6 * 7)").text
    failed = run("1 / 0")
    assert failed.status == "error"
    assert not failed.bundles
    assert "cudassert" not in failed.text
    assert run("%unload_ext cudassert_ipy").status == "ok"


def test_the_panel_has_a_text_twin(run_loaded: Run) -> None:
    """A death keeps its error and status, and shows line and panel."""
    answer = run_loaded(FAILING)
    assert answer.status == "error"
    assert "CUDA error: device-side assert triggered" in answer.text
    assert answer.diagnosis["failure"]["kind"] == "device_assert"
    assert answer.diagnosis["context"] == "dead"
    assert answer.diagnosis["environment"]["front_end"] == "colab"
    panel = next(c["data"] for c in answer.bundles if DIAGNOSIS in c["data"])
    assert "torch.nn.functional.embedding" in panel["text/plain"]
    innocent = run_loaded("torch.ones(3, device='cuda').sum().item()")
    assert innocent.status == "error"
    assert "nothing is wrong with this cell" in innocent.text


def test_the_replay_works(run_loaded: Run) -> None:
    """The forked child finds the value under the old kernel too."""
    run_loaded(FAILING)
    finding = run_loaded("%cuda_debug replay").diagnosis["finding"]
    assert finding["bad_values"] == [1000]
    assert finding["batch_rows"] == [2]
    assert finding["line"] == 1


def test_the_guard_keeps_the_kernel_alive(run_loaded: Run) -> None:
    """%%cuda_debug raises before the launch."""
    answer = run_loaded("%%cuda_debug\n" + FAILING)
    assert answer.status == "error"
    assert "OperandError" in answer.text
    assert answer.diagnosis["finding"]["bad_values"] == [1000]
    assert "3.0" in run_loaded("print(torch.ones(3, device='cuda').sum().item())").text


def test_the_restart_is_printed_steps(run_loaded: Run) -> None:
    """No exec under this kernel: the steps are printed, and the process is the same."""
    before = run_loaded("started = 'before'; print(os.getpid())").text.split()[0]
    run_loaded(FAILING)
    answer = run_loaded("%cuda_debug restart")
    assert "Restart session" in answer.text
    assert "1." in answer.text
    assert "2." in answer.text
    after = run_loaded("print(os.getpid(), started)").text.split()
    assert after[:2] == [before, "before"]


def test_explain_needs_nothing_newer() -> None:
    """The command line decodes a log."""
    done = subprocess.run(
        [sys.executable, "-m", "cudassert_ipy", "explain", "-"],
        input=LINE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "embedding" in done.stdout
