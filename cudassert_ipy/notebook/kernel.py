"""Everything private of ipykernel that a restart in place needs, each behind a small function.

Tests run with ipykernel 7.4; they passed with 6.29 (IPython 8.12) as well. The lines differ in what
serializes requests (``_main_asyncio_lock`` from 7 on, ``schedule_dispatch`` before) and in
subshells (from 7 on). ``can_exec`` says no wherever a needed name is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cudassert_ipy import messages
from cudassert_ipy.notebook.aborting import abort_received
from cudassert_ipy.restart.inplace import RestartError, Undo, restart
from cudassert_ipy.restart.start import own_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from cudassert_ipy.restart.handoff import Handoff
    from cudassert_ipy.restart.start import Start

DRAIN_SECONDS = 0.1
"""What ZMQ's own threads get to put messages on the wire; what is left at the exec is lost."""
PIPE_SECONDS = 0.02
"""What ipykernel's reader gets to take the last text from its pipes."""
_LAUNCHERS = {"ipykernel_launcher", "ipykernel", "ipykernel_launcher.py"}
_OLDEST = (6, 29)
"""Oldest ipykernel with which the restart was seen to work."""
_NEEDED = (
    "_abort_queues",
    "_aborting",
    "_publish_status",
    "_parent_ident",
    "set_parent",
    "get_parent",
)
_IN_TURN = ("_main_asyncio_lock", "schedule_dispatch")


def can_exec(shell: Any) -> str | None:
    """Return why this kernel must not be replaced in place; None if it may.

    An allow-list: only ipykernel's own kernel, started by its own launcher. Engines of ipyparallel,
    Spyder's, Databricks' and Colab's kernels register elsewhere and would be lost.
    """
    if os.name != "posix":
        return messages.RESTART_REFUSED_PLATFORM
    kernel = getattr(shell, "kernel", None)
    kind = type(kernel)
    if (kind.__module__, kind.__name__) != ("ipykernel.ipkernel", "IPythonKernel"):
        name = f"{kind.__module__}.{kind.__name__}"
        return messages.RESTART_REFUSED_KERNEL.format(kernel=name)
    if not _started_by_ipykernel(own_command()):
        return messages.RESTART_REFUSED_COMMAND
    version = sys.modules["ipykernel"].version_info
    if tuple(version[:2]) < _OLDEST:
        shown = sys.modules["ipykernel"].__version__
        return messages.RESTART_REFUSED_VERSION.format(version=shown)
    for name in _NEEDED:
        if not hasattr(kernel, name):
            return messages.RESTART_REFUSED_INTERFACE.format(name=name)
    if not any(hasattr(kernel, name) for name in _IN_TURN):
        return messages.RESTART_REFUSED_INTERFACE.format(name=" / ".join(_IN_TURN))
    return None


def _started_by_ipykernel(arguments: list[str]) -> bool:
    for before, argument in itertools.pairwise(arguments):
        if before == "-m" and argument in _LAUNCHERS:
            return True
        if Path(argument).name == "ipykernel_launcher.py":
            return True
    return False


# --- the request that a cell answers --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CellParent:
    """The request a cell answers, JSON-ready: what routes output to the cell after a restart."""

    message: dict[str, Any]
    idents: tuple[str, ...]
    """Routing identities of the client, as hex."""


def parent_of_current_cell(shell: Any) -> CellParent | None:
    """Return the request that is being answered on the shell channel; None outside a kernel."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return None
    header = (kernel.get_parent("shell") or {}).get("header")
    if not header:
        return None
    return CellParent(
        message={"header": {key: _plain(value) for key, value in header.items()}},
        idents=tuple(ident.hex() for ident in _shell_idents(kernel)),
    )


@contextlib.contextmanager
def busy(shell: Any, parent: CellParent | None) -> Iterator[None]:
    """Let front ends show a busy kernel meanwhile, in the name of the cell ``parent``.

    For work that no request waits for: a replay by button. ``_publish_status``: ipykernel 6 and 7;
    without it nothing is shown.
    """
    publish = getattr(getattr(shell, "kernel", None), "_publish_status", None)
    if publish is None or parent is None:
        yield
        return
    message = {**parent.message, "msg_id": parent.message["header"].get("msg_id")}
    publish("busy", "shell", parent=message)
    try:
        yield
    finally:
        publish("idle", "shell", parent=message)


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _shell_idents(kernel: Any) -> list[bytes]:
    # A dict in 6, a lazy mapping for compatibility in 7; empty bytes before the first request.
    idents = kernel._parent_ident["shell"]
    return [] if isinstance(idents, bytes) else [bytes(ident) for ident in idents]


def next_execution_count(shell: Any, *, in_cell: bool) -> int:
    """Return the number the next cell will get; ``in_cell``: a cell is running now.

    IPython 9.18 counts up before the cell runs, older ones after it; the display hook always knows
    the number of the running one.
    """
    if in_cell:
        return int(shell.displayhook.prompt_count) + 1
    return int(shell.execution_count)


# --- leaving --------------------------------------------------------------------------------------


class IpykernelHandle:
    """The kernel as ``restart.inplace.restart`` needs it.

    Args:
        shell: the kernel's shell.
        start: how the process was started, captured when the extension loaded.
        before_exec: called when nothing more will be printed, to give back descriptors 1 and 2 as
            the extension found them; returns what takes them again, for an exec that fails.

    """

    def __init__(
        self, shell: Any, start: Start, before_exec: Callable[[], Undo | None] | None = None
    ) -> None:
        self.shell = shell
        self.kernel = shell.kernel
        self.start = start
        self._before_exec = before_exec

    def handoff_directory(self) -> Path:
        """Return Jupyter's runtime directory, made if it is missing."""
        from jupyter_core.paths import jupyter_runtime_dir

        directory = Path(jupyter_runtime_dir())
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory

    def options(self) -> list[str]:
        """Return no further options."""
        return []

    def complete(self, handoff: Handoff, *, in_cell: bool) -> Handoff:
        """Return ``handoff`` with what only the kernel knows: subshells, numbers, ``In``."""
        return replace(
            handoff,
            connection_file=connection_file(self.shell),
            subshell_ids=tuple(_subshell_ids(self.kernel)),
            execution_count=next_execution_count(self.shell, in_cell=in_cell),
            inputs=tuple(self.shell.history_manager.input_hist_raw),
        )

    def end_history(self) -> Undo:
        """Close the history session."""
        return end_history(self.shell)

    def release_streams(self) -> Undo:
        """Flush, then point descriptors 1 and 2 to where the process got them pointing.

        ipykernel put pipes there that it reads itself; left so, the next process would write into
        pipes without a reader and die of it.
        """
        saved = {number: os.dup(number) for number in (1, 2)}
        again = self._before_exec() if self._before_exec is not None else None
        # What the caller still had goes through ipykernel's pipe and its reader to the stream.
        time.sleep(PIPE_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, original in _original_descriptors(self.kernel).items():
            os.dup2(original, number)
        time.sleep(DRAIN_SECONDS)

        def undo() -> None:
            for number, descriptor in saved.items():
                os.dup2(descriptor, number)
                os.close(descriptor)
            if again is not None:
                again()

        return undo


def end_history(shell: Any) -> Undo:
    """Close the history session of a shell; the result opens a new one."""
    history = shell.history_manager
    if not getattr(history, "enabled", False):
        return nothing
    try:
        history.end_session()
    except Exception as error:
        shell.log.warning("history session not closed: %s", error)
        return nothing
    new_session: Undo = history.new_session
    return new_session


def connection_file(shell: Any) -> str | None:
    """Return the base name of the kernel's connection file."""
    path = getattr(getattr(shell.kernel, "parent", None), "connection_file", "")
    return Path(path).name or None


def restart_now(handle: IpykernelHandle, handoff: Handoff, *, blocking: bool) -> NoReturn:
    """Restart from within the running cell; ``handoff.reply_owed`` makes the next process reply.

    Requests that wait behind the cell are answered ``aborted``. Raises ``RestartError``.
    """
    if threading.current_thread() is not threading.main_thread():
        reason = messages.RESTART_REFUSED_THREAD
        raise RestartError(messages.RESTART_FAILED.format(reason=reason))
    abort_received(handle.kernel)
    restart(handle, handle.complete(handoff, in_cell=True), blocking=blocking)


def restart_soon(
    handle: IpykernelHandle,
    make_handoff: Callable[[], Handoff],
    *,
    blocking: bool,
    on_failure: Callable[[Exception], None],
) -> None:
    """Restart as soon as the kernel has answered what it is answering; any thread.

    Queued cells get ``aborted`` replies first. ``make_handoff`` runs at the last moment;
    ``on_failure`` gets whatever went wrong, and the kernel goes on.
    """
    kernel = handle.kernel

    async def leave() -> None:
        try:
            abort_received(kernel)
            handoff = handle.complete(make_handoff(), in_cell=False)
            restart(handle, handoff, blocking=blocking)
        except Exception as error:
            on_failure(error)

    async def when_aborted() -> None:
        while kernel._aborting:  # noqa: ASYNC110 - a plain flag of ipykernel, nothing to wait on
            await asyncio.sleep(0.01)
        in_turn(kernel, kernel.io_loop, leave)

    def begin() -> None:
        kernel._abort_queues()
        kernel.io_loop.add_callback(when_aborted)

    # At once where that is possible: the next queued cell may start as soon as we return.
    if threading.current_thread() is threading.main_thread():
        begin()
    else:
        kernel.io_loop.add_callback(begin)


def in_turn(kernel: Any, io_loop: Any, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` between two requests; nothing on the main shell runs until it ends."""
    lock = getattr(kernel, "_main_asyncio_lock", None)
    if lock is not None:  # ipykernel 7

        async def locked() -> None:
            async with lock:
                await work()

        io_loop.add_callback(locked)
    else:  # ipykernel 6: its queue takes any coroutine function
        io_loop.add_callback(lambda: kernel.schedule_dispatch(work))


def _original_descriptors(kernel: Any) -> dict[int, int]:
    """Return {descriptor: ipykernel's copy of what it was}; empty where it did not redirect."""
    names = ("_stdout", "_stderr")  # ipykernel 7 keeps them, should user code replace sys.stdout
    streams = [sys.stdout, sys.stderr, *(getattr(kernel, name, None) for name in names)]
    found = {}
    for stream in streams:
        number = getattr(stream, "_original_stdstream_fd", None)
        copy = getattr(stream, "_original_stdstream_copy", None)
        if number is not None and copy is not None:
            found[number] = copy
    return found


def _subshell_ids(kernel: Any) -> list[str]:
    manager: Any = getattr(getattr(kernel, "shell_channel_thread", None), "manager", None)
    return list(manager.list_subshell()) if hasattr(manager, "list_subshell") else []


def nothing() -> None:
    """Undo nothing."""
