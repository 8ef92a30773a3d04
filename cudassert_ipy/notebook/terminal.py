"""The restart in place for terminal IPython: the same command line, started again."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from cudassert_ipy import messages
from cudassert_ipy.notebook.kernel import end_history, next_execution_count, nothing
from cudassert_ipy.notebook.resuming import restore_numbers
from cudassert_ipy.restart.inplace import Undo, restart
from cudassert_ipy.restart.start import own_command, take_over

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cudassert_ipy.restart.handoff import Handoff
    from cudassert_ipy.restart.start import Start

NO_BANNER = "--no-banner"
_MODULES = {"IPython", "ipython"}
_T = TypeVar("_T")


def can_exec(shell: Any) -> str | None:
    """Return why this terminal session must not be replaced in place; None if it may."""
    if os.name != "posix":
        return messages.RESTART_REFUSED_PLATFORM
    kind = type(shell)
    if (kind.__module__, kind.__name__) != (
        "IPython.terminal.interactiveshell",
        "TerminalInteractiveShell",
    ):
        name = f"{kind.__module__}.{kind.__name__}"
        return messages.RESTART_REFUSED_SHELL.format(shell=name)
    return _refuse_command(own_command())


def _refuse_command(arguments: list[str]) -> str | None:
    """Allow ``python [-X…] [-m IPython | …/ipython] --options`` and nothing else."""
    rest = arguments[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        # `-X dev` and `-W error` have their value in the next argument.
        rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
    if rest[:1] == ["-m"] and rest[1:2] and rest[1] in _MODULES:
        rest = rest[2:]
    elif rest and Path(rest[0]).name.rstrip("0123456789.") == "ipython":
        rest = rest[1:]
    else:
        return messages.RESTART_REFUSED_COMMAND
    for argument in rest:
        if not argument.startswith("-") or argument in ("-c", "-m", "-i", "--"):
            return messages.RESTART_REFUSED_SCRIPT
    return None


class TerminalHandle:
    """Terminal IPython as ``restart.inplace.restart`` needs it; see ``IpykernelHandle``."""

    def __init__(
        self, shell: Any, start: Start, before_exec: Callable[[], Undo | None] | None = None
    ) -> None:
        self.shell = shell
        self.start = start
        self._before_exec = before_exec

    def handoff_directory(self) -> Path:
        """Return Jupyter's runtime directory, made if it is missing."""
        from jupyter_core.paths import jupyter_runtime_dir

        directory = Path(jupyter_runtime_dir())
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory

    def options(self) -> list[str]:
        """Return the option that keeps IPython from greeting again."""
        return [NO_BANNER]

    def end_history(self) -> Undo:
        """Close the history session."""
        return end_history(self.shell)

    def release_streams(self) -> Undo:
        """Flush; descriptors 1 and 2 are the terminal already, once the caller gave them back."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        again = self._before_exec() if self._before_exec is not None else None
        return again if again is not None else nothing


def restart_now(handle: TerminalHandle, handoff: Handoff, *, blocking: bool) -> NoReturn:
    """Restart from within the running cell. Raises ``RestartError`` or ``HandoffError``."""
    shell = handle.shell
    complete = replace(
        handoff,
        execution_count=next_execution_count(shell, in_cell=True),
        inputs=tuple(shell.history_manager.input_hist_raw),
    )
    restart(handle, complete, blocking=blocking)


def schedule_resume(shell: Any, handoff: Handoff, work: Callable[[], None]) -> None:
    """Run ``work()`` before the first prompt; call it at load time.

    The extension loads before IPython's start-up files run, and set-up cells may need those, so it
    hangs before ``mainloop``, which the application calls when all is ready.
    """
    take_over(handoff.cwd, handoff.sys_path)
    original = shell.mainloop

    def mainloop(*args: Any, **kwargs: Any) -> Any:
        del shell.mainloop  # the instance attribute: the method of the class is back
        accept_interrupts()
        try:
            work()
        except KeyboardInterrupt:
            print(messages.RESUME_BROKEN.format(error="KeyboardInterrupt"))
        except Exception as error:  # the user must get the prompt whatever it was
            name = f"{type(error).__name__}: {error}"
            print(messages.RESUME_BROKEN.format(error=name))
        restore_numbers(shell, handoff)
        return original(*args, **kwargs)

    shell.mainloop = mainloop


def accept_interrupts() -> None:
    """Give Ctrl-C back to a terminal that was started by a restart, which ignores it until then.

    Python does not do it: it installs its handler only where SIGINT is not ignored at the start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def drive(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never really waits, such as ``resume`` with a terminal's stage.

    No event loop: a cell with a top-level ``await`` starts its own, and loops do not nest.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: _T = done.value
        return value
    coroutine.close()
    msg = "the coroutine waits for an event loop"
    raise RuntimeError(msg)
