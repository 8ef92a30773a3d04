"""The whole story in terminal IPython, typed into a real pseudo-terminal."""

from __future__ import annotations

import os
import re
import sys

import pexpect
import pytest

ESCAPE = re.compile(r"\x1b\][^\x07]*\x07|\x1b\[[0-9;?]*[a-zA-Z]")

SETUP = (
    "import torch; emb = torch.nn.Embedding(10, 4).to('cuda'); "
    "ids = torch.tensor([1, 2, 10]); dev = ids.to('cuda')"
)


class Terminal:
    def __init__(self, folder):
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        environment = os.environ | {
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "OMP_NUM_THREADS": "1",
            "CUDASSERT_SIMULATOR": "1",
        }
        environment.pop("CUDA_LAUNCH_BLOCKING", None)
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", "--simple-prompt", "--colors=NoColor"],
            env=environment,
            encoding="utf-8",
            timeout=60,
            echo=False,
            dimensions=(50, 200),
        )
        self.prompt(1)
        self.type("%load_ext cudassert_ipy", 2)
        self.type(SETUP, 3)

    def prompt(self, number):
        self.child.expect_exact(f"In [{number}]: ")
        return ESCAPE.sub("", self.child.before.replace("\r", ""))

    def type(self, line, then):
        self.child.sendline(line)
        return self.prompt(then)


@pytest.fixture
def terminal(tmp_path):
    running = Terminal(tmp_path)
    yield running
    running.child.close(force=True)


def test_failure_replay_and_restart_as_text(terminal):
    """Line, panel, innocent cell, finding and restart are text; the process stays the same."""
    pid = terminal.child.pid
    text = terminal.type("value = emb(dev).sum().item()", 4)
    assert "Assertion `srcIndex < srcSelectDimSize` failed." in text
    assert text.index("cudassert_ipy:") < text.index("AcceleratorError") < text.index("Must hold")
    assert "%cuda_debug replay" in text
    assert "cell [3]" in terminal.type("emb(dev)", 5)
    found = terminal.type("%cuda_debug replay", 6)
    for part in ("emb(dev)", "10 at [2]", "0 to 9"):
        assert part in found
    after = terminal.type("%cuda_debug restart", 7)
    assert "10 at [2]" in after
    shown = terminal.type(
        "import os; print(os.getpid(), os.environ['CUDA_LAUNCH_BLOCKING'], os.isatty(2))", 8
    )
    assert f"{pid} 1 True" in shown
    assert "8.0" in terminal.type("print(torch.ones(8, device='cuda').sum().item())", 9)


def test_the_guard_in_a_terminal(terminal):
    """The guard raises the finding, and the context lives."""
    terminal.type("%cuda_debug guard on", 4)
    text = terminal.type("emb(dev).sum().item()", 5)
    assert "OperandError" in text
    assert "10 at [2]" in text
    assert "tensor(10" in terminal.type("dev.max()", 6)


def test_standard_error_is_a_terminal_as_before(terminal):
    """`isatty` is as without the extension, for the user and for child programs."""
    asked = "import sys, os; print(sys.stderr.isatty(), os.isatty(2))"
    assert "True True" in terminal.type(asked, 4)
    assert "yes" in terminal.type("!test -t 2 && echo yes", 5)
    child = "import subprocess; print(subprocess.run(['test', '-t', '2']).returncode)"
    assert terminal.type(child, 6).strip() == "0"
