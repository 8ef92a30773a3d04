"""Restarts in place: the plan, the click or magic that does it, the steps where none can."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.notebook import device, kernel, terminal
from cudassert_ipy.report.clean import clean_line
from cudassert_ipy.restart import handoff as handoffs
from cudassert_ipy.restart.children import children
from cudassert_ipy.restart.handoff import Handoff, HandoffError, RecordedCell
from cudassert_ipy.restart.plan import PastCell, RestartPlan, losses, plan
from cudassert_ipy.restart.steps import steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.notebook.recorder import CellRecord
    from cudassert_ipy.notebook.session import Session
    from cudassert_ipy.restart.plan import PlanStep


class Restarting:
    """Leaves this process for the next one.

    Attributes:
        cancelled: whether the user asked to stop the set-up that runs again.
        pending: what a restart by hand left, waiting for ``%cuda_debug restart``.
        unfinished: whether the set-up after the last restart did not run through.

    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plan: RestartPlan | None = None
        self._replay = True
        self.cancelled = False
        self.pending: Handoff | None = None
        self.unfinished = False

    # --- the plan -------------------------------------------------------------------------------

    def plan(self) -> RestartPlan:
        """Return what would run again and what would be lost."""
        session = self._session
        failed = session.failed
        namespace = session.shell.user_ns
        lost_already = {name for name, value in namespace.items() if device.is_on_device(value)}
        hidden = {*session.shell.user_ns_hidden, *lost_already}
        # The failed cell never runs as set-up, whatever its status: its own code may have caught
        # the error.
        past = [
            PastCell(cell=_recorded(c), succeeded=c.succeeded if c is not failed else False)
            for c in session.recorder.cells
        ]
        return plan(
            past,
            losses(namespace, hidden),
            [child.name for child in children() if child.pid not in session.own_processes()],
            failed_count=failed.execution_count
            if failed is not None and self._is_current()
            else None,
        )

    def _is_current(self) -> bool:
        """Whether the last failure still waits for its replay: after a restart it is history."""
        diagnosis = self._session.diagnosis
        unknown = diagnosis is not None and diagnosis.context != "alive"
        return self._session.dead or self.unfinished or unknown

    def show_plan(self, *, replay: bool) -> None:
        """Show the plan in the panel (first click)."""
        refusal = self._refusal()
        panel = self._session.display.panel
        if refusal is not None:
            panel.note(self._steps(refusal))
            return
        self._plan, self._replay = self.plan(), replay
        panel.show_plan(self._plan)

    # --- leaving --------------------------------------------------------------------------------

    def restart_from_panel(self, selected: Sequence[int]) -> None:
        """Restart and run the selected steps again (second click)."""
        cells = (self._plan or self.plan()).select(selected)
        self._leave_soon(cells, replay=self._replay, blocking=self._replay)

    def restart_plain(self) -> None:
        """Restart without blocking launches and run the set-up again."""
        self._leave_soon(self.plan().select(), replay=False, blocking=False)

    def restart_from_magic(self) -> None:
        """Restart within the running cell; the next process answers it.

        Prints the steps by hand where a restart in place is not possible. Raises ``RestartError``
        or ``HandoffError`` when it fails; the process then goes on as it was.
        """
        session = self._session
        if self.pending is not None:
            from cudassert_ipy.notebook.arriving import arrive_by_hand

            handoff, self.pending = self.pending, None
            arrive_by_hand(session, handoff)
            return
        refusal = self._refusal()
        if refusal is not None:
            print(self._steps(refusal))
            return
        plan = self.plan()
        print(_summary(plan))
        handoff = self._handoff(plan.select(), replay=True)
        session.replaying.close()
        if not session.in_kernel:
            terminal.restart_now(self._terminal_handle(), handoff, blocking=True)
        else:
            handoff = replace(
                handoff, **_routing(kernel.parent_of_current_cell(session.shell)), reply_owed=True
            )
            kernel.restart_now(self._kernel_handle(), handoff, blocking=True)

    def _leave_soon(self, cells: tuple[RecordedCell, ...], *, replay: bool, blocking: bool) -> None:
        session = self._session
        session.replaying.close()

        def make_handoff() -> Handoff:
            display = session.display
            return replace(
                self._handoff(cells, replay=replay),
                **_routing(display.parent),
                display_id=display.display_id,
                panel_comm_id=display.panel.comm_id if display.panel is not None else None,
            )

        def failed(error: Exception) -> None:
            session.display.panel.note(str(error))

        kernel.restart_soon(
            self._kernel_handle(), make_handoff, blocking=blocking, on_failure=failed
        )

    def _handoff(self, cells: tuple[RecordedCell, ...], *, replay: bool) -> Handoff:
        session = self._session
        failed = diagnosis = None
        if self._is_current():
            failed, diagnosis = session.failed, session.diagnosis
        return Handoff(
            cells=cells,
            failing=_recorded(failed) if failed is not None else None,
            diagnosis=diagnosis.to_dict() if diagnosis is not None else None,
            simulator=device.simulated(),
            replay=replay and failed is not None,
            extra={name: getattr(session.settings, name) for name in _KEPT_SETTINGS},
        )

    def _kernel_handle(self) -> Any:
        session = self._session
        return kernel.IpykernelHandle(session.shell, session.start, self._give_back_descriptors)

    def _terminal_handle(self) -> Any:
        session = self._session
        return terminal.TerminalHandle(session.shell, session.start, self._give_back_descriptors)

    def _give_back_descriptors(self) -> Any:
        captures = self._session.captures
        if not captures.active:
            return None
        captures.close()
        return captures.start

    # --- where it cannot be -----------------------------------------------------------------------

    def _refusal(self) -> str | None:
        shell = self._session.shell
        if self._session.front_end in ("colab", "vscode"):
            return messages.RESTART_REFUSED_FRONT_END
        return kernel.can_exec(shell) if self._session.in_kernel else terminal.can_exec(shell)

    def _steps(self, reason: str) -> str:
        return steps(self._session.front_end, reason=reason, pending=self._leave_pending())

    def _leave_pending(self) -> bool:
        """Leave a handoff for the kernel that the user will restart by hand."""
        session = self._session
        file = kernel.connection_file(session.shell) if session.in_kernel else None
        if file is None or os.name != "posix":
            return False
        directory = self._kernel_handle().handoff_directory()
        handoff = self._handoff(self.plan().select(), replay=True)
        try:
            handoffs.write_pending(handoff, directory, file)
        except HandoffError as error:
            print(error)
            return False
        return True

    def offer_pending(self) -> None:
        """Offer what the process before a restart by hand left, where the extension is loaded."""
        session = self._session
        file = kernel.connection_file(session.shell) if session.in_kernel else None
        if file is None or os.name != "posix":
            return
        directory = self._kernel_handle().handoff_directory()
        try:
            handoff = handoffs.read_pending(directory, file)
        except HandoffError as error:
            print(messages.HANDOFF_IGNORED.format(reason=error))
            return
        if handoff is not None:
            self.pending = handoff
            cells = len(handoff.cells)
            print(
                messages.PENDING_FOUND.format(count=cells, cells="cell" if cells == 1 else "cells")
            )

    # --- arriving ---------------------------------------------------------------------------------

    def resume_from(self, path: str) -> None:
        """Go on where the process before the exec ended; a bad handoff is told in one line."""
        from cudassert_ipy.notebook.arriving import arrive

        arrive(self._session, path)


_SHOWN = 12
_KEPT_SETTINGS = ("fence", "copies", "copies_mb", "show_values", "replay_on", "replay_seconds")


def _recorded(cell: CellRecord) -> RecordedCell:
    return RecordedCell(
        source=cell.source,
        execution_count=cell.execution_count,
        seconds=cell.seconds or 0.0,
        cell_id=cell.cell_id,
    )


def _summary(plan: RestartPlan) -> str:
    """Return in a few lines what a restart runs again, leaves out and loses."""
    again = [step for step in plan.steps if step.selected]
    left_out = [step for step in plan.steps if not step.selected]
    lost = [f"{loss.name} ({loss.type})" for loss in plan.losses[:_SHOWN]]
    if len(plan.losses) > _SHOWN:
        lost.append(messages.AND_MORE.format(count=len(plan.losses) - _SHOWN))
    lines = [messages.RESTART_AGAIN.format(cells=_numbers(again))]
    if left_out:
        lines.append(messages.RESTART_LEFT_OUT.format(cells=_numbers(left_out)))
    if lost:
        lines.append(messages.RESTART_LOST.format(names=", ".join(lost)))
    if plan.children:
        lines.append(messages.RESTART_CHILDREN.format(names=", ".join(plan.children[:_SHOWN])))
    return "\n".join(clean_line(line, 400) for line in lines)


def _numbers(steps: Sequence[PlanStep]) -> str:
    shown = [f"[{step.execution_count}]" for step in steps]
    return ", ".join(shown) or messages.RESTART_NONE


def _routing(parent: Any) -> dict[str, Any]:
    if parent is None:
        return {}
    return {"parent": parent.message, "idents": parent.idents}
