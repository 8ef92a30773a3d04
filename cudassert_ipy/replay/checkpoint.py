"""A forked child that waits with the exact Python state of now, to run a cell from it later."""

from __future__ import annotations

import os
import select
import threading
import warnings
from typing import TYPE_CHECKING, Self

from cudassert_ipy import messages
from cudassert_ipy.errors import CheckpointRefused
from cudassert_ipy.replay import descriptors, memory, supervisor
from cudassert_ipy.replay.process import Child
from cudassert_ipy.replay.protocol import ReplayRequest
from cudassert_ipy.replay.rng import RandomState
from cudassert_ipy.replay.running import ReplayResult, RunningReplay
from cudassert_ipy.replay.worker import ALIVE, READY, Worker

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

_ALIVE_SECONDS = 2.0
_READY_SECONDS = 20.0
_TRIES = 3


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
        for _ in range(_TRIES):
            child = _fork(Worker(copies, execute, limit, RandomState.take()))
            try:
                if child.comes_up(_ALIVE_SECONDS) and _is_ready(child):
                    return cls(child)
            except BaseException as error:  # the child goes, whatever ended the wait
                child.end()
                if isinstance(error, OSError):
                    raise _refused(error) from error
                raise
            child.end()
        raise CheckpointRefused(messages.CHECKPOINT_NOT_READY)

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


def _refused(error: OSError) -> CheckpointRefused:
    return CheckpointRefused(messages.CHECKPOINT_FORK_FAILED.format(error=error))


def _fork(worker: Worker) -> Child:
    pipes: list[int] = []
    try:
        for _ in range(4):
            pipes += os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 and newer warn of forks in processes with threads. The child runs no
            # thread of its parent and waits for none; what it does was tried 300 times (design).
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError as error:
        for descriptor in pipes:
            os.close(descriptor)
        raise _refused(error) from error
    theirs = (pipes[0], pipes[3], pipes[5], pipes[7])
    if pid == 0:
        supervisor.run(worker, *theirs)  # never returns
    for descriptor in theirs:
        os.close(descriptor)
    return Child(pid, pipes[1], pipes[2], pipes[4], pipes[6], worker.token)


def _is_ready(child: Child) -> bool:
    """Wait until the child shares nothing: from then on the parent may read its files again.

    The first byte does not come where a thread of this process held a lock at the fork that the
    child needs; at another moment it may not hold it.
    """
    expected = ((ALIVE, _ALIVE_SECONDS), (READY, _READY_SECONDS))
    return all(_reads(child.events, byte, seconds) for byte, seconds in expected)


def _reads(descriptor: int, expected: bytes, seconds: float) -> bool:
    poll = select.poll()  # and not `select`, which refuses descriptors above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000)) and os.read(descriptor, 1) == expected


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
