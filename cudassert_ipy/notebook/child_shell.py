"""Run a cell in a forked child, in the shell it inherited, without reaching the front end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from cudassert_ipy.notebook.debug_cell import remember_timed_body
from cudassert_ipy.replay.batches import LOG
from cudassert_ipy.replay.loop_run import BodyRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.model import Finding
    from cudassert_ipy.replay.host_state import HostState
    from cudassert_ipy.replay.loop_body import LoopBody


class _TextOnly(DisplayPublisher):
    """Prints the text of what the cell displays, and nothing else."""

    def publish(self, data: Any, *_args: Any, **_options: Any) -> None:
        text = data.get("text/plain")
        if text:
            print(str(text)[:10_000])

    def clear_output(self, wait: bool = False) -> None:
        """Do nothing: nothing is shown that could be cleared."""


class CellRun:
    """Runs one cell in the child as IPython would, and raises its error.

    Args:
        shell: the inherited shell.
        state: variables to put back first, where the cell may have changed its own inputs.

    """

    def __init__(self, shell: Any, state: HostState | None = None) -> None:
        self._shell = shell
        self._state = state

    def __call__(self, source: str) -> None:
        """Run the cell ``source``."""
        shell = self._shell
        _detach(shell)
        remember_timed_body(source)
        if self._state is not None:
            self._state.restore(shell.user_ns)
        LOG.begin()  # so that the rows of a batch can be named
        result = shell.run_cell(source, store_history=False)
        result.raise_error()

    def found(self, finding: Finding) -> Finding:
        """Return the finding with the dataset items that hold its values, where that is proven."""
        return replace(finding, dataset_indices=LOG.name_rows(finding, ask_dataset=True))


def body_run(shell: Any, body: LoopBody, *, show_values: bool) -> BodyRun:
    """Return what runs the body of a loop in the child, in the shell it inherited."""

    def around(run: Callable[[], None]) -> None:
        _detach(shell)
        with shell.builtin_trap, shell.display_trap:
            run()

    return BodyRun(body, around, show_values=show_values)


def _detach(shell: Any) -> None:
    """Cut the inherited shell off from the kernel it was copied from."""
    for callbacks in shell.events.callbacks.values():
        callbacks.clear()  # the user's listeners belong to the parent; ours do too
    shell._showtraceback = lambda *_args: None
    shell.display_pub = _TextOnly(shell=shell)
    # IPython's own plain hook, which prints; ipykernel's would send to the front end.
    shell.displayhook = DisplayHook(shell=shell)
    shell.display_trap.hook = shell.displayhook
    if hasattr(shell, "kernel"):
        # input() would wait for a front end for ever (ipykernel 6 and 7).
        shell.kernel._allow_stdin = False
    history = getattr(shell, "history_manager", None)
    if history is not None:
        history.enabled = False
    # The inherited loop is running, in the parent; an awaiting cell gets its own.
    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    shell.loop_runner = loop.run_until_complete
