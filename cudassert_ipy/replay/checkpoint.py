"""A forked child that waits with the exact Python state of now, to run a cell from it later."""

from __future__ import annotations

import os
import select
import threading
import warnings
from typing import TYPE_CHECKING, Final, Self

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.replay import descriptors, memory
from cudassert_ipy.replay.process import Child
from cudassert_ipy.replay.protocol import ReplayRequest
from cudassert_ipy.replay.rng import RandomState
from cudassert_ipy.replay.running import ReplayResult, RunningReplay
from cudassert_ipy.replay.worker import READY, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.replay.state import HostCopies

__all__ = [
    "Checkpoint",
    "CheckpointRefused",
    "ReplayRequest",
    "ReplayResult",
    "RunningReplay",
]

_READY_SECONDS: Final = 10.0


class CheckpointRefused(CudassertError):  # noqa: N818 - a reason, not a fault
    """No checkpoint can be taken now; the message says why."""


class Checkpoint:
    """A child with this process's state; make one with :meth:`take`."""

    def __init__(self, child: Child) -> None:
        self._child: Child | None = child
        self.pid = child.pid

    @classmethod
    def take(
        cls,
        copies: HostCopies,
        *,
        execute: Callable[[str], None],
        memory_limit: int | None = None,
    ) -> Self:
        """Fork this process and return when the child no longer shares anything that moves.

        Device values must have been copied before (:meth:`HostCopies.take_all`); the child never
        touches the device.

        Args:
            copies: host copies of device storages; what is missing there will be zeros.
            execute: runs the source of a cell in the child and lets its exception through.
            memory_limit: bytes that the child may take beyond what it starts with; half of what is
                free now if None.

        Raises:
            CheckpointRefused: not the main thread, no ``fork`` or ``/proc``, memory is short, or
                the child did not come up.

        """
        _refuse_where_unsafe()
        limit = memory.available() // 2 if memory_limit is None else memory_limit
        worker = Worker(copies, execute, limit, RandomState.take())
        child = _fork(worker)
        try:
            _await_ready(child)
        except BaseException:  # the child goes, whatever ended the wait
            child.end()
            raise
        return cls(child)

    def start(self, request: ReplayRequest) -> RunningReplay:
        """Let the child run the cell. A checkpoint can be started once.

        Raises:
            CheckpointRefused: it was started or discarded, or its child was killed meanwhile.

        """
        child = self._child
        if child is None or child.has_ended():
            self.discard()
            raise CheckpointRefused(messages.CHECKPOINT_GONE)
        self._child = None
        try:
            _write_all(child.control, request.line())
        except OSError as error:
            child.end()
            raise CheckpointRefused(messages.CHECKPOINT_GONE) from error
        return RunningReplay(child, request.state, request.timeout)

    def discard(self) -> None:
        """End the waiting child and free what it holds. Does nothing after :meth:`start`."""
        if self._child is not None:
            self._child.end()
            self._child = None


def _refuse_where_unsafe() -> None:
    if not hasattr(os, "fork") or not descriptors.available():
        raise CheckpointRefused(messages.CHECKPOINT_NO_FORK)
    if threading.current_thread() is not threading.main_thread():
        raise CheckpointRefused(messages.CHECKPOINT_NOT_MAIN_THREAD)
    short = memory.refusal()
    if short is not None:
        needed, free = (f"{size / 2**20:.0f} MB" for size in short)
        raise CheckpointRefused(messages.CHECKPOINT_NO_MEMORY.format(needed=needed, free=free))


def _fork(worker: Worker) -> Child:
    control_read, control_write = os.pipe()
    events_read, events_write = os.pipe()
    output_read, output_write = os.pipe()
    theirs = (control_read, events_write, output_write)
    ours = (control_write, events_read, output_read)
    try:
        with warnings.catch_warnings():
            # Python 3.12 and newer warn of forks in processes with threads. The child runs no
            # thread of its parent and waits for none; what it does was tried 300 times (design).
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError as error:
        for descriptor in (*theirs, *ours):
            os.close(descriptor)
        raise CheckpointRefused(messages.CHECKPOINT_FORK_FAILED.format(error=error)) from error
    if pid == 0:
        worker.run(*theirs)  # never returns
    for descriptor in theirs:
        os.close(descriptor)
    return Child(pid, *ours)


def _await_ready(child: Child) -> None:
    """Wait for the child's first byte: from then on the parent may read its files again."""
    poll = select.poll()  # and not `select`, which refuses descriptors above 1023
    poll.register(child.events, select.POLLIN)
    if not poll.poll(_READY_SECONDS * 1000) or os.read(child.events, len(READY)) != READY:
        raise CheckpointRefused(messages.CHECKPOINT_NOT_READY)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
