"""Replays of the failed cell: from a button, from the magic, and by themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.errors import CheckpointRefused, CudassertError
from cudassert_ipy.notebook import device, loops
from cudassert_ipy.notebook.cell_names import names_read_first
from cudassert_ipy.notebook.child_shell import CellRun, body_run
from cudassert_ipy.notebook.diagnosing import actions_for, as_typed
from cudassert_ipy.notebook.inert import Inert
from cudassert_ipy.notebook.judging import judge
from cudassert_ipy.notebook.kernel import busy
from cudassert_ipy.replay.loop_body import find_bodies
from cudassert_ipy.replay.loop_run import FedCell
from cudassert_ipy.replay.protocol import ReplayRequest
from cudassert_ipy.replay.state import FLOAT_BUDGET, HostCopies

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from cudassert_ipy.model import Diagnosis, ReplayState
    from cudassert_ipy.notebook.recorder import CellRecord
    from cudassert_ipy.notebook.session import Session
    from cudassert_ipy.replay.loop_body import LoopBody

SLOWDOWN = 4.0
"""A replayed cell against the cell itself, where nothing was measured (benchmarks, small steps)."""
_SAID_SECONDS = 2.0
_GENEROUS = 5.0
_FED_SECONDS = 10.0
"""A cell that takes longer runs with the last batches of its loaders first."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One replay that was started.

    Attributes:
        label: what is shown while it runs.
        estimate: seconds that it may take; None where unknown.
        running: the replay.

    """

    label: str
    estimate: float | None
    running: Any


class Replaying:
    """Starts replays in forked children and turns their results into diagnoses.

    Attributes:
        output: what the cell printed in the last replay.
        call: the call that its finding is about, as data; None where it was not told.

    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._running: Any = None
        self.output = ""
        self.call: Any = None

    def checkpoint(self, float_budget: int, *, fresh: bool = False) -> Any:
        """Fork a child that waits with the state of now. Raises ``CheckpointRefused``.

        Integer and boolean CUDA tensors are copied to the host first, others up to ``float_budget``
        bytes. ``fresh``: all values are copied now, so that none is of the end of a cell.
        """
        from cudassert_ipy.replay.checkpoint import Checkpoint

        session = self._session
        # With automatic copies on, they hold what did not change since the last checkpoint.
        copies = session.copies if session.settings.copies and not fresh else HostCopies()
        if device.cuda_in_use():
            last = None if fresh else session.shell.execution_count - 1
            copies.take_all(session.shell.user_ns, float_budget, execution_count=last)
        return Checkpoint.take(copies, execute=CellRun(session.shell))

    def _changed_inputs(self, cell: CellRecord) -> list[str]:
        """Return what the cell reads and had changed, as far as it cannot be put back."""
        shell = self._session.shell
        try:
            source = shell.transform_cell(cell.source)
        except Exception:  # a transformer of the user's; the raw cell will do
            source = cell.source
        words = names_read_first(source)
        names = names_read_first(source, Inert(shell.user_ns, words))
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

    def replay_now(self, *, whole: bool = False) -> Diagnosis:
        """Replay the failed cell and show the result in the cell that asks (the magic).

        ``whole``: not only the body of a loop, with as much time as it needs. Raises
        ``CudassertError`` when there is nothing to replay or no child can be made.
        """
        steps = self._steps(whole=whole)
        attempt = next(steps)
        try:
            while True:
                if attempt.estimate is not None and attempt.estimate > _SAID_SECONDS:
                    print(f"{attempt.label} …")
                attempt = steps.send(self._wait(attempt.running))
        except StopIteration as end:
            found: Diagnosis = end.value
        self._session.display.show(found)
        if self.output.strip():
            print(messages.REPLAY_PRINTED)
        return found

    async def replay_in_panel(self, *, whole: bool = False) -> None:
        """Replay the failed cell while the kernel stays usable, and show the result in place."""
        display = self._session.display
        steps = self._steps(whole=whole)
        attempt = next(steps)
        panel = display.panel
        with busy(self._session.shell, display.parent):
            try:
                while True:
                    attempt = steps.send(await self.result_of(attempt))
            except StopIteration as end:  # Python lets no coroutine raise it by itself
                found: Diagnosis = end.value
        display.update(found)
        if panel is not None:
            panel.result(found, self.output)

    def wait_for(self, attempt: Attempt) -> Any:
        """Say what is tried, wait for it, and return its result."""
        print(f"{attempt.label} …")
        return self._wait(attempt.running)

    async def result_of(self, attempt: Attempt) -> Any:
        """Show the progress of what is tried, in the panel, and return its result."""
        panel = self._session.display.panel
        self._running = attempt.running
        if panel is not None:
            panel.progress(attempt.label, None, None)
        try:
            return await attempt.running.result(
                lambda event: self._show_progress(panel, event, attempt.label)
            )
        finally:
            self._running = None

    def _steps(self, *, whole: bool) -> Generator[Attempt, Any, Diagnosis]:
        """Yield the replays one by one, take their results, and return what was found.

        In forked children; where there can be none, in a fresh process.
        """
        diagnosis, cell = self._to_replay()
        try:
            if not self._session.can_fork:
                raise CheckpointRefused(messages.CANNOT_FORK)
            return (yield from self._forked(diagnosis, cell, whole=whole))
        except CheckpointRefused as refusal:
            from cudassert_ipy.notebook.fresh_replay import rerun

            request = self._request(cell, "rerun")
            running = rerun(self._session, cell, request, refusal)
            # No label: what runs, the cells of the set-up by turns, is told by the process.
            result = yield Attempt("", None, running)
            return self._finish(diagnosis, result)

    def _forked(
        self, diagnosis: Diagnosis, cell: CellRecord, *, whole: bool
    ) -> Generator[Attempt, Any, Diagnosis]:
        """Yield and take replays in forked children; raise ``CheckpointRefused`` if one cannot be.

        The body of the loop first; if it decides nothing, the whole cell, unless that would take
        too long and was not asked for.
        """
        limit = self._session.settings.replay_seconds
        said: list[str] = []
        results: list[Any] = []
        estimate = None if cell.seconds is None else cell.seconds * SLOWDOWN
        bodies = None if whole else self._bodies(cell)
        for body in bodies or ():
            execute = body_run(
                self._session.shell, body, show_values=self._session.settings.show_values
            )
            result = yield self._attempt(cell, execute, loops.label(body), None, limit)
            results.append(result)
            doubtful = loops.carried_into(body, result.finding)
            if result.finding is not None or result.replay.outcome == "cancelled":
                return self._finish(diagnosis, result, doubtful)
            said.append(loops.outcome(body, result.replay))
            estimate = loops.estimate(body, result) or estimate
        if self._fed_first(cell, estimate, bodies):
            fed = FedCell(CellRun(self._session.shell, cell.host_state), cell.loaders)
            result = yield self._attempt(cell, fed, messages.LOOP_PROGRESS_FED, None, limit)
            results.append(result)
            if result.finding is not None or result.replay.outcome == "cancelled":
                return self._finish(diagnosis, result, self._changed_inputs(cell))
            said.append(messages.LOOP_FED_CELL)
        if results and estimate is not None and estimate > limit:
            said.append(loops.offer(estimate, limit))
            return self._unfinished(diagnosis, results[-1], said)
        time = max(limit, _GENEROUS * (estimate or 0.0)) if whole else limit
        run = CellRun(self._session.shell, cell.host_state)
        label = messages.LOOP_PROGRESS_WHOLE if results else messages.REPLAY_PROGRESS
        result = yield self._attempt(cell, run, label, estimate, time)
        if said:
            result = loops.with_note(result, [*said, messages.LOOP_WHOLE_DONE])
        return self._finish(diagnosis, result, self._changed_inputs(cell))

    @staticmethod
    def _fed_first(
        cell: CellRecord, estimate: float | None, bodies: Sequence[LoopBody] | None
    ) -> bool:
        """Whether to run the cell with the last batches only: no loop over them was cut out."""
        if bodies is None or any(body.batches for body in bodies) or not cell.loaders:
            return False
        return estimate is None or estimate > _FED_SECONDS

    def _attempt(
        self, cell: CellRecord, execute: Any, label: str, estimate: float | None, timeout: float
    ) -> Attempt:
        from cudassert_ipy.replay.checkpoint import Checkpoint

        copies = self._session.copies
        if not self._session.dead:
            copies = HostCopies()
            copies.take_all(self._session.shell.user_ns, 0)
        request = replace(self._request(cell, "after_failure"), timeout=timeout)
        running = Checkpoint.take(copies, execute=execute).start(request)
        return Attempt(loops.about(label, estimate), estimate, running)

    def _bodies(self, cell: CellRecord) -> tuple[LoopBody, ...]:
        session = self._session
        if not cell.frames and not cell.loaders:
            return ()
        files = {
            code.co_filename for loader in cell.loaders for code, _ in loader.batches[-1].sites
        }
        own = [name for name in files if session.cell_of(name) == cell.execution_count]
        return find_bodies(cell.frames, cell.loaders, session.shell.user_ns, own)

    def _unfinished(self, diagnosis: Diagnosis, result: Any, said: list[str]) -> Diagnosis:
        """Return that the loop's body was clean, which says little of the cell, and what next."""
        result = loops.with_note(result, said, outcome="inconclusive")
        found = self._finish(diagnosis, result, ())
        actions = tuple(name for name in found.actions if name != "replay")
        return replace(found, actions=("replay_whole", *actions))

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
        checkpoint = self.checkpoint(FLOAT_BUDGET, fresh=True)
        return checkpoint.start(self._request(self._failed_cell(), "checkpoint"))

    def cancel(self) -> None:
        """Stop the running replay, if there is one."""
        if self._running is not None:
            self._running.cancel()

    def close(self) -> None:
        """Stop whatever runs: the extension is being unloaded or the process replaced."""
        self.cancel()

    def _to_replay(self) -> tuple[Diagnosis, CellRecord]:
        diagnosis = self._session.diagnosis
        if diagnosis is None:
            raise CudassertError(messages.NOTHING_TO_REPLAY)
        cell = self._failed_cell()
        return diagnosis, cell

    def _failed_cell(self) -> CellRecord:
        if self._session.failed is None:
            raise CudassertError(messages.NOTHING_TO_REPLAY)
        return self._session.failed

    def _request(self, cell: CellRecord, state: ReplayState) -> ReplayRequest:
        after = state in ("after_failure", "rerun")
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

    def _finish(self, diagnosis: Diagnosis, result: Any, changed: Sequence[str] = ()) -> Diagnosis:
        self.output = result.output
        self.call = result.call
        context = diagnosis.context
        found = replace(
            diagnosis,
            finding=result.finding,
            more=result.more,
            replay=result.replay,
            tensors=result.tensors,
            actions=actions_for(context, can_replay=result.replay.outcome != "raised"),
        )
        cell = self._failed_cell()
        own = cell.execution_count if result.replay.state == "rerun" else None
        found = as_typed(found, cell.source, self._session.cell_of, own)
        return judge(found, changed, fence=self._session.settings.fence)

    @staticmethod
    def _show_progress(panel: Any, event: Any, label: str = "") -> None:
        told = getattr(event, "label", None)
        if panel is not None and told is not None:
            panel.progress(label or told, event.seconds, None)
