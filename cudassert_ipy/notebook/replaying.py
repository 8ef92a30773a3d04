"""Replays of the failed cell: from a button, from the magic, and by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.notebook import device
from cudassert_ipy.notebook.cell_names import names_read_first
from cudassert_ipy.notebook.child_shell import executor
from cudassert_ipy.notebook.diagnosing import actions_for, as_typed
from cudassert_ipy.notebook.judging import judge
from cudassert_ipy.replay.checkpoint import Checkpoint
from cudassert_ipy.replay.protocol import ReplayRequest
from cudassert_ipy.replay.state import FLOAT_BUDGET, HostCopies

if TYPE_CHECKING:
    from cudassert_ipy.model import Diagnosis, ReplayState
    from cudassert_ipy.notebook.recorder import CellRecord
    from cudassert_ipy.notebook.session import Session
    from cudassert_ipy.replay.host_state import HostState


class Replaying:
    """Starts replays in forked children and turns their results into diagnoses.

    Attributes:
        output: what the cell printed in the last replay.

    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._running: Any = None
        self.output = ""

    def checkpoint(self, float_budget: int) -> Any:
        """Fork a child that waits with the state of now. Raises ``CheckpointRefused``.

        Integer and boolean CUDA tensors are copied to the host first, others up to ``float_budget``
        bytes.
        """
        copies = HostCopies()
        if device.cuda_in_use():
            copies.take_all(self._session.shell.user_ns, float_budget)
        return self._fork(copies)

    def _fork(self, copies: HostCopies, state: HostState | None = None) -> Any:
        return Checkpoint.take(copies, execute=executor(self._session.shell, state))

    def _changed_inputs(self, cell: CellRecord) -> list[str]:
        """Return what the cell reads and had changed, as far as it cannot be put back."""
        shell = self._session.shell
        try:
            source = shell.transform_cell(cell.source)
        except Exception:  # a transformer of the user's; the raw cell will do
            source = cell.source
        names = names_read_first(source)
        lost = cell.host_state.lost(shell.user_ns) if cell.host_state is not None else ()
        moved = (n for n in names if hasattr(type(shell.user_ns.get(n)), "__next__"))
        return sorted({*moved, *(name for name in lost if name in names)})

    def from_checkpoint(
        self, checkpoint: Any, diagnosis: Diagnosis, timeout: float | None
    ) -> Diagnosis:
        """Replay the cell that died, from the state of before it, and return what was found.

        ``timeout``: seconds, where the cell asked for another limit than the settings.
        """
        request = self._request(self._failed_cell(), "checkpoint")
        if timeout is not None:
            request = replace(request, timeout=timeout)
        running = checkpoint.start(request)
        return self._finish(diagnosis, self._wait(running))

    def replay_now(self) -> Diagnosis:
        """Replay the failed cell and show the result in the cell that asks (the magic).

        Raises ``CudassertError`` when there is nothing to replay or no child can be made.
        """
        diagnosis, running = self._start()
        found = self._finish(diagnosis, self._wait(running))
        self._session.display.show(found)
        return found

    async def replay_in_panel(self) -> None:
        """Replay the failed cell while the kernel stays usable, and show the result in place."""
        diagnosis, running = self._start()
        panel = self._session.display.panel
        self._running = running
        try:
            result = await running.result(lambda event: self._show_progress(panel, event))
        finally:
            self._running = None
        found = self._finish(diagnosis, result)
        self._session.display.update(found)
        if panel is not None:
            panel.result(found)

    async def replay_from_here(self, diagnosis: Diagnosis) -> Diagnosis:
        """After a restart: replay the failing cell from the state of now, and return the result."""
        panel = self._session.display.panel
        running = self._start_here()
        self._running = running
        try:
            result = await running.result(lambda event: self._show_progress(panel, event))
        finally:
            self._running = None
        return self._finish(diagnosis, result)

    def replay_from_here_blocking(self, diagnosis: Diagnosis) -> Diagnosis:
        """Do the same where nothing else has to run meanwhile."""
        return self._finish(diagnosis, self._wait(self._start_here()))

    def _start_here(self) -> Any:
        if self._session.dead:  # the set-up itself killed the new context
            raise CudassertError(messages.DEAD_AGAIN)
        checkpoint = self.checkpoint(FLOAT_BUDGET)
        return checkpoint.start(self._request(self._failed_cell(), "checkpoint"))

    def cancel(self) -> None:
        """Stop the running replay, if there is one."""
        if self._running is not None:
            self._running.cancel()

    def close(self) -> None:
        """Stop whatever runs: the extension is being unloaded or the process replaced."""
        self.cancel()

    def _start(self) -> tuple[Diagnosis, Any]:
        diagnosis = self._session.diagnosis
        if diagnosis is None:
            raise CudassertError(messages.NOTHING_TO_REPLAY)
        cell = self._failed_cell()
        if not self._session.can_fork:
            raise CudassertError(messages.CANNOT_FORK)
        copies = self._session.copies
        if not self._session.dead:
            copies = HostCopies()
            copies.take_all(self._session.shell.user_ns, 0)
        checkpoint = self._fork(copies, cell.host_state)
        return diagnosis, checkpoint.start(self._request(cell, "after_failure"))

    def _failed_cell(self) -> CellRecord:
        if self._session.failed is None:
            raise CudassertError(messages.NOTHING_TO_REPLAY)
        return self._session.failed

    def _request(self, cell: CellRecord, state: ReplayState) -> ReplayRequest:
        after = state == "after_failure"
        return ReplayRequest(
            source=cell.source,
            state=state,
            timeout=self._session.settings.replay_seconds,
            rng=cell.rng.to_dict() if after and cell.rng is not None else None,
        )

    def _wait(self, running: Any) -> Any:
        self._running = running
        try:
            return running.wait(lambda _event: None)
        finally:
            self._running = None

    def _finish(self, diagnosis: Diagnosis, result: Any) -> Diagnosis:
        self.output = result.output
        context = diagnosis.context
        found = replace(
            diagnosis,
            finding=result.finding,
            replay=result.replay,
            tensors=result.tensors,
            actions=actions_for(context, can_replay=result.replay.outcome != "raised"),
        )
        cell = self._failed_cell()
        found = as_typed(found, cell.source, self._session.cell_of)
        after = result.replay.state == "after_failure"
        return judge(found, self._changed_inputs(cell) if after else ())

    @staticmethod
    def _show_progress(panel: Any, event: Any) -> None:
        label = getattr(event, "label", None)
        if panel is not None and label is not None:
            panel.progress(label, event.seconds, None)
