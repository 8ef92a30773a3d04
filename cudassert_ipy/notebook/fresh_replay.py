"""Replays in a fresh process, for kernels that cannot be forked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy.notebook import device
from cudassert_ipy.replay.rerun import RunningRerun, SetupCell, start_rerun

if TYPE_CHECKING:
    from cudassert_ipy.notebook.recorder import CellRecord
    from cudassert_ipy.notebook.session import Session
    from cudassert_ipy.replay.protocol import ReplayRequest

MODULE = "cudassert_ipy.notebook.fresh_process"


def rerun(
    session: Session, cell: CellRecord, request: ReplayRequest, refusal: Exception
) -> RunningRerun:
    """Run the cells that a restart would run again, then ``cell``, in a fresh process.

    Shell-only cells are left out. Raises ``RerunRefused``.

    Args:
        session: whose cells.
        cell: the failed one.
        request: for that cell.
        refusal: why no child can be forked.

    """
    cells = [
        SetupCell(source=step.source, execution_count=step.execution_count, seconds=step.seconds)
        for step in session.restarting.plan().steps
        if step.selected
    ]
    torch = device.loaded_torch()
    # The first sentence, without its capital: it goes on behind "because".
    reason = str(refusal).partition(". ")[0].rstrip(".")
    return start_rerun(
        cells,
        request,
        module=MODULE,
        reason=reason[:1].lower() + reason[1:],
        execution_count=cell.execution_count,
        device_count=1 if torch is None else max(1, torch.cuda.device_count()),
        cwd=session.start.cwd,
        sys_path=session.start.sys_path,
    )
