"""The child: shares nothing that moves, waits for a request, runs the cell, tells, is gone."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from select import POLLHUP, POLLIN, poll
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

import torch

from cudassert_ipy import messages
from cudassert_ipy.replay import descriptors, sharing, signals
from cudassert_ipy.replay.cell import CellReplay
from cudassert_ipy.replay.protocol import Done, Progress, ReplayRequest
from cudassert_ipy.replay.rng import RandomState
from cudassert_ipy.replay.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.replay.state import HostCopies

ALIVE: Final = b"\n"
"""First byte of the event pipe: no lock that the child needs is held for ever."""
READY: Final = b"\n"
"""Second byte: the child shares nothing with its parent any more."""
_BEAT = 0.25


class Worker:
    """What runs in the child. Made in the parent, before the fork.

    Args:
        copies: host copies of device storages.
        execute: runs the source of a cell.
        memory_limit: bytes the child may take beyond what it starts with.
        rng: the random state at the fork, which Python's ``random`` reseeds in a forked child.

    Attributes:
        token: what each line of its events carries; the cell's own code does not know it.

    """

    def __init__(
        self,
        copies: HostCopies,
        execute: Callable[[str], None],
        memory_limit: int,
        rng: RandomState,
    ) -> None:
        self._copies = copies
        self._execute = execute
        self._memory_limit = memory_limit
        self._rng = rng
        self.token = secrets.token_hex(16)
        # A driver that is gone answers in the parent, from its cache; the child must not ask.
        self._device_count = max(1, torch.cuda.device_count())

    def run(self, control: int, events: int, output: int) -> NoReturn:
        """Be the child until the end of the process. Nothing of the caller's stack runs again."""
        status = 1
        try:
            # A thread of the parent may have been drawing random numbers: then the generator
            # stays locked for ever in the child. The parent sees that no byte comes.
            self._rng.restore()
            os.write(events, ALIVE)
            problem = self._isolate({control, events, output}, output)
            os.write(events, READY)
            line = _read_line(control)
            if line:
                self._serve(ReplayRequest.from_line(line), control, events, problem)
            status = 0
        except BaseException:
            with contextlib.suppress(OSError):
                os.write(output, traceback.format_exc().encode("utf-8", "replace"))
        finally:
            os._exit(status)

    def _isolate(self, keep: set[int], output: int) -> str | None:
        """Cut every tie to the parent; return why the replay cannot be true, if it cannot."""
        os.setsid()
        signals.reset()
        descriptors.isolate(keep)
        descriptors.redirect_standard_streams(output)
        problem = None
        try:
            sharing.make_private(self._memory_limit)
        except (sharing.TooMuchSharedMemoryError, OSError) as error:
            problem = messages.REPLAY_SHARED_TOO_LARGE.format(detail=error)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        faulthandler.enable(output, all_threads=False)  # the parent reads where it crashed
        sys.stdout, sys.stderr = _text_stream(1), _text_stream(2)
        return problem

    def _serve(
        self, request: ReplayRequest, control: int, events: int, problem: str | None
    ) -> None:
        sender = Sender(events, self.token)
        if problem is not None:
            sender.send(Done(outcome="inconclusive", note=problem))
            return
        if request.rng is not None:
            RandomState.from_dict(request.rng).restore()
        started = time.monotonic()
        replay = CellReplay(
            self._copies,
            self._execute,
            sender.send,
            device_count=self._device_count,
            memory_limit=self._memory_limit,
        )
        try:
            _Heartbeat(sender, control, started, request.timeout).start()
            done = replay.run(request.source, started)
        except Exception as error:  # ours, not the cell's: no kind of it may pass for a verdict
            traceback.print_exc()
            note = messages.REPLAY_NOT_SET_UP.format(error=f"{type(error).__name__}: {error}")
            done = Done(outcome="inconclusive", note=note)
        if os.getpid() != sender.owner:
            os._exit(0)  # the cell forked and its child came out here; only one may tell
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # whatever the cell put in its place
                stream.flush()
        sender.send(done)


class _Heartbeat(threading.Thread):
    """Tells that the child is alive, and ends it with its parent or at the time-out."""

    def __init__(self, sender: Sender, control: int, started: float, timeout: float) -> None:
        super().__init__(name="cudassert-heartbeat", daemon=True)
        self._sender = sender
        self._control = control
        self._start_time = started
        self._limit = timeout

    def run(self) -> None:
        parent = poll()
        parent.register(self._control, POLLIN | POLLHUP)
        while not parent.poll(_BEAT * 1000):
            seconds = time.monotonic() - self._start_time
            if seconds > self._limit:
                note = messages.REPLAY_TIMED_OUT.format(seconds=self._limit)
                self._sender.send(Done(outcome="timed_out", seconds=seconds, note=note))
                break
            self._sender.send(Progress(label=messages.REPLAY_PROGRESS, seconds=seconds))
        os.killpg(0, signal.SIGKILL)  # with everything the cell started


def _read_line(control: int) -> bytes:
    """Return the request; empty when the parent is gone or has no use for this child."""
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = os.read(control, 1 << 20)
        if not chunk:
            return b""
        data += chunk
    return bytes(data)


def _text_stream(descriptor: int) -> TextIO:
    return open(
        descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
