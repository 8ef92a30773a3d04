"""Start state, next command, and the exec itself in small processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudassert_ipy import messages
from cudassert_ipy.restart import start as module
from cudassert_ipy.restart.start import (
    next_command,
    next_environment,
    parse_environment,
    start_environment,
    take_over,
)
from cudassert_ipy.restart.steps import steps

# A process that restarts itself once. argv: runtime directory, then what `next_command` adds.
SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
from cudassert_ipy.restart import inplace
from cudassert_ipy.restart.handoff import Handoff, RecordedCell, read
from cudassert_ipy.restart.start import Start

log = []

class Handle:
    start = Start.capture()
    def handoff_directory(self): return Path(sys.argv[1])
    def options(self): return ["--more"]
    def end_history(self):
        log.append("end"); return lambda: log.append("begin")
    def release_streams(self):
        sys.stdout.flush(); log.append("release"); return lambda: log.append("capture")

option = [a for a in sys.argv if a.startswith("--CudaDebug.handoff=")]
if option:
    handoff = read(Path(option[0].partition("=")[2]))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    print(os.getpid(), os.environ.get("CUDA_LAUNCH_BLOCKING"), os.environ.get("ADDED"),
          os.getcwd() == handoff.cwd, signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
          sorted(mask), signal.getitimer(signal.ITIMER_REAL), sys.argv[2:4],
          len(os.listdir("/proc/self/fd")))
    sys.exit()

print(os.getpid(), len(os.listdir("/proc/self/fd")))
sys.stdout.flush()
os.environ["ADDED"] = "1"
open_pipe = os.pipe()
for end in open_pipe: os.set_inheritable(end, True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.setitimer(signal.ITIMER_REAL, 100)
os.chdir("/")
BREAK
try:
    inplace.restart(Handle(), Handoff(cells=(RecordedCell(source="x"),)), blocking=True)
except inplace.RestartError as error:
    print(error)
    here = os.readlink("/proc/self/cwd")
    here = "removed" if here.endswith("(deleted)") else here
    print(log, here, signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
          signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, []),
          signal.getitimer(signal.ITIMER_REAL)[0] > 90, os.get_inheritable(open_pipe[0]),
          os.listdir(sys.argv[1]))
"""


@pytest.fixture
def runtime(tmp_path):
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    return folder


def run(code, runtime, break_with="pass"):
    script = runtime.parent / "script.py"
    script.write_text(code.replace("BREAK", break_with))
    environment = {k: v for k, v in os.environ.items() if k != module.BLOCKING}
    command = [sys.executable, "script.py", str(runtime)]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=runtime.parent, env=environment
    )
    assert shown.stderr == ""
    return shown.stdout.splitlines()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_exec_gives_a_clean_process(runtime):
    """Same pid, blocking set; later variables, signals, timers and files are left behind."""
    before, after = run(SCRIPT, runtime)
    pid, descriptors = before.split()
    expected = f"{pid} 1 None True True [] (0.0, 0.0) ['--more', '{module.EXTENSION_OPTION}']"
    assert after == f"{expected} {descriptors}"
    assert list(runtime.iterdir()) == []


def test_failed_exec_is_undone(runtime):
    """When the system refuses, everything is as before, in reverse order, and no file is left."""
    lines = run(SCRIPT, runtime, break_with="Handle.start.environment['BIG'] = 'x' * 4_000_000")
    assert "goes on as it was: Argument list too long." in lines[1]
    assert lines[2] == "['end', 'release', 'capture', 'begin'] / True True True True []"


def test_interrupt_on_the_way_does_not_kill(runtime):
    """A Ctrl-C that comes when nothing can be undone any more does not end the next process."""
    # Sent by a grandchild whose parent is gone, so that it is not ended with the children.
    sender = (
        "import time; parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(0.05)\n"
        "        for _ in range(100): os.kill(parent, signal.SIGINT); time.sleep(0.002)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    before, after = run(SCRIPT, runtime, break_with=sender)
    assert after.split()[:2] == [before.split()[0], "1"]


@pytest.mark.parametrize("kept", [True, False])
def test_removed_directory_does_not_matter(runtime, kept):
    """From a directory that was removed it goes to the start directory, or to one that exists."""
    leave = "import tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)"
    gone = "" if kept else "; Handle.start.cwd = d; sys.orig_argv[1] = __file__"
    before, after = run(SCRIPT, runtime, break_with=leave + gone)
    assert after.split()[:2] == [before.split()[0], "1"]
    assert after.split()[3] == str(kept)


def test_failed_exec_returns_to_a_removed_directory(runtime):
    """When the exec fails the process is where it was, be that directory removed or not."""
    leave = (
        "import tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d);"
        " Handle.start.environment['BIG'] = 'x' * 4_000_000"
    )
    lines = run(SCRIPT, runtime, break_with=leave)
    assert "goes on as it was: Argument list too long." in lines[1]
    assert lines[2].startswith("['end', 'release', 'capture', 'begin'] removed True")


@pytest.mark.parametrize(
    "change",
    [
        "sys.orig_argv = None",
        "sys.orig_argv = ['python', 3]",
        r"sys.orig_argv = ['python', 'a\0b']",
        r"sys.orig_argv = ['python', '\ud800']",
        "sys.orig_argv = []",
        "del sys.orig_argv",
        "sys.executable = 3",
        "sys.executable = None",
        r"sys.executable = '/bin/py\0thon'",
        r"sys.executable = '/bin/\ud800'",
        "Handle.handoff_directory = lambda self: Path('/proc/none').mkdir()",
        r"Handle.handoff_directory = lambda self: Path('/a\0b')",
        r"Handle.options = lambda self: ['a\0b']",
        r"Handle.start.environment['A'] = 'a\0b'",
        "Handle.start.environment['A=B'] = ''",
    ],
)
def test_odd_command_is_said_before_anything_ends(runtime, change):
    """What cannot be executed is a RestartError with a reason, and nothing was ended for it."""
    lines = run(SCRIPT, runtime, break_with=change)
    assert "goes on as it was: " in lines[1]
    assert lines[2].startswith("[] / True")
    assert lines[2].endswith("[]"), "a handoff was left"


@pytest.mark.parametrize("odd", ["a\0b", 3, None, Path("/x"), b"/y"])
def test_odd_entries_of_the_path_are_left_out(monkeypatch, odd):
    """Only texts that can be a file's name are handed over; Python itself ignores the others."""
    monkeypatch.setattr(sys, "path", ["/lib", odd, "/site"])
    assert module.Start.capture().sys_path == ("/lib", "/site")
    take_over("a\0b", ["a\0b", "/first", "/lib"])
    assert sys.path == ["/first", "/lib", odd, "/site"]


@pytest.mark.parametrize("odd", [None, 3, "text"])
def test_capture_never_raises(monkeypatch, odd):
    """Whatever user code did to the interpreter's state, the extension still loads."""

    def fails(*_):
        raise RuntimeError

    monkeypatch.setattr(sys, "path", odd)
    monkeypatch.setattr(Path, "cwd", lambda: Path("/nowhere").stat())
    monkeypatch.setattr(Path, "home", fails)
    start = module.Start.capture()
    assert (start.sys_path, start.cwd) == ((), "/")
    assert module.Start.capture("a\0b").cwd == "/"


def test_missing_interpreter_is_noticed_before_anything_ends(runtime):
    """A Python that was removed meanwhile (an upgraded environment) costs no child, no history."""
    lines = run(SCRIPT, runtime, break_with="sys.executable = '/nowhere/python'")
    assert "/nowhere/python: No such file" in lines[1]
    assert lines[2].startswith("[] / True")


def test_command_is_the_original_one():
    """The next command is this one\'s own plus extension and handoff, each once."""
    own = ["py", "-X", "dev", "-m", "ipykernel_launcher", "-f", "k.json"]
    first = next_command(own, Path("/a"))
    assert first == [
        sys.executable,
        *("-X", "dev", "-m", "ipykernel_launcher", "-f", "k.json"),
        "--InteractiveShellApp.extra_extensions=cudassert_ipy",
        "--CudaDebug.handoff=/a",
    ]
    assert next_command(first, Path("/b")) == [*first[:-1], "--CudaDebug.handoff=/b"]


def test_environment_gets_and_loses_blocking():
    """Blocking launches are asked for by the environment, and a plain restart takes them back."""
    blocking = next_environment({"PATH": "/bin"}, blocking=True)
    assert blocking == {"PATH": "/bin", "CUDA_LAUNCH_BLOCKING": "1"}
    assert next_environment(blocking, blocking=False) == {"PATH": "/bin"}


@pytest.mark.parametrize("data", [b"", b"PATH=/bin", b"ray::worker\0", b"=x\0", b"A=1\0\0\0"])
def test_overwritten_start_environment_does_not_count(data):
    """What a program that sets its title left there is not an environment."""
    assert parse_environment(data) is None


def test_start_environment_keeps_odd_values():
    """Values with '=', line breaks and bytes that are no text come through; the first one wins."""
    parsed = parse_environment(b"A=b=c\0B=\0C=x\ny\0D=\xff\0A=2\0")
    assert parsed == {"A": "b=c", "B": "", "C": "x\ny", "D": "\udcff"}


def test_fallback_leaves_out_what_the_kernel_added(monkeypatch):
    """Without a usable /proc the environment is today's, less what ipykernel is known to add."""
    monkeypatch.setattr(module, "parse_environment", lambda _: None)
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("GIT_PAGER", "less")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    environment = start_environment()
    assert "PAGER" not in environment
    assert "MPLBACKEND" not in environment
    assert environment["GIT_PAGER"] == "less"
    assert environment["PATH"] == os.environ["PATH"]


def test_path_additions_keep_their_place(monkeypatch, tmp_path):
    """Entries of the old process that are missing come back where they stood."""
    monkeypatch.setattr(sys, "path", ["", "/lib", "/site"])
    monkeypatch.chdir("/")
    take_over(str(tmp_path), ["/first", "", "/second", "/lib", "/site", "/last"])
    assert sys.path == ["/first", "", "/second", "/lib", "/site", "/last"]
    assert Path.cwd() == tmp_path
    take_over(str(tmp_path / "gone"), [])
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("front_end", [*messages.STEPS, "unheard of"])
def test_steps_for_every_front_end(front_end):
    """Each front end has numbered steps with blocking launches and a way to go on."""
    text = steps(front_end, reason="no exec", pending=True)
    lines = text.splitlines()
    assert lines[0] == "A restart in place is not possible here: no exec. Restart by hand:"
    assert [line.split(".")[0] for line in lines[1:]] == ["1", "2", "3"]
    assert "CUDA_LAUNCH_BLOCKING=1" in text
    assert ("%cuda_debug restart" in text) == (front_end != "terminal")
    assert "%cuda_debug restart" not in steps(front_end, reason="no exec", pending=False)
