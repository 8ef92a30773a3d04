"""The restart in place in terminal IPython, typed into a real pseudo-terminal."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pexpect
import pytest

pytestmark = pytest.mark.kernel

ESCAPE = re.compile(r"\x1b\][^\x07]*\x07|\x1b\[[0-9;?]*[a-zA-Z]")
HERE = Path(__file__).parent


class Terminal:
    def __init__(self, folder, *arguments):
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        environment = os.environ | {
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "PYTHONPATH": str(HERE),
            "CUDASSERT_DISABLE": "1",
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("CUDA_LAUNCH_BLOCKING", None)
        plain = ["--simple-prompt", "--colors=NoColor", "--ext=restart_probe_terminal"]
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", *plain, *arguments],
            env=environment,
            encoding="utf-8",
            timeout=30,
            echo=False,
            cwd=str(folder),
        )
        self.prompt(1)

    def prompt(self, number):
        self.child.expect_exact(f"In [{number}]: ")
        return ESCAPE.sub("", self.child.before.replace("\r", ""))

    def type(self, line, then):
        """Type ``line``, return what is printed before prompt ``then``."""
        self.child.sendline(line)
        return self.prompt(then)


@pytest.fixture
def terminal(tmp_path):
    running = Terminal(tmp_path)
    yield running
    running.child.close(force=True)


def test_terminal_restarts_and_resumes(terminal):
    """Same pid, blocking on, set-up with one line per step before the prompt, numbers go on."""
    pid = terminal.child.pid
    assert "None" in terminal.type("print(allowed(get_ipython()))", then=2)
    text = terminal.type(
        "again('x = 20', 'print(1); x += 1', 'import asyncio; await asyncio.sleep(0); x',"
        " replay=True, failing=RecordedCell(source='boom()', execution_count=7))",
        then=4,
    )
    assert text.strip().splitlines() == [
        "[1/4] Running cell [1] again",
        "[2/4] Running cell [2] again",
        "[3/4] Running cell [3] again",
        "[4/4] Replaying cell [7]",
        "replayed boom()",
        "Set-up done: 3 cells ran again.",
    ]
    shown = terminal.type(
        "import os; print(os.getpid(), os.environ['CUDA_LAUNCH_BLOCKING'], x, os.isatty(2))", then=5
    )
    assert f"{pid} 1 21 True" in shown
    text = terminal.type("again()", then=6)
    assert text.strip() == "Restarted."


def test_terminal_stops_at_a_failure_and_at_ctrl_c(terminal):
    """A failing set-up cell shows its traceback; Ctrl-C ends the set-up; both reach the prompt."""
    text = terminal.type("again('1 / 0', 'y = 1')", then=2)
    assert "ZeroDivisionError" in text
    assert "Stopped: cell [1] failed this time. 1 cell after it did not run." in text
    assert "NameError" in terminal.type("y", then=3)
    terminal.child.sendline("again('import time; time.sleep(60)', 'y = 1')")
    terminal.child.expect_exact("Running cell [1] again")
    terminal.child.expect(pexpect.TIMEOUT, timeout=1)
    terminal.child.sendintr()
    assert "Cancelled after 0 of 2 cells." in terminal.prompt(4)


def test_terminal_with_a_script_is_refused(tmp_path):
    """IPython started with a script is not replaced: the script would run again unasked."""
    (tmp_path / "train.py").write_text("print('trained')")
    running = Terminal(tmp_path, "-i", "train.py")
    assert "started with a script" in running.type("print(allowed(get_ipython()))", then=2)
    running.child.close(force=True)
