"""The child process as its parent holds it: three pipes, its group, its end."""

from __future__ import annotations

import contextlib
import os
import signal


class Child:
    """A forked child that leads its own process group.

    Attributes:
        pid: its process id, and the id of its group.
        control: where requests are written; its closing ends the child.
        events: where its events are read.
        output: where its stdout and stderr are read.

    """

    def __init__(self, pid: int, control: int, events: int, output: int) -> None:
        self.pid = pid
        self.control = control
        self.events = events
        self.output = output
        self._owner = os.getpid()
        self._ended: str | None = None
        self._open = True

    def has_ended(self) -> bool:
        """Return whether the child has ended by itself. Does not block and does not reap it."""
        if self._ended is None:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                found = os.waitid(os.P_PID, self.pid, options)
            except ChildProcessError:  # somebody's `os.wait()` took it
                self._ended = ""
            else:
                if found is not None:
                    self._ended = _how(found)
        return self._ended is not None

    @property
    def how_it_ended(self) -> str:
        """``SIGSEGV``, ``exit status 3``, or empty where nobody knows."""
        return self._ended or ""

    def end(self) -> None:
        """Kill the child and all it started, reap it, close the pipes. Safe to call twice.

        The group is killed before the child is reaped: until then its id cannot be another's.
        """
        if not self._open or os.getpid() != self._owner:
            return
        self._open = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # before it made its group
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        for descriptor in (self.control, self.events, self.output):
            os.close(descriptor)


def _how(found: os.waitid_result) -> str:
    if found.si_code == os.CLD_EXITED:
        return f"exit status {found.si_status}"
    try:
        return signal.Signals(found.si_status).name
    except ValueError:
        return f"signal {found.si_status}"
