"""What is done about errors: explain the CUDA ones, find the unnoticed ones, remember the first."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.checks.traceback import trim_traceback
from cudassert_ipy.checks.wording import describe, operand_error
from cudassert_ipy.decode.failure import decode_exception, is_suspect
from cudassert_ipy.errors import CudassertError, OperandError
from cudassert_ipy.model import Cell, Diagnosis
from cudassert_ipy.notebook import device, diagnosing
from cudassert_ipy.report.private import without_values
from cudassert_ipy.report.text import one_line
from cudassert_ipy.restart.start import BLOCKING

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding, TensorRow
    from cudassert_ipy.notebook.debugging import DebugCell
    from cudassert_ipy.notebook.recorder import CellRecord
    from cudassert_ipy.notebook.session import Session

_MAX_CHAIN = 10


class Failures:
    """The errors of one session. Loaded with the first exception after torch was imported."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def trim(self, error: BaseException) -> None:
        """Take the frames of the guard and of the simulator out of a traceback.

        With ``show_values`` off, the values go from the message as well: it would be saved with
        the notebook.
        """
        found = _operand_error(error)
        if found is not None and not self._session.settings.show_values:
            shown = without_values(Diagnosis(finding=found.finding)).finding
            if shown is not None:
                found.args = (describe(shown),)
        if found is not None or device.simulated():
            trim_traceback(error)
        if found is not None and found is not error:
            trim_traceback(found, was_caught=True)

    def explain(self, error: BaseException, stb: list[str]) -> list[str]:
        """Return the traceback with one line above it if it is about CUDA; prepare the panel."""
        found = _operand_error(error)
        if found is not None:
            rows = self._session.debug.rows if self._session.debug is not None else ()
            diagnosis: Diagnosis | None = self._diagnose_operand_error(found, rows)
        else:
            diagnosis = self._diagnose(error) if is_suspect(error) else None
        return stb if diagnosis is None else [one_line(diagnosis), *stb]

    def fence(self, record: CellRecord, result: Any) -> None:
        """Charge a death that nobody noticed to the cell that just ended.

        Without the fence the device is still asked once, which waits for nothing: a cell may have
        swallowed the error, and printed it or not.
        """
        session = self._session
        seconds = session.settings.fence_seconds if session.settings.fence else 0.0
        error = device.wait_for_device(seconds)
        if error is None:
            return
        if not is_suspect(error):
            raise error  # not of the device: a signal handler of the user's, say
        # Nothing has synchronized since the cell: what stands there was printed while it ran.
        swallowed = b"Assertion" in session.captures.cell_text()
        error.__traceback__ = None  # its frames are the fence's own: no line of the user's
        session.recorder.current = record  # the cell is over, but this still belongs to it
        try:
            device.synchronize()
            if record.succeeded and not swallowed:
                record.succeeded = False
                if result is not None:
                    result.error_in_exec = error
                session.shell.showtraceback((type(error), error, error.__traceback__))
                return
            lines = self.explain(error, [])
            if record.succeeded:
                # The error was raised inside the cell and the user's own code caught it: the cell
                # keeps its status.
                print(*lines, sep="\n")
        finally:
            session.recorder.current = None

    def show_pending(self, debug: DebugCell | None) -> None:
        """Show what the cell that ends has failed of; replay it first where that was asked for."""
        session = self._session
        diagnosis, session.pending = session.pending, None
        if diagnosis is None or session.muted:
            return
        if debug is not None and diagnosis.context == "dead" and debug.will_replay:
            try:
                diagnosis = session.replaying.from_checkpoint(
                    debug.take_checkpoint(), diagnosis, debug.options.timeout
                )
            except CudassertError as error:  # the waiting child is gone; what is known still shows
                print(error)
        session.display.show(diagnosis)

    def show_swallowed(self, debug: DebugCell, record: CellRecord, result: Any) -> None:
        """Show what the guard raised and the user's own ``except`` caught; the status stays."""
        session = self._session
        if session.muted:
            return
        if _operand_error(getattr(result, "error_in_exec", None)) is None:
            print(messages.SWALLOWED)  # else it came out, past a traceback handler of the user's
        first, *more = debug.findings
        session.recorder.current = record  # the cell is over, but this still belongs to it
        try:
            self._diagnose_operand_error(operand_error(first), debug.rows, tuple(more))
            self.show_pending(None)
        finally:
            session.recorder.current = None

    def check_at_load(self, error: BaseException) -> None:
        """Say so if ``error``, the last one before the load, left a dead context behind."""
        if not is_suspect(error):
            return
        session = self._session
        session.muted = True  # to be shown once it is known which cell it was
        try:
            diagnosis = self._diagnose(error)
        finally:
            session.muted = False
        session.diagnosis = session.failed = session.pending = None
        if diagnosis is None or not session.dead:
            return
        session.failed = self._cell_that_raised(error)
        count = session.failed.execution_count if session.failed is not None else None
        session.dead_since = session.dead_repr.since = count
        cell = replace(diagnosis.cell, execution_count=count, first_failed=count)
        session.display.show(replace(diagnosis, cell=cell))

    def forget_death(self) -> None:
        """Start anew: the dead device is gone (the simulator was turned off)."""
        self._session.dead, self._session.dead_since = False, None
        self._session.dead_repr.remove()

    def _diagnose_operand_error(
        self, error: OperandError, rows: tuple[TensorRow, ...], more: tuple[Finding, ...] = ()
    ) -> Diagnosis:
        session = self._session
        diagnosis = diagnosing.from_operand_error(error, self._cell(), session.environment(), rows)
        diagnosis = self._as_typed(replace(diagnosis, more=more))
        if diagnosis.finding is not None:
            items = session.recorder.items_of(diagnosis.finding)
            diagnosis = replace(diagnosis, finding=items)
        self._remember(diagnosis)
        return diagnosis

    def _diagnose(self, error: BaseException) -> Diagnosis | None:
        session = self._session
        failure = decode_exception(error, session.captures.cell_text())
        if failure.kind == "not_cuda":
            return None
        if failure.context != "alive":
            found = device.synchronize()  # CUDA prints its assertions only in such a call
            captured = session.captures.cell_text()
            failure = diagnosing.name_cause(decode_exception(error, captured), found, captured)
        session.captures.sync()
        if failure.blocking is None and session.start.environment.get(BLOCKING) == "1":
            failure = replace(failure, blocking=True)  # the text never shows that they were
        context = diagnosing.decide_context(failure)
        first = context == "dead" and not session.dead
        if first:
            self._mark_dead()
        cell = self._cell()
        innocent = context == "dead" and not first and cell.execution_count != cell.first_failed
        record = session.current_cell()
        source = record.source if record is not None else ""
        diagnosis = Diagnosis(
            failure=failure,
            cell=replace(cell, innocent=innocent),
            reported_at=diagnosing.reported_at(error, source, session.is_cell_file),
            context=context,
            actions=diagnosing.actions_for(context, can_replay=True),
            environment=session.environment(),
        )
        if first or context == "unknown":
            self._remember(diagnosis)
            if record is not None:
                record.keep_frames(error)
        return diagnosis

    def _as_typed(self, diagnosis: Diagnosis) -> Diagnosis:
        record = self._session.current_cell()
        if record is None:
            return diagnosis
        return diagnosing.as_typed(diagnosis, record.source, self._session.cell_of)

    def _cell(self) -> Cell:
        record = self._session.current_cell()
        return Cell(
            execution_count=record.execution_count if record is not None else None,
            id=record.cell_id if record is not None else None,
            first_failed=self._session.dead_since,
        )

    def _remember(self, diagnosis: Diagnosis) -> None:
        session = self._session
        session.diagnosis = session.pending = diagnosis
        before, session.failed = session.failed, session.current_cell()
        if before is not None and before is not session.failed:
            before.forget_state()
        if not session.recorder.inside_cell and session.recorder.current is None:
            self.show_pending(None)  # a callback: no end of a cell will come

    def _mark_dead(self) -> None:
        """Note that the context is dead; keep what lived on the device, make it showable."""
        session = self._session
        record = session.current_cell()
        session.dead = True
        session.dead_since = record.execution_count if record is not None else None
        device.keep_alive()
        session.dead_repr.install(session.dead_since)

    def _cell_that_raised(self, error: BaseException) -> CellRecord | None:
        """Return the recorded cell whose code the traceback goes through."""
        trace = error.__traceback__
        while trace is not None:
            filename = trace.tb_frame.f_code.co_filename
            if self._session.is_cell_file(filename):
                source = "".join(linecache.getlines(filename)).strip()
                cells = reversed(self._session.recorder.cells)
                return next((c for c in cells if c.source.strip() == source), None)
            trace = trace.tb_next
        return None


def _operand_error(error: BaseException | None) -> OperandError | None:
    """Return the guard's error that ``error`` is, or that it was raised for.

    Libraries catch ``IndexError`` and raise their own (``MessagePassing`` of torch_geometric does).
    """
    step: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if step is None or isinstance(step, OperandError):
            return step
        step = step.__cause__ or (None if step.__suppress_context__ else step.__context__)
    return None
