"""What the buttons of the panel do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cudassert_ipy.errors import CudassertError
from cudassert_ipy.notebook.hooks import log
from cudassert_ipy.report.markdown import render_markdown

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from cudassert_ipy.notebook.session import Session


class Actions:
    """The panel's buttons, bound to one session. Called on the kernel's main thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tasks: set[asyncio.Task[None]] = set()

    def replay(self) -> None:
        """Replay the failed cell on the CPU, while the kernel stays usable."""
        self._start(self._session.replaying.replay_in_panel())

    def replay_whole(self) -> None:
        """Replay the whole cell, however long it takes, after its loop alone told nothing."""
        self._start(self._session.replaying.replay_in_panel(whole=True))

    def cancel(self) -> None:
        """Stop the running replay, and after a restart the set-up that runs again."""
        self._session.restarting.cancelled = True
        self._session.replaying.cancel()

    def plan_restart(self, *, replay: bool) -> None:
        """Show what a restart would run again and what would be lost."""
        self._session.restarting.show_plan(replay=replay)

    def confirm_restart(self, selected: Sequence[int]) -> None:
        """Restart in place and run the selected cells again."""
        self._session.restarting.restart_from_panel(selected)

    def back(self) -> None:
        """Leave the plan without restarting."""
        panel, diagnosis = self._session.display.panel, self._session.diagnosis
        if panel is not None and diagnosis is not None:
            panel.offer(diagnosis)

    def report_markdown(self) -> str:
        """Return the report to copy from."""
        if self._session.diagnosis is None:
            return ""
        show_values = self._session.settings.show_values
        return render_markdown(self._session.diagnosis, show_values=show_values)

    def reproduce(self) -> None:
        """Write a reproducer and try it, while the kernel stays usable."""
        from cudassert_ipy.notebook.reproducing import Reproducing

        self._start(Reproducing(self._session).reproduce_in_panel())

    def restart_plain(self) -> None:
        """Restart in place without blocking launches."""
        self._session.restarting.restart_plain()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # On the kernel's own loop and thread, where a fork is safe: a click may arrive on the
        # thread of a subshell (ipykernel 7.0, 7.1).
        self._session.shell.kernel.io_loop.add_callback(self._spawn, work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        panel = self._session.display.panel
        try:
            await work
        except CudassertError as error:
            if panel is not None:
                panel.note(str(error))
        except Exception as error:  # a fault of ours must show, not vanish with the task
            log.exception("an action of the panel failed")
            if panel is not None:
                panel.note(f"{type(error).__name__}: {error}")
