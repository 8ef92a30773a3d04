"""Between this process and the worker: no child of this process, and it ends all that is left.

A child would be seen by the user: ``os.wait()`` in a cell would wait for it, or reap it. So the
forked process forks the supervisor and is gone, and the supervisor forks the worker, which runs the
user's cell. The supervisor waits for the worker, or for the end of the parent (no writer is left on
the control pipe), ends every process that comes from the worker, tells how the worker ended, exits.
It runs no code of the user's, holds no descriptor but its pipes, and is in another process group
than the worker, so that ``os.kill(0, …)`` in a cell does not meet it.

It keeps the memory of the fork, as the worker does: a page that parent and worker both write after
the fork exists three times.

Where no parent reaps orphans (a container whose first process is no init), one zombie a replay is
left until the container ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
from pathlib import Path
from select import POLLIN, poll
from typing import TYPE_CHECKING, Final, NoReturn

from cudassert_ipy.replay import signals

if TYPE_CHECKING:
    from cudassert_ipy.replay.worker import Worker

FAILED: Final = "failed "
"""How the first line of the status pipe starts where the system refused a process."""
_PR_SET_PDEATHSIG = 1  # prctl(2), linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
_POINTS = "999"  # the worker, which takes the memory, has one more when its cell runs


def run(worker: Worker, control: int, events: int, output: int, status: int) -> NoReturn:
    """Be the forked process: make the supervisor and be gone. Nothing of the caller's stack runs.

    The first line on ``status`` has the process ids of the worker and of the supervisor, the second
    how the worker ended: ``SIGSEGV`` or ``exit status 3``.
    """
    try:
        os.setsid()
        signals.reset()
        if os.fork() == 0:
            _supervise(worker, control, events, output, status)
    except OSError as error:
        _tell(status, f"{FAILED}{error}")
    finally:
        os._exit(0)


def _supervise(worker: Worker, control: int, events: int, output: int, status: int) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the worker leaves behind becomes ours
    with contextlib.suppress(OSError):  # a container that hides it
        Path("/proc/self/oom_score_adj").write_text(_POINTS, encoding="ascii")
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it was gone before the call above
            os._exit(1)
        worker.run(control, events, output)  # never returns
    gc.disable()  # no finalizer of the user's objects may run here
    _close_all_but(control, status)
    _tell(status, f"{pid} {supervisor}")
    ended = _wait(pid, control)
    _end_children()
    _tell(status, "" if ended is None else _how(os.waitstatus_to_exitcode(ended)))


def _wait(worker: int, control: int) -> int | None:
    """Wait for the worker and return its wait status; None where the parent is gone or done."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    waiting = poll()
    waiting.register(woken, POLLIN)
    waiting.register(control, 0)  # its end only; what is written there is for the worker
    while True:
        status = _reap(worker)
        if status is not None:
            return status
        if any(descriptor == control for descriptor, _ in waiting.poll()):
            return None
        os.read(woken, 512)


def _reap(worker: int) -> int | None:
    """Reap who has ended, until the worker is among them; return its wait status."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == worker:
            return status
        if pid == 0:
            return None


def _end_children() -> None:
    """Kill the worker and all that comes from it, also what made a session of its own.

    Who dies leaves its children to this process, so the next round ends those.
    """
    with contextlib.suppress(ChildProcessError):  # nobody is left
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for pid in _children():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                os.waitpid(-1, 0)


def _children() -> list[int]:
    me = str(os.getpid())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text("utf-8", "replace")
            except OSError:  # it ended meanwhile
                continue
            # The name, in parentheses, may have anything in it; state and parent come after it.
            if stat.rpartition(")")[2].split()[1] == me:
                found.append(int(entry.name))
    return found


def _close_all_but(*keep: int) -> None:
    first, second = sorted(keep)
    os.closerange(0, first)
    os.closerange(first + 1, second)
    os.closerange(second + 1, os.sysconf("SC_OPEN_MAX"))


def _tell(status: int, text: str) -> None:
    os.write(status, text.encode("utf-8", "replace") + b"\n")


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _prctl(option: int, value: int) -> None:
    # What it refuses (an old kernel, a sandbox) is only missed where a process is killed by force.
    _LIBC.prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)
