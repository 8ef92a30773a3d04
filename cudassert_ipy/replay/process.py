"""The child process as its parent holds it: four pipes and its end.

It is no child in the sense of the system (:mod:`cudassert_ipy.replay.supervisor` says why), so its
end is read from a pipe and not waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from select import POLLIN, poll

from cudassert_ipy.replay.supervisor import FAILED

_END_SECONDS = 10.0
"""What the supervisor gets to end the worker before it is killed itself, and the worker with it."""


class Child:
    """A worker under its supervisor.

    Attributes:
        pid: process id of the worker; 0 until :meth:`comes_up`.
        control: where requests are written; its closing ends the child.
        events: where its events are read.
        output: where its stdout and stderr are read.
        token: what each line of its events carries.

    """

    def __init__(
        self, forked: int, control: int, events: int, output: int, status: int, token: str
    ) -> None:
        self.pid = 0
        self.control = control
        self.events = events
        self.output = output
        self.token = token
        self._forked: int | None = forked
        self._group = forked
        self._supervisor: int | None = None
        self._status = status
        self._told = bytearray()
        self._closed = False
        self._owner = os.getpid()
        self._open = True
        os.set_blocking(status, False)

    def comes_up(self, seconds: float) -> bool:
        """Wait for the worker to be there, and reap the process between.

        Raises:
            OSError: the system refused a process.

        """
        self._listen(1, seconds)
        line, end, _ = self._told.partition(b"\n")
        if not end:
            return False
        if line.startswith(FAILED.encode()):
            raise OSError(line.decode("utf-8", "replace").removeprefix(FAILED))
        self.pid, supervisor = map(int, line.split())
        self._reap_forked()
        # Orphans go to this process only where it is the first of a container, or asked for them.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, supervisor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self._supervisor = supervisor
        return True

    def has_ended(self) -> bool:
        """Return whether the child has ended by itself. Does not block."""
        self._listen(2, 0)
        return self._is_over(2)

    @property
    def how_it_ended(self) -> str:
        """``SIGSEGV``, ``exit status 3``, or empty where nobody knows."""
        return self._told.partition(b"\n")[2].decode("utf-8", "replace").strip()

    def end(self) -> None:
        """Kill the child and all it started, close the pipes. Safe to call twice."""
        if not self._open or os.getpid() != self._owner:
            return
        self._open = False
        try:
            os.close(self.control)  # the supervisor ends the rest
            if self._forked is None:
                self._listen(2, _END_SECONDS)
            if not self._is_over(2):
                # As long as the supervisor lives, the id of its group cannot be another's.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._group, signal.SIGKILL)
            self._reap_forked()
            if self._supervisor is not None:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self._supervisor, 0)
        finally:
            for descriptor in (self.events, self.output, self._status):
                os.close(descriptor)

    def _reap_forked(self) -> None:
        if self._forked is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._forked, signal.SIGKILL)  # it has nothing more to do
                os.waitpid(self._forked, 0)
            self._forked = None

    def _is_over(self, lines: int) -> bool:
        return self._closed or self._told.count(b"\n") >= lines

    def _listen(self, lines: int, seconds: float) -> None:
        """Read the status pipe until it is closed or has told ``lines`` lines."""
        readable = poll()  # and not `select`, which refuses descriptors above 1023
        readable.register(self._status, POLLIN)
        until = time.monotonic() + seconds
        while not self._is_over(lines) and readable.poll(max(0.0, until - time.monotonic()) * 1000):
            data = os.read(self._status, 4096)
            self._told += data
            self._closed = not data
