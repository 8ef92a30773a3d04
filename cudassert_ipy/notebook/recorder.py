"""Remember the cells that ran: source, duration, outcome, and the message that asked for them."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy.notebook import device

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding
    from cudassert_ipy.replay.batches import Loader
    from cudassert_ipy.replay.host_state import HostState
    from cudassert_ipy.replay.loop_body import FailedFrame
    from cudassert_ipy.replay.rng import RandomState

MAX_CELLS = 10_000
"""Older cells are forgotten beyond this many."""


class CellRecord:
    """One outermost cell, as it happened.

    Attributes:
        source: the cell as typed, magic line included.
        execution_count: its prompt number; None where it stores no history.
        cell_id: what the front end calls it.
        seconds: how long it ran.
        succeeded: None where that is unknown (it ran before the extension was loaded).
        rng: states of the host random generators when it started, if torch was loaded then.
        host_state: small variables when it started, if torch could use a device then.
        loaders: the last host batches of its DataLoader loops, the last used loader first.
        frames: the user frames of the error it failed with, from the cell inwards.

    """

    def __init__(
        self, source: str, execution_count: int | None, cell_id: str | None = None
    ) -> None:
        self.source = source
        self.execution_count = execution_count
        self.cell_id = cell_id
        self.seconds: float | None = None
        self.succeeded: bool | None = None
        self.rng: RandomState | None = None
        self.host_state: HostState | None = None
        self.loaders: tuple[Loader, ...] = ()
        self.frames: tuple[FailedFrame, ...] = ()
        self.store_history = True

    def forget_state(self) -> None:
        """Let go of what only a replay of this cell would need."""
        self.rng = self.host_state = None
        self.loaders = self.frames = ()

    def keep_frames(self, error: BaseException) -> None:
        """Keep the variables of the frames of ``error``, by reference, to run a loop's body in."""
        from cudassert_ipy.replay.loop_body import failed_frames

        self.frames = failed_frames(error)


class Recorder:
    """The session's cells in the order they ran; nested ``run_cell`` calls are not cells."""

    def __init__(self) -> None:
        self.cells: list[CellRecord] = []
        self.current: CellRecord | None = None
        self._open: list[int] = []
        self._started = 0.0

    @property
    def inside_cell(self) -> bool:
        """Whether a cell is running now."""
        return bool(self._open)

    @staticmethod
    def items_of(finding: Finding) -> Finding:
        """Return a finding of the running cell with the dataset items of its values, if proven."""
        batches = sys.modules.get("cudassert_ipy.replay.batches")
        items = () if batches is None else batches.LOG.name_rows(finding)
        return replace(finding, dataset_indices=items) if items else finding

    @staticmethod
    def close() -> None:
        """Give torch back what was wrapped to keep batches."""
        batches = sys.modules.get("cudassert_ipy.replay.batches")
        if batches is not None:
            batches.LOG.remove()

    def add_history(self, sources: list[str]) -> None:
        """Add cells that ran before the extension was loaded; ``sources[0]`` is cell 1."""
        known = {cell.execution_count for cell in self.cells}
        for count, source in enumerate(sources, start=1):
            if count not in known and source.strip():
                self.cells.append(CellRecord(source, count))

    def begin(self, info: Any, execution_count: int) -> bool:
        """Note that a cell starts; return whether it is an outermost one.

        Args:
            info: IPython's ``ExecutionInfo``.
            execution_count: the number the cell will carry.

        """
        self._open.append(id(info))
        if len(self._open) > 1:
            return False
        self.current = CellRecord(
            info.raw_cell,
            execution_count if info.store_history else None,
            getattr(info, "cell_id", None),
        )
        self.current.store_history = bool(info.store_history)
        if "torch" in sys.modules:
            from cudassert_ipy.replay.rng import RandomState

            self.current.rng = RandomState.take()
        if device.could_use_cuda():
            from cudassert_ipy.replay.batches import LOG

            LOG.begin()
        self._started = time.perf_counter()
        return True

    def end(self, result: Any) -> CellRecord | None:
        """Note that a cell ended; return its record if it was the outermost one.

        ``result`` is IPython's ``ExecutionResult``, or None for a cancelled cell (ipykernel 6, 7).
        """
        info_id = id(result.info) if result is not None else None
        if info_id in self._open:
            # A cell whose end was never announced is closed together with the one around it.
            del self._open[self._open.index(info_id) :]
        elif info_id is None:
            self._open.clear()
        else:
            return None  # the cell that loaded the extension: it was never begun
        if self._open or self.current is None:
            return None
        record, self.current = self.current, None
        record.seconds = time.perf_counter() - self._started
        record.succeeded = bool(result is not None and result.success)
        batches = sys.modules.get("cudassert_ipy.replay.batches")
        if batches is not None:
            record.loaders = batches.LOG.end()
        if record.store_history:
            self.cells.append(record)
            del self.cells[:-MAX_CELLS]
        return record
