"""Replace this process by a fresh one with the same pid, ports and open terminal.

The order of the steps is the result of trying (some forty execs of real kernels): each comment
names what happened without it. Everything up to the exec is undone when the exec itself fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Protocol

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.restart.children import end_children
from cudassert_ipy.restart.handoff import Handoff, write
from cudassert_ipy.restart.start import (
    Start,
    is_text,
    next_command,
    next_environment,
    own_command,
)

Undo = Callable[[], None]


class RestartError(CudassertError):
    """The process could not be replaced and goes on as it was; the message says why."""


RestartError.__module__ = "cudassert_ipy"


class KernelHandle(Protocol):
    """What a restart needs of the kernel or terminal it runs in."""

    start: Start

    def handoff_directory(self) -> Path:
        """Return the directory for the handoff."""

    def options(self) -> list[str]:
        """Return further command-line options for the next process."""

    def end_history(self) -> Undo:
        """Close the history session (atexit handlers do not run on exec)."""

    def release_streams(self) -> Undo:
        """Give file descriptors 1 and 2 back as the process got them, all output flushed."""


def restart(kernel: KernelHandle, handoff: Handoff, *, blocking: bool) -> NoReturn:
    """Replace this process. Call from the main thread, with no request half answered.

    ``handoff.cwd`` and ``handoff.sys_path`` are filled in. Raises ``RestartError`` (or
    ``HandoffError``) with everything as before, except that child processes are gone.
    """
    start = kernel.start
    environment = next_environment(start.environment, blocking=blocking)
    handoff = replace(handoff, blocking=blocking, cwd=start.cwd, sys_path=start.sys_path)
    with ExitStack() as undo:
        path = write(handoff, _directory(kernel))
        undo.callback(path.unlink, missing_ok=True)
        command = next_command(own_command(), path)
        command[-2:-2] = [option for option in kernel.options() if option not in command]
        _check(command, environment)
        end_children()
        # From here on a Ctrl-C does nothing: half a step could not be undone.
        undo.callback(_reset_signals())
        undo.callback(kernel.end_history())
        undo.callback(kernel.release_streams())
        undo.callback(_enter_directory(start.cwd))
        undo.callback(_close_on_exec())
        try:
            _execute(command, environment)
        except (OSError, ValueError) as error:
            raise _failed(error) from error
    raise AssertionError  # an exec that succeeds does not come back


def _failed(reason: Exception | str) -> RestartError:
    text = getattr(reason, "strerror", None) or str(reason)
    return RestartError(messages.RESTART_FAILED.format(reason=text))


def _directory(kernel: KernelHandle) -> Path:
    try:
        directory = kernel.handoff_directory()
    except (OSError, ValueError) as error:
        raise _failed(error) from error
    if not is_text(str(directory)):
        raise _failed(messages.HANDOFF_NO_DIRECTORY.format(error=os.strerror(errno.EINVAL)))
    return directory


def _check(command: list[str], environment: dict[str, str]) -> None:
    """Raise ``RestartError`` for what can be known not to work before anything is ended for it."""
    executable = command[0]
    texts = (*command, *environment, *environment.values())
    odd = any(not is_text(text) for text in texts) or any("=" in name for name in environment)
    if odd or not own_command():
        raise _failed(messages.RESTART_REFUSED_COMMAND)
    if not os.access(executable, os.X_OK):
        reason = f"{executable or 'Python'}: {os.strerror(errno.ENOENT)}"
        raise _failed(reason)


def _execute(command: list[str], environment: dict[str, str]) -> None:
    # Not os.execve: with JupyterLab's debugger on that is pydevd's wrapper, and the kernel died.
    import posix

    posix.execve(sys.executable, command, environment)


def _enter_directory(path: str) -> Undo:
    # The command may name files relative to the directory it was started in. Python does not start
    # as a kernel in a directory that was removed.
    try:
        before = os.open(os.curdir, os.O_RDONLY | os.O_DIRECTORY)  # by name it may be gone
    except OSError:
        before = None
    for directory in (path, os.path.expanduser("~"), os.sep):  # noqa: PTH111 - it never raises
        with contextlib.suppress(OSError, ValueError):
            os.chdir(directory)
            break

    def undo() -> None:
        if before is not None:
            os.fchdir(before)
            os.close(before)

    return undo


def _reset_signals() -> Undo:
    # Ignored signals and the mask survive an exec. SIGINT has to be ignored: until the next Python
    # has a handler it would kill. A kernel sets one for each cell and ignores it in between; a
    # terminal gets Python's own back when it arrives (`terminal.accept_interrupts`). The mask must
    # not survive, nor running timers: their signal would kill.
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, [])
    kinds = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    timers = [(kind, signal.setitimer(kind, 0)) for kind in kinds]

    def undo() -> None:
        for kind, (delay, interval) in timers:
            signal.setitimer(kind, delay, interval)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)

    return undo


def _close_on_exec() -> Undo:
    # /dev/nvidia*, sockets and pipes would stay open in a process that knows nothing of them.
    changed: list[int] = []
    for descriptor in _open_descriptors():
        with contextlib.suppress(OSError):  # the one the listing itself used is closed again
            if descriptor > 2 and os.get_inheritable(descriptor):
                os.set_inheritable(descriptor, False)
                changed.append(descriptor)

    def undo() -> None:
        for descriptor in changed:
            with contextlib.suppress(OSError):  # closed meanwhile by a thread
                os.set_inheritable(descriptor, True)

    return undo


def _open_descriptors() -> list[int]:
    for folder in (Path("/proc/self/fd"), Path("/dev/fd")):
        with contextlib.suppress(OSError):
            return [int(entry.name) for entry in folder.iterdir()]
    return list(range(min(os.sysconf("SC_OPEN_MAX"), 1 << 16)))
