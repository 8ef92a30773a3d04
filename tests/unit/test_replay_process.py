"""Processes of a replay: no leak, no zombie, no orphan, whatever the parent does."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

PRELUDE = """
import linecache, os, signal, sys, threading, time
import psutil, torch
from torch import nn
from cudassert_ipy.replay.checkpoint import Checkpoint, CheckpointRefused, ReplayRequest
from cudassert_ipy.replay.state import HostCopies
from cudassert_ipy.standin import simulator
names = {"torch": torch, "nn": nn, "os": os}
copies = HostCopies()
def execute(source):
    exec(compile(source, "<string>", "exec"), names)
def replay(source, **request):
    checkpoint = Checkpoint.take(copies, execute=execute)
    return checkpoint.start(ReplayRequest(source=source, state="after_failure", **request)).wait()
"""


def start(body, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(body), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run(body, tmp_path):
    process = start(body, tmp_path)
    try:
        output, _ = process.communicate(timeout=100)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output
    return output


def test_fifty_replays_leave_nothing_behind(tmp_path):
    """Descriptors, children, threads and memory stay flat, and every replay finds the same."""
    output = run(
        """
        simulator.on()
        execute("emb = nn.Embedding(100, 8).cuda(); ids = torch.tensor([100]).cuda()")
        copies.update(names, 1)
        me = psutil.Process()
        def measure():
            return me.num_fds(), me.num_threads(), len(me.children(recursive=True))
        for round in range(51):
            if round == 1:
                before, resident = measure(), me.memory_info().rss
            result = replay("emb(ids)")
            assert result.finding.bad_values == (100,), result
        discarded = [Checkpoint.take(copies, execute=execute) for _ in range(3)]
        for checkpoint in discarded:
            checkpoint.discard()
        grown = (me.memory_info().rss - resident) / 2**20
        same = "same" if measure() == before else (before, measure())
        print(same, "grown" if grown > 8 else "flat")
        """,
        tmp_path,
    )
    assert output == "same flat\n"


def test_replays_beside_busy_and_logging_threads(tmp_path):
    """Threads that compute, allocate, log and import at the fork do not make a child hang."""
    output = run(
        """
        import logging, queue
        simulator.on()
        execute("lin = nn.Linear(64, 8).cuda(); x = torch.randn(32, 64).cuda()")
        copies.take_all(names)
        log = logging.getLogger("busy"); log.addHandler(logging.StreamHandler(open("log", "w")))
        stop = threading.Event()
        def work(n):
            while not stop.is_set():
                torch.ones(200, 200) @ torch.ones(200, 200)
                log.warning("%s", n); [str(i) for i in range(200)]
        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(3)]
        for thread in threads: thread.start()
        names["log"] = log
        cell = "log.warning('in'); lin(x).sum().backward(); print('ok')"
        results = [replay(cell, timeout=20) for _ in range(15)]
        outcomes = {(result.replay.outcome, result.output) for result in results}
        stop.set()
        for thread in threads: thread.join()
        print(outcomes)
        """,
        tmp_path,
    )
    assert output == "{('clean', 'ok\\n')}\n"


def test_a_thread_that_draws_random_numbers(tmp_path):
    """Where torch's generator is locked at the fork, a checkpoint is refused, nothing hangs."""
    output = run(
        """
        from cudassert_ipy.replay import checkpoint
        checkpoint._ALIVE_SECONDS, checkpoint._TRIES = 0.7, 2
        stop = threading.Event()
        def work():
            while not stop.is_set():
                torch.randn(1_000_000)
        thread = threading.Thread(target=work); thread.start()
        for _ in range(3):
            try:
                print(replay("print(torch.rand(1).shape)", timeout=20).replay.outcome)
            except CheckpointRefused as refused:
                print("refused")
        stop.set()
        thread.join()
        print(replay("print(torch.rand(1).shape)").replay.outcome, len(psutil.Process().children()))
        """,
        tmp_path,
    )
    *busy, calm = output.splitlines()
    assert set(busy) <= {"clean", "refused"}
    assert len(busy) == 3
    assert calm == "clean 0"


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("how", ["killed", "exec"])
def test_the_child_goes_with_its_parent(tmp_path, busy, how):
    """A waiting or running child, and what it started, end when the parent dies or execs."""
    process = start(
        f"""
        checkpoint = Checkpoint.take(copies, execute=execute)
        pids = [checkpoint.pid]
        if {busy}:
            cell = (
                "import subprocess; print(subprocess.Popen(['sleep', '96']).pid, flush=True)\\n"
                "while 1: pass"
            )
            running = checkpoint.start(ReplayRequest(source=cell))
            text = ""
            while not text:
                text = "".join(getattr(event, "text", "") for event in running.read_events())
            pids.append(int(text))
        print(*pids, flush=True)
        sys.stdin.read() if {how == "killed"} else os.execv("/bin/sleep", ["sleep", "95"])
        """,
        tmp_path,
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert all(psutil.pid_exists(pid) for pid in pids) or how == "exec"
    if how == "killed":
        process.kill()
    for _ in range(100):
        left = [pid for pid in pids if _runs(pid)]
        if not left:
            break
        time.sleep(0.03)
    process.kill()
    process.wait()
    process.stdout.close()
    assert len(pids) == 1 + busy
    assert not left


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_no_checkpoint_from_another_thread(tmp_path):
    """A fork elsewhere than on the main thread is refused with the reason."""
    output = run(
        """
        def take():
            try:
                Checkpoint.take(copies, execute=execute)
            except CheckpointRefused as refused:
                print(refused)
        thread = threading.Thread(target=take); thread.start(); thread.join()
        """,
        tmp_path,
    )
    assert "main thread" in output


def test_somebody_else_reaps_the_child(tmp_path):
    """``os.wait()`` of the user's takes the child's status; the replay still ends."""
    output = run(
        """
        checkpoint = Checkpoint.take(copies, execute=execute)
        running = checkpoint.start(ReplayRequest(source="os._exit(0)"))
        os.wait()
        result = running.wait()
        print(result.replay.outcome, len(psutil.Process().children()))
        """,
        tmp_path,
    )
    assert output == "crashed 0\n"


def test_an_alarm_or_interrupt_of_the_parent_stays_there(tmp_path):
    """Ctrl-C in a terminal goes to the kernel's group; the child is in another one."""
    process = start(
        """
        signal.signal(signal.SIGINT, lambda *_: print("parent", flush=True))
        running = Checkpoint.take(copies, execute=execute).start(
            ReplayRequest(source="import time; time.sleep(1.5); print('through')")
        )
        os.killpg(os.getpgrp(), signal.SIGINT)
        print(running.wait().output, end="")
        """,
        tmp_path,
    )
    # The group of this test must not get the signal, so the script gets one of its own.
    process.kill()
    process.wait()
    script = tmp_path / "script.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert done.stdout == "parent\nthrough\n", done.stderr


def test_torch_that_refuses_backward_in_a_fork_is_told(tmp_path):
    """Where autograd has device threads (a GPU machine), the note says why backward stopped.

    A device in pure Python stands for the GPU: torch then starts the threads that refuse.
    """
    output = run(
        """
        from torch.utils import backend_registration as registration
        if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
            print("no python backends in this torch"); sys.exit()
        registration._setup_privateuseone_for_python_backend("npy")
        execute("w = torch.ones(3, requires_grad=True); (w * 2).sum().backward()")
        result = replay("(w * 2).sum().backward()", timeout=30)
        print(result.replay.outcome, "|", result.replay.note)
        """,
        tmp_path,
    )
    if output.startswith("no python backends"):
        pytest.skip(output)
    assert output.startswith("inconclusive | PyTorch refuses backward in a forked process"), output


def test_a_number_without_a_name_is_told_as_a_number():
    """A real-time signal has no name in Python; its number is told."""
    from cudassert_ipy.replay.process import Child

    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGRTMIN + 5)
        os._exit(0)
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    child = Child(pid, *descriptors)
    while not child.has_ended():
        time.sleep(0.01)
    child.end()
    assert child.how_it_ended == f"signal {signal.SIGRTMIN + 5}"
