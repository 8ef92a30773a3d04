"""Replays in a fresh process: what they find, what they say, and that nothing is left of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest
import torch

from cudassert_ipy.replay import memory, rerun
from cudassert_ipy.replay.protocol import ReplayRequest
from cudassert_ipy.replay.rerun import RerunRefused, SetupCell, start_rerun
from cudassert_ipy.replay.rng import RandomState
from tests.kernel.driver import FAILING, SETUP

MODULE = "cudassert_ipy.notebook.fresh_process"
SETUP_CELLS = (SetupCell(source=SETUP, execution_count=1),)


def start(source, cells=SETUP_CELLS, **options):
    options.setdefault("execution_count", 9)
    timeout = options.pop("timeout", 60.0)
    request = ReplayRequest(source=source, timeout=timeout, rng=options.pop("rng", None))
    return start_rerun(cells, request, module=MODULE, reason="this is a test", **options)


def test_the_cells_run_again_and_the_bad_value_is_found():
    """The failed cell runs on what the set-up cells made; the note says which ran, and why."""
    labels = []
    result = start(FAILING).wait(lambda event: labels.append(getattr(event, "label", None)))
    assert (result.replay.state, result.replay.outcome) == ("rerun", "raised")
    assert result.replay.exception == "IndexError: index out of range in self"
    assert result.finding.bad_values == (1000,)
    assert (result.finding.line, result.finding.expression) == (1, 'batch["ids"]')
    assert result.finding.certainty == "exact"
    assert result.replay.note == (
        "Replayed in a fresh process because this is a test; cell [1] ran again there."
    )
    assert "Replaying on the CPU" in labels


def test_ipython_syntax_and_magic_lines():
    """Line and cell magics, shell lines, await and `%%cuda_debug` mean what they mean in a cell."""
    cells = [
        *SETUP_CELLS,
        SetupCell(source="%time x = 1\n!echo set-up", execution_count=2),
        SetupCell(source="import asyncio\nawait asyncio.sleep(0)\ny = 2", execution_count=4),
        SetupCell(source="%%capture out\nprint('kept')", execution_count=5),
    ]
    source = "%%cuda_debug --stats\nprint(x, y, out.stdout, ids.shape)\nmodel(batch['ids'])"
    result = start(source, cells).wait()
    assert result.finding.line == 3
    assert result.output == "1 2 kept\n torch.Size([4, 8])\n"  # and nothing of the set-up
    assert "cells [1]-[2], [4]-[5] ran again there" in result.replay.note


def test_a_set_up_cell_that_fails_now_is_named():
    """A file that is gone ends the rerun as inconclusive, with the cell and its error."""
    cells = [*SETUP_CELLS, SetupCell(source="open('/no/such/file')", execution_count=3)]
    result = start(FAILING, cells).wait()
    assert result.replay.outcome == "inconclusive"
    assert result.finding is None
    assert "Cell [3] had run well, but failed in the fresh process" in result.replay.note
    assert "FileNotFoundError" in result.replay.note


def test_random_numbers_are_those_of_the_cell():
    """The failed cell starts with the state of the host's generators that it had in the kernel."""
    state = RandomState.take()
    expected = f"{random.random()} {np.random.rand()} {torch.rand(1).item()}\n"
    source = "import random, numpy as np, torch\n"
    source += "print(random.random(), np.random.rand(), torch.rand(1).item())"
    assert start(source, (), rng=state.to_dict()).wait().output == expected


def test_clean_and_other_ends():
    """A healthy cell is clean, an exit status is told, and a flood of output is cut."""
    assert start("model(ids.clamp(max=9).cuda()).sum().item()").wait().replay.outcome == "clean"
    died = start("import os; os._exit(3)", ()).wait().replay
    assert (died.outcome, "exit status 3" in died.note) == ("crashed", True)
    killed = start("import os; os.kill(os.getpid(), 11)", ()).wait().replay
    assert (killed.outcome, "SIGSEGV" in killed.note) == ("crashed", True)
    flood = start("for _ in range(20_000): print('x' * 100)", ()).wait()
    assert flood.replay.outcome == "clean"
    assert len(flood.output) < 70_000


@pytest.mark.parametrize(
    "source", ["while True: pass", "import re; re.match('(a+)+$', 'a' * 60 + 'b')"]
)
def test_the_time_limit_ends_it(source, monkeypatch):
    """A cell that hangs, with the interpreter's lock or without, is ended after its time."""
    monkeypatch.setattr(rerun, "_START_SECONDS", 6.0)
    started = time.monotonic()
    result = start(source, (), timeout=0.5).wait()
    assert result.replay.outcome == "timed_out"
    assert time.monotonic() - started < 20


def test_a_cell_that_takes_too_much_memory_is_stopped():
    """The limit on memory is an exception in the cell, and the note says so."""
    result = start("x = bytearray(3 << 30)", (), memory_limit=1 << 30).wait()
    assert result.replay.outcome == "inconclusive"
    assert "memory" in result.replay.note


def test_it_is_refused_when_memory_is_short(monkeypatch):
    """Nothing is started where there is no room for a second process; one line says so."""
    monkeypatch.setattr(memory, "available", lambda: 1)
    with pytest.raises(RerunRefused, match=r"Memory is too short .* MB") as refused:
        start("x = 1")
    assert "\n" not in str(refused.value)


def test_nothing_is_left_behind():
    """Descriptors, threads and processes are what they were, however a rerun ends."""
    me = psutil.Process()
    start("x = 1", ()).wait()
    before = me.num_fds(), me.num_threads(), len(me.children(recursive=True))
    sleeper = "import subprocess; subprocess.Popen(['sleep', '1000']); "
    start(sleeper + "x = 1", ()).wait()
    start(sleeper + "import os; os._exit(1)", ()).wait()
    running = start(sleeper + "import time; time.sleep(1000)", ())
    while not any(p.name() == "sleep" for p in me.children(recursive=True)):
        running.read_events()
        time.sleep(0.05)
    assert running.cancel().replay.outcome == "cancelled"
    assert (me.num_fds(), me.num_threads(), len(me.children(recursive=True))) == before
    sleeping = [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "1000"]
    ]
    left = [p for p in sleeping if p.is_running()]
    assert not left


def test_it_ends_with_its_parent(tmp_path):
    """A parent that is killed takes the fresh process, and what that started, with it."""
    script = tmp_path / "parent.py"
    body = f"""
        import time
        from cudassert_ipy.replay.protocol import ReplayRequest
        from cudassert_ipy.replay.rerun import start_rerun
        source = "import os, subprocess, time; subprocess.Popen(['sleep', '999'])\\n"
        source += "open('pids', 'w').write(str(os.getpid())); time.sleep(999)"
        running = start_rerun([], ReplayRequest(source=source), module={MODULE!r}, reason="x")
        running.wait()
        """
    script.write_text(textwrap.dedent(body))
    parent = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=dict(os.environ))
    pids = tmp_path / "pids"
    deadline = time.monotonic() + 60
    while not (pids.exists() and pids.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    fresh = psutil.Process(int(pids.read_text()))
    started = [fresh, *fresh.children(recursive=True)]
    assert len(started) == 2
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive


def test_it_needs_nothing_that_windows_lacks(tmp_path, monkeypatch):
    """Without fork, sessions, resource and fcntl, in parent and child, it finds the same."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'): sys.modules[name] = None\n"
        "for name in ('fork', 'killpg', 'waitid', 'setsid', 'getpgid', 'wait', 'forkpty'):\n"
        "    delattr(os, name)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from cudassert_ipy.replay.protocol import ReplayRequest
            from cudassert_ipy.replay.rerun import SetupCell, start_rerun
            cells = [SetupCell(source={SETUP!r}, execution_count=1)]
            request = ReplayRequest(source={FAILING!r})
            result = start_rerun(cells, request, module={MODULE!r}, reason="x").wait()
            print(result.replay.outcome, result.finding.bad_values)
            """
        )
    )
    paths = [str(tmp_path), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])]
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.stdout == "raised (1000,)\n", done.stderr


@pytest.mark.kernel
def test_a_kernel_that_cannot_fork_replays_in_a_fresh_process(start_kernel):
    """Without `os.fork` the magic runs the set-up cells again, and the panel says so and why."""
    kernel = start_kernel()
    kernel.run("import os; del os.fork")
    kernel.run("!true")
    kernel.run("extra = 1")
    kernel.run(SETUP)
    assert kernel.run(FAILING).status == "error"
    cell = kernel.run("%cuda_debug replay", timeout=120)
    assert cell.diagnoses, (cell.stdout, cell.stderr, cell.traceback)
    [diagnosis] = cell.diagnoses
    assert diagnosis["replay"]["state"] == "rerun"
    assert diagnosis["finding"]["bad_values"] == [1000]
    assert diagnosis["finding"]["line"] == 1
    assert "because this system cannot fork" in diagnosis["replay"]["note"]
    assert "ran again there" in cell.bundles[-1]["text/plain"]


@pytest.mark.kernel
def test_a_finding_in_a_set_up_cell_is_placed_there(start_kernel):
    """A bad index that an earlier cell took, and the device had not told yet, names that cell."""
    kernel = start_kernel()
    kernel.run("import os; del os.fork")
    kernel.run(SETUP)
    counted = kernel.run("if os.environ.get('MPLBACKEND') == 'agg':\n    model(batch['ids'])").count
    assert kernel.run(FAILING).status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay", timeout=120).diagnoses
    frame = diagnosis["finding"]["frames"][-1]
    assert (frame["file"], frame["line"]) == (f"cell [{counted}]", 2)
