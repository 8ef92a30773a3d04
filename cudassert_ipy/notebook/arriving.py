"""After a restart: run the set-up cells again, replay the failing cell, show what came out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.model import Diagnosis
from cudassert_ipy.notebook import resuming, terminal
from cudassert_ipy.notebook.recorder import CellRecord
from cudassert_ipy.notebook.rerun import run_recorded_cell, run_recorded_cell_in_terminal
from cudassert_ipy.restart.handoff import Handoff, HandoffError, RecordedCell, read
from cudassert_ipy.restart.resume import Resumed, resume
from cudassert_ipy.restart.start import take_over

if TYPE_CHECKING:
    from cudassert_ipy.notebook.session import Session

GPU_SECONDS = 30.0
"""A failing cell that ran longer than this is replayed on the GPU: the CPU would take for ever."""


def arrive(session: Session, path: str) -> None:
    """Take the handoff at ``path`` and go on where the process before the exec ended.

    A handoff that must not be used is told in one line and nothing of it is run.
    """
    try:
        handoff = read(Path(path))
    except HandoffError as error:
        print(messages.HANDOFF_IGNORED.format(reason=error))
        if not session.in_kernel:
            terminal.accept_interrupts()
        return
    _restore(session, handoff)
    if session.in_kernel:
        stage = _KernelStage(session, handoff)
        resuming.schedule_resume(session.shell, handoff, stage.work)
    else:
        blocking = _TerminalStage(session, handoff)
        terminal.schedule_resume(session.shell, handoff, blocking.work)


def arrive_by_hand(session: Session, handoff: Handoff) -> None:
    """Go on in a kernel that the user restarted by hand, right after the cell that asks for it."""
    handoff = resuming.here(session.shell, handoff)
    take_over(handoff.cwd, handoff.sys_path)
    _restore(session, handoff)
    stage = _KernelStage(session, handoff)
    resuming.resume_soon(session.shell, handoff, stage.work)


def _restore(session: Session, handoff: Handoff) -> None:
    """Take over what survives a restart: settings, the simulator, the diagnosis."""
    for name, value in handoff.extra.items():
        if name in session.settings.trait_names(config=True):
            setattr(session.settings, name, value)
    if handoff.simulator:
        from cudassert_ipy.standin import simulator

        simulator.on()
    if handoff.diagnosis is not None:
        session.diagnosis = Diagnosis.from_dict(handoff.diagnosis)
    if handoff.failing is not None:
        failing = handoff.failing
        session.failed = CellRecord(failing.source, failing.execution_count, failing.cell_id)
        session.failed.seconds = failing.seconds
        session.failed.succeeded = False


class _Stage:
    """What both kinds of arrival share; a ``restart.resume.Stage``."""

    def __init__(self, session: Session, handoff: Handoff) -> None:
        self.session = session
        self.handoff = handoff
        self.found: Diagnosis | None = None
        self.failure: Any = None
        self._interrupted = False

    def cancelled(self) -> bool:
        return self._interrupted or bool(self.session.restarting.cancelled)

    def progress(self, label: str, done: int, total: int) -> None:
        print(messages.RESUME_STEP.format(label=label, done=done + 1, total=total), flush=True)

    async def run_cell(self, cell: RecordedCell) -> bool:
        self.session.muted = True
        try:
            outcome = await self.run_quietly(cell)
        finally:
            self.session.muted = False
        self._interrupted = outcome.interrupted
        if not outcome.success and not outcome.interrupted:
            self.failure = outcome
        return bool(outcome.success)

    async def run_quietly(self, cell: RecordedCell) -> Any:
        raise NotImplementedError

    async def replay_on_cpu(self, diagnosis: Diagnosis) -> Diagnosis:
        raise NotImplementedError

    async def replay_failing_cell(self) -> None:
        """Replay from a checkpoint taken now that the set-up is through."""
        diagnosis, failed = self.session.diagnosis, self.handoff.failing
        if diagnosis is None or failed is None:
            return
        if self.session.dead:
            print(messages.DEAD_AGAIN)
            return
        where = self.session.settings.replay_on
        long = failed.seconds > GPU_SECONDS
        found = None
        if where == "cpu" or (where == "auto" and not long):
            found = await self.replay_on_cpu(diagnosis)
        clean = found is not None and found.replay is not None and found.replay.outcome == "clean"
        if where == "gpu" or (where == "auto" and (long or clean)):
            found = await self._replay_guarded(diagnosis, failed) or found
        self.found = found

    async def _replay_guarded(self, diagnosis: Diagnosis, failed: RecordedCell) -> Diagnosis | None:
        """Run the cell again on the device, its operands checked before each launch.

        Same kernels, dtypes and generators as when it died, and the guard raises before the launch,
        so that the new context lives. None when the guard found nothing.
        """
        from cudassert_ipy.checks.guard import Guard

        with Guard():
            await self.run_cell(failed)
        caught = self.session.diagnosis
        self.session.diagnosis = diagnosis
        if caught is None or caught.replay is None or caught.replay.state != "guard":
            return None
        return replace(
            diagnosis, finding=caught.finding, replay=caught.replay, tensors=caught.tensors
        )

    def keep(self, resumed: Resumed) -> None:
        """Keep the cells that did not run, so that the next restart runs them again."""
        self.session.restarting.unfinished = bool(resumed.left)
        recorder = self.session.recorder
        numbers = {cell.execution_count for cell in resumed.left}
        recorder.cells = [c for c in recorder.cells if c.execution_count not in numbers]
        for cell in resumed.left:
            record = CellRecord(cell.source, cell.execution_count, cell.cell_id)
            record.seconds = cell.seconds
            recorder.cells.append(record)
        recorder.cells.sort(key=lambda record: record.execution_count or 0)

    def finish(self, note: str) -> None:
        """Show the finding, or the diagnosis as it was, as one of a kernel that lives again."""
        text = note
        if self.failure is not None and self.failure.error:
            text = f"{note}\n{self.failure.error}"
        shown = self.found or self.session.diagnosis
        if shown is not None:
            shown = replace(
                shown,
                context="dead" if self.session.dead else "alive",
                actions=("report",),
                environment=self.session.environment(),
            )
        self.show(shown, text)

    def show(self, diagnosis: Diagnosis | None, note: str) -> None:
        raise NotImplementedError


class _KernelStage(_Stage):
    """Arrival in a kernel: on its event loop, with the panel of the cell that was clicked in."""

    def __init__(self, session: Session, handoff: Handoff) -> None:
        super().__init__(session, handoff)
        self._panel: Any = None

    def cancelled(self) -> bool:
        return super().cancelled() or resuming.interrupted()

    async def work(self) -> None:
        """Do it all; scheduled to run before any request is served."""
        display = self.session.display
        display.display_id = self.handoff.display_id
        if self.session.has_buttons:
            from cudassert_ipy.notebook.actions import Actions
            from cudassert_ipy.notebook.panel import Panel

            actions = Actions(self.session)
            show_values = self.session.settings.show_values
            comm_id = self.handoff.panel_comm_id
            if comm_id:
                kernel = self.session.shell.kernel
                self._panel = Panel.adopt(actions, comm_id, kernel, show_values=show_values)
            if self._panel is None:
                self._panel = Panel(actions, show_values=show_values)
                self._panel.display()
            display.panel = self._panel
        self.keep(await resume(self.handoff, self))

    def progress(self, label: str, done: int, total: int) -> None:
        if self._panel is None:
            super().progress(label, done, total)
        else:
            self._panel.progress(label, done, total)

    async def run_quietly(self, cell: RecordedCell) -> Any:
        return await run_recorded_cell(self.session.shell, cell, self.handoff)

    async def replay_on_cpu(self, diagnosis: Diagnosis) -> Diagnosis:
        return await self.session.replaying.replay_from_here(diagnosis)

    def show(self, diagnosis: Diagnosis | None, note: str) -> None:
        display = self.session.display
        if diagnosis is not None:
            display.update(diagnosis)
        if self._panel is None:
            print(note)
            return
        if diagnosis is not None:
            self._panel.result(diagnosis)
        self._panel.note(note)
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            self._panel.blocking_badge()


class _TerminalStage(_Stage):
    """Arrival in terminal IPython: before its first prompt, one line of text per step."""

    def work(self) -> None:
        """Do it all, and return when it is done."""
        self.keep(terminal.drive(resume(self.handoff, self)))

    async def run_quietly(self, cell: RecordedCell) -> Any:
        return run_recorded_cell_in_terminal(self.session.shell, cell)

    async def replay_on_cpu(self, diagnosis: Diagnosis) -> Diagnosis:
        return self.session.replaying.replay_from_here_blocking(diagnosis)

    def show(self, diagnosis: Diagnosis | None, note: str) -> None:
        if diagnosis is not None:
            self.session.display.show(diagnosis)
        print(note)
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            print(messages.STATUS_BLOCKING)
