"""A replay in a fresh process, which runs the recorded cells again before the failed one.

For kernels that cannot be forked: no ``fork`` (Windows), another thread than the main one, too
little memory for a copy. Only the standard library's own means, so that it is the same on POSIX and
Windows: a child of :mod:`subprocess`, its events on its stdout, its output on its stderr, the order
on its stdin, whose end is also the child's. Threads read, since pipes cannot be polled on Windows.
(Not checked on Windows.)

Other than a forked child it is a child of this process in the sense of the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.model import Record
from cudassert_ipy.replay import memory
from cudassert_ipy.replay.running import ReplayResult, RunningReplay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.replay.process import Child
    from cudassert_ipy.replay.protocol import Done, Event, ReplayRequest
    from cudassert_ipy.replay.running import OnEvent

_CHUNK: Final = 64 * 1024
_CHUNKS_WAITING: Final = 64
"""Chunks that wait to be looked at; a child that floods then waits for its reader."""
_TICK: Final = 0.1
_END_SECONDS: Final = 5.0
_LAST_WORDS: Final = 1.0
"""How long what was printed before the end is waited for."""
_START_SECONDS: Final = 60.0
"""What the start of Python and the import of torch may take."""
_SLOWER: Final = 4.0
"""How much longer a set-up cell may take on the CPU, checked, than it took on the device."""
# No device, whatever a library asks for, and no window of matplotlib.
_ENVIRONMENT: Final = {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg", "PYTHONUNBUFFERED": "1"}
_NOT_INHERITED: Final = ("CUDA_LAUNCH_BLOCKING", "CUDASSERT_SIMULATE", "PYTHONSTARTUP")


class RerunRefused(CudassertError):  # noqa: N818 - a reason, not a fault
    """No fresh process can be started; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupCell(Record):
    """A cell that ran well before the failed one."""

    source: str
    execution_count: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunOrder(Record):
    """What the fresh process reads from its stdin, as one line of JSON."""

    token: str
    """What each of its events must carry."""
    request: dict[str, Any]
    """:class:`ReplayRequest` of the failed cell."""
    cells: tuple[SetupCell, ...] = ()
    execution_count: int | None = None
    """Number of the failed cell."""
    seconds: float
    """What all of it may take."""
    memory_limit: int
    """Bytes that it may take."""
    device_count: int = 1
    cwd: str | None = None
    sys_path: tuple[str, ...] = ()


class FreshProcess:
    """The process and the threads that read from it.

    Attributes:
        token: what each line of its events carries.
        chunks: (is output, bytes) as they come; empty bytes at the end of a stream.

    """

    def __init__(self, command: Sequence[str], order: RerunOrder) -> None:
        self.token = order.token
        self.chunks: queue.Queue[tuple[bool, bytes]] = queue.Queue(_CHUNKS_WAITING)
        self._ended: int | None = None
        self._ended_at = 0.0
        environment = {key: item for key, item in os.environ.items() if key not in _NOT_INHERITED}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=order.cwd,
            env={**environment, **_ENVIRONMENT},
            start_new_session=True,
        )
        self._closing = threading.Event()
        streams = ((self._process.stdout, False), (self._process.stderr, True))
        self._threads = [
            threading.Thread(target=self._read, args=stream, name="cudassert-rerun", daemon=True)
            for stream in streams
        ]
        self._threads.append(
            threading.Thread(target=self._write, args=(order,), name="cudassert-rerun", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    def _write(self, order: RerunOrder) -> None:
        # In a thread: recorded cells may be longer than a pipe holds before anybody reads.
        assert self._process.stdin is not None  # noqa: S101  a pipe was asked for
        with contextlib.suppress(OSError):  # it is gone already; its end is noticed elsewhere
            self._process.stdin.write(json.dumps(order.to_dict()).encode("ascii") + b"\n")
            self._process.stdin.flush()

    def _read(self, stream: Any, is_output: bool) -> None:
        data = b"?"
        while data and not self._closing.is_set():
            try:
                data = os.read(stream.fileno(), _CHUNK)
            except (OSError, ValueError):  # closed meanwhile
                data = b""
            while not self._closing.is_set():
                with contextlib.suppress(queue.Full):
                    self.chunks.put((is_output, data), timeout=_TICK)
                    break

    def has_ended(self) -> bool:
        """Return whether the process has ended by itself and all that it wrote was read.

        Does not block and does not reap it. What it left behind may hold its streams open: then a
        moment after its end nothing more is waited for.
        """
        if self._ended is None:
            self._ended = _ended(self._process)
            self._ended_at = time.monotonic()
        if self._ended is None:
            return False
        all_read = not any(thread.is_alive() for thread in self._threads[:2])
        return all_read or time.monotonic() - self._ended_at > _LAST_WORDS

    @property
    def how_it_ended(self) -> str:
        """``SIGSEGV``, ``exit status 3``, or empty where it has not ended."""
        if self._ended is None:
            return ""
        with contextlib.suppress(ValueError):
            if self._ended < 0:
                return signal.Signals(-self._ended).name
        return f"exit status {self._ended}"

    def end(self) -> None:
        """Kill the process and, where the system has sessions, all it started. Safe to call twice.

        Raises:
            TimeoutError: it does not end (it hangs in the kernel).

        """
        if self._closing.is_set():
            return
        self._closing.set()
        process = self._process
        if hasattr(os, "killpg"):
            # It is not reaped yet, so its id, which is that of its session, is nobody else's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(messages.RERUN_DOES_NOT_END) from error
        finally:
            for thread in self._threads:
                thread.join(_END_SECONDS)
            for stream in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):  # what was not written yet is not missed
                    stream.close()  # type: ignore[union-attr]


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status as ``subprocess`` counts it, without reaping where that is possible.

    As long as nobody reaps it, no other process can have its id, which is killed afterwards.
    """
    if not hasattr(os, "waitid"):
        return process.poll()
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the user's code has reaped it
        return process.poll()
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


class RunningRerun(RunningReplay):
    """A replay in a fresh process. Use :meth:`wait` or await :meth:`result`.

    Args:
        process: the process.
        timeout: seconds that all of it may take.
        because: why it is no forked child, and what ran again, for the note of the replay.

    """

    def __init__(self, process: FreshProcess, timeout: float, because: str) -> None:
        # Without `_listen` and `_drain`, which are other ones here, no more of it is asked for than
        # a fresh process has: its token, how it ended, and its end.
        super().__init__(cast("Child", process), "rerun", timeout)
        self._fresh = process
        self._because = because

    def _listen(self) -> None:
        """Do nothing: threads read, and there is no descriptor to wait on."""

    def fileno(self) -> int:
        """Raise: there is nothing to select on."""
        msg = "a rerun has no descriptor; call read_events from time to time"
        raise NotImplementedError(msg)

    def wait(self, on_event: OnEvent | None = None) -> ReplayResult:
        """Block until the end and return the result. ``KeyboardInterrupt`` cancels."""
        try:
            while (result := self.outcome) is None:
                time.sleep(_TICK / 2)
                self._tell(on_event)
        except KeyboardInterrupt:
            return self.cancel()
        return result

    async def result(self, on_event: OnEvent | None = None) -> ReplayResult:
        """Return the result, without blocking the event loop. Cancelling the task cancels."""
        try:
            while (result := self.outcome) is None:
                await asyncio.sleep(_TICK)
                self._tell(on_event)
        finally:
            self.cancel()
        return result

    def _tell(self, on_event: OnEvent | None) -> None:
        for event in self.read_events():
            if on_event is not None:
                on_event(event)

    def _drain(self) -> list[Event]:
        events: list[Event] = []
        self._heard = False
        for _ in range(2 * _CHUNKS_WAITING):
            try:
                is_output, data = self._fresh.chunks.get_nowait()
            except queue.Empty:
                break
            self._heard = self._heard or bool(data)
            events += self._printed(data) if is_output else self._decoder.feed(data)
        for event in events:
            self._note(event)
        return events

    def _finish(self, done: Done) -> ReplayResult:
        until = time.monotonic() + _LAST_WORDS
        while self._done and not self._fresh.has_ended() and time.monotonic() < until:
            time.sleep(_TICK / 10)  # it has said its last word and ends by itself
        self._drain()
        note = " ".join([self._because, *([done.note] if done.note else [])])
        return super()._finish(replace(done, note=note))


def start_rerun(
    cells: Sequence[SetupCell],
    request: ReplayRequest,
    *,
    module: str,
    reason: str,
    execution_count: int | None = None,
    device_count: int = 1,
    cwd: str | None = None,
    sys_path: Sequence[str] = (),
    memory_limit: int | None = None,
) -> RunningRerun:
    """Start a fresh Python that runs ``cells``, then the cell of ``request``, on the CPU.

    Side effects of the cells on files and network happen again.

    Args:
        cells: what ran well before, in order.
        request: the failed cell; its timeout is for that cell alone.
        module: the module to run (``python -m``); it reads a :class:`RerunOrder` from stdin.
        reason: why no forked child is possible.
        execution_count: number of the failed cell.
        device_count: devices that the cells see.
        cwd: directory to start in.
        sys_path: entries that ``sys.path`` must have.
        memory_limit: bytes it may take; half of what is free now if None.

    Raises:
        RerunRefused: memory is short, or the system refused the process.

    """
    needed, free = memory.resident() // 2, memory.available()
    if free < needed:  # it will hold what this process holds, without the driver's libraries
        sizes = (f"{size / 2**20:.0f} MB" for size in (needed, free))
        raise RerunRefused(
            messages.CHECKPOINT_NO_MEMORY.format(needed=next(sizes), free=next(sizes))
        )
    setup = sum(cell.seconds for cell in cells)
    total = request.timeout + _START_SECONDS + _SLOWER * setup
    order = RerunOrder(
        token=secrets.token_hex(16),
        request=replace(request, state="rerun").to_dict(),
        cells=tuple(cells),
        execution_count=execution_count,
        seconds=total,
        memory_limit=free // 2 if memory_limit is None else memory_limit,
        device_count=device_count,
        cwd=cwd,
        sys_path=tuple(sys_path),
    )
    counts = [cell.execution_count for cell in cells if cell.execution_count is not None]
    because = messages.rerun_because(reason, counts)
    # -P: the directory of the notebook must not come before this package while it starts.
    command = (sys.executable, "-P", "-m", module)
    try:
        process = FreshProcess(command, order)
    except OSError as error:
        raise RerunRefused(messages.RERUN_NO_PROCESS.format(error=error)) from error
    return RunningRerun(process, total, because)
