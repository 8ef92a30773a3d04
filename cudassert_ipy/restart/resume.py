"""What the process after a restart does: run the set-up cells again, then the failing cell.

The engine knows the order and when to stop; how a cell runs and how progress looks is the stage's
business, so that a notebook, a terminal and a test can each give their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from cudassert_ipy import messages

if TYPE_CHECKING:
    from cudassert_ipy.restart.handoff import Handoff, RecordedCell


class Stage(Protocol):
    """Where a resume takes place."""

    async def run_cell(self, cell: RecordedCell) -> bool:
        """Run one set-up cell; return whether it succeeded, never raise what the cell raises."""

    def progress(self, label: str, done: int, total: int) -> None:
        """Show what is being done; ``done`` of ``total`` steps are through."""

    def cancelled(self) -> bool:
        """Whether the user asked to stop."""

    async def replay_failing_cell(self) -> None:
        """Replay the failing cell and show the result."""

    def finish(self, note: str) -> None:
        """Say how it ended; always called, once, last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """How a resume ended."""

    state: Literal["done", "failed", "cancelled"]
    ran: int
    """Set-up cells that succeeded."""
    failed: RecordedCell | None = None
    left: tuple[RecordedCell, ...] = ()
    """Set-up cells that did not run through, in order; the failed or interrupted one is first."""


async def resume(handoff: Handoff, stage: Stage) -> Resumed:
    """Run what ``handoff`` asks for; stop at the first cell that fails or when the user cancels.

    An exception of the stage itself (not of a user's cell) is shown by ``finish`` and raised again.
    """
    try:
        outcome = await _run(handoff, stage)
    except BaseException as error:
        # Whatever happened, an unfinished progress bar must not stay behind.
        stage.finish(messages.RESUME_BROKEN.format(error=f"{type(error).__name__}: {error}"))
        raise
    stage.finish(_note(handoff, outcome))
    return outcome


async def _run(handoff: Handoff, stage: Stage) -> Resumed:
    replay = handoff.replay and handoff.failing is not None
    total = len(handoff.cells) + replay
    for done, cell in enumerate(handoff.cells):
        if stage.cancelled():
            return Resumed(state="cancelled", ran=done, left=handoff.cells[done:])
        label = messages.RESUME_CELL.format(cell=messages.cell(cell.execution_count))
        stage.progress(label, done, total)
        if not await stage.run_cell(cell):
            # A cancel that interrupted the running cell makes it fail, but is no failure.
            state: Literal["cancelled", "failed"] = "cancelled" if stage.cancelled() else "failed"
            failed = None if state == "cancelled" else cell
            return Resumed(state=state, ran=done, failed=failed, left=handoff.cells[done:])
    if stage.cancelled():
        return Resumed(state="cancelled", ran=len(handoff.cells))
    if replay and handoff.failing is not None:
        label = messages.RESUME_REPLAY.format(cell=messages.cell(handoff.failing.execution_count))
        stage.progress(label, len(handoff.cells), total)
        await stage.replay_failing_cell()
    return Resumed(state="done", ran=len(handoff.cells))


def _cells(count: int) -> str:
    return "cell" if count == 1 else "cells"


def _note(handoff: Handoff, outcome: Resumed) -> str:
    total = len(handoff.cells)
    if outcome.failed is not None:
        where = messages.cell(outcome.failed.execution_count)
        left = total - outcome.ran - 1
        if not left:
            return messages.RESUME_FAILED_LAST.format(cell=where)
        return messages.RESUME_FAILED.format(cell=where, left=f"{left} {_cells(left)}")
    if outcome.state == "cancelled":
        return messages.RESUME_CANCELLED.format(done=outcome.ran, total=total, cells=_cells(total))
    if not total:
        return messages.RESUME_NOTHING
    return messages.RESUME_DONE.format(count=total, cells=_cells(total))
