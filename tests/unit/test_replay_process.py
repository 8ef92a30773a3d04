"""Processes of a replay: no leak, no zombie, no orphan, whatever the parent does."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

RT_5 = signal.SIGRTMIN + 5
HOLD = "import re; re.match('(a+)+$', 'a' * 60 + 'b')"
"""Holds the interpreter's lock for years: no other thread of the worker runs."""
PRELUDE = """
import linecache, os, signal, sys, threading, time
import psutil, torch
from torch import nn
from cudassert_ipy.replay.checkpoint import Checkpoint, CheckpointRefused, ReplayRequest
from cudassert_ipy.replay.state import HostCopies
from cudassert_ipy.standin import simulator
names = {"torch": torch, "nn": nn, "os": os}
copies = HostCopies()
def left_behind():
    # Forks of this process have its command line, whoever their parent is.
    me = psutil.Process()
    def others():
        for process in psutil.process_iter():
            try:
                if process.pid != me.pid and process.cmdline() == me.cmdline():
                    yield process.pid
            except psutil.NoSuchProcess:
                pass
    for _ in range(100):  # who has told its end may take a moment to be gone
        left = [*others(), *me.children(recursive=True)]
        if not left:
            break
        time.sleep(0.01)
    return len(left)
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
            return me.num_fds(), me.num_threads(), left_behind()
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
        print(replay("print(torch.rand(1).shape)").replay.outcome, left_behind())
        """,
        tmp_path,
    )
    *busy, calm = output.splitlines()
    assert set(busy) <= {"clean", "refused"}
    assert len(busy) == 3
    assert calm == "clean 0"


@pytest.mark.parametrize("busy", ["", "while 1: pass", HOLD])
@pytest.mark.parametrize("how", ["killed", "exec"])
def test_the_child_goes_with_its_parent(tmp_path, busy, how):
    """A waiting or running child, and what it started, end when the parent dies or execs."""
    process = start(
        f"""
        checkpoint = Checkpoint.take(copies, execute=execute)
        pids = [checkpoint.pid]
        if {bool(busy)}:
            cell = (
                "import subprocess; print(subprocess.Popen(['sleep', '96']).pid, flush=True)\\n"
                {busy!r}
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
    assert len(pids) == 1 + bool(busy)
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


@pytest.mark.parametrize("busy", [False, True])
def test_the_users_wait_does_not_see_the_child(tmp_path, busy):
    """``os.waitpid(-1)`` waits for the user's own children only, also while a replay runs."""
    output = run(
        f"""
        def wait():
            try:
                return os.waitpid(-1, 0)
            except ChildProcessError:
                return "no child"
        checkpoint = Checkpoint.take(copies, execute=execute)
        if {busy}:
            running = checkpoint.start(ReplayRequest(source="import time; time.sleep(60)"))
        signal.alarm(20)
        pid = os.spawnlp(os.P_NOWAIT, "true", "true")
        print(wait() == (pid, 0), wait())
        running.cancel() if {busy} else checkpoint.discard()
        print(left_behind())
        """,
        tmp_path,
    )
    assert output == "True no child\n0\n"


def test_a_process_that_gets_the_orphans_keeps_no_zombie(tmp_path):
    """The first process of a container is given our supervisor as a child, and reaps it."""
    output = run(
        """
        import ctypes
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        print(replay("1").replay.outcome, len(psutil.Process().children()))
        Checkpoint.take(copies, execute=execute).discard()
        print(len(psutil.Process().children()))
        """,
        tmp_path,
    )
    assert output == "clean 0\n0\n"


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import signal; os.kill(os.getpid(), signal.SIGRTMIN + 5)", f"signal {RT_5}"),
        ("os._exit(3)", "exit status 3"),
        ("os.kill(0, 9)", "SIGKILL"),
        (f"os.kill(os.getppid(), 9)\n{HOLD}", "something unknown"),
    ],
)
def test_how_the_child_ended_is_told(tmp_path, cell, told):
    """The note of a crash has the signal or the status, and nothing is left."""
    output = run(
        f"""
        result = replay({cell!r}, timeout=30)
        print(result.replay.outcome, left_behind(), result.replay.note)
        """,
        tmp_path,
    )
    assert output.startswith("crashed 0 "), output
    assert told in output


DETACH = """
import os, subprocess
a = subprocess.Popen(["sleep", "96"], start_new_session=True)
b = subprocess.run(["sh", "-c", "setsid sleep 95 >&2 & echo $!"], stdout=-1).stdout
print(a.pid, int(b), flush=True)
"""


@pytest.mark.parametrize("end", ["1", "while 1: pass", "os._exit(0)", "os.kill(os.getpid(), 11)"])
def test_what_the_cell_put_in_a_session_of_its_own_ends_too(tmp_path, end):
    """A process that the cell detached (setsid, double fork) does not outlive the replay."""
    output = run(
        f"""
        checkpoint = Checkpoint.take(copies, execute=execute)
        running = checkpoint.start(ReplayRequest(source={DETACH + end!r}))
        text = ""
        while len(text.split()) < 2:
            text += "".join(getattr(event, "text", "") for event in running.read_events())
        {"running.cancel()" if "while" in end else "running.wait()"}
        pids = text.split()[:2]  # faulthandler may have its say after them
        print([psutil.pid_exists(int(pid)) for pid in pids], left_behind())
        """,
        tmp_path,
    )
    assert output == "[False, False] 0\n"


def test_no_descriptors_left_is_a_reason_and_no_leak(tmp_path):
    """Where the process may open no more files, the checkpoint is refused with that reason."""
    output = run(
        """
        import resource
        Checkpoint.take(copies, execute=execute).discard()
        before = psutil.Process().num_fds()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        said = []
        for room in range(2, 8):
            probes = [os.dup(0) for _ in range(room + 1)]
            for probe in probes:
                os.close(probe)
            resource.setrlimit(resource.RLIMIT_NOFILE, (probes[-1], limits[1]))
            try:
                Checkpoint.take(copies, execute=execute).discard()
            except CheckpointRefused as refused:
                said.append(str(refused))
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        print(psutil.Process().num_fds() - before, left_behind(), len(said), *set(said))
        """,
        tmp_path,
    )
    assert output.startswith("0 0 6 The system refused a child process: "), output
    assert "Too many open files" in output


def test_no_processes_left_is_a_reason(tmp_path):
    """A refusal of the first, second or third process is told with the system's reason."""
    output = run(
        """
        fork, forks = os.fork, []
        def refuse():
            forks.append(1)
            if len(forks) == allowed:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return fork()
        os.fork = refuse
        for allowed in (1, 2, 3):
            forks.clear()
            try:
                Checkpoint.take(copies, execute=execute)
            except CheckpointRefused as refused:
                print(left_behind(), refused)
        """,
        tmp_path,
    )
    lines = output.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("0 "), line
        assert "Resource temporarily unavailable" in line


def test_a_verdict_of_the_cells_own_making_does_not_count(tmp_path):
    """What the cell writes to the event pipe is dropped; the finding is still told."""
    lie = b'{"event": "done", "outcome": "clean"}\n{"event"'
    cell = (
        "import contextlib\n"
        "for fd in range(3, 200):\n"
        f"    with contextlib.suppress(OSError): os.write(fd, {lie})\n"
        "emb(ids)"
    )
    output = run(
        f"""
        simulator.on()
        execute("emb = nn.Embedding(100, 8).cuda(); ids = torch.tensor([100]).cuda()")
        copies.update(names, 1)
        result = replay({cell!r})
        print(result.replay.outcome, result.finding.bad_values)
        """,
        tmp_path,
    )
    assert output == "raised (100,)\n"


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
