"""From an exception in a cell to a diagnosis: decode it, then ask the device."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy.decode.failure import decode_exception
from cudassert_ipy.model import Cell, Diagnosis, Replay, ReportedAt
from cudassert_ipy.notebook import device
from cudassert_ipy.notebook.debug_cell import find_magic_line

if TYPE_CHECKING:
    from cudassert_ipy.errors import OperandError
    from cudassert_ipy.model import Context, Environment, Failure, TensorRow


def classify(error: BaseException) -> Context:
    """Say what an error that the device itself reported means for the context."""
    return decode_exception(error).context


def decide_context(failure: Failure) -> Context:
    """Say whether this kernel's context is dead: by the text where it is sure, else by a probe."""
    if failure.process == "child" or failure.context == "alive":
        return "alive"
    found = device.probe(classify)
    return failure.context if found == "unknown" else found


def reported_at(error: BaseException, is_cell: Any) -> ReportedAt | None:
    """Return the line of the cell where Python noticed the error.

    ``is_cell(filename)`` says whether a file name is that of a notebook cell. Falls back to the
    innermost frame when no cell is on the way (a callback).
    """
    found = None
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if is_cell(filename):
            found = (filename, trace.tb_lineno)
        trace = trace.tb_next
    if found is None:
        return None
    filename, line = found
    return ReportedAt(line=line, source=linecache.getline(filename, line).rstrip("\n"))


def as_typed(diagnosis: Diagnosis, source: str) -> Diagnosis:
    """Return ``diagnosis`` with its line numbers counted in the cell as typed.

    IPython drops blank lines at the top of a cell before it compiles it. Lines of functions that
    the cell called (more than one frame) are not the cell's and stay.
    """
    lines = source.splitlines()
    blank = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if not blank or find_magic_line(source) is not None:  # that magic keeps the lines by itself
        return diagnosis
    finding, reported = diagnosis.finding, diagnosis.reported_at
    if finding is not None and finding.frames:
        cell = replace(finding.frames[0], line=finding.frames[0].line + blank)
        own = len(finding.frames) == 1 and finding.line is not None
        finding = replace(
            finding,
            frames=(cell, *finding.frames[1:]),
            line=finding.line + blank if own and finding.line is not None else finding.line,
        )
    if reported is not None and reported.line is not None:
        reported = replace(reported, line=reported.line + blank)
    return replace(diagnosis, finding=finding, reported_at=reported)


def actions_for(context: Context, *, can_replay: bool) -> tuple[str, ...]:
    """Return what can be done next, in the order the buttons stand."""
    if context == "alive":
        return ("report",)
    return (*(("replay",) if can_replay else ()), "restart_and_replay", "restart", "report")


def from_operand_error(
    error: OperandError, cell: Cell, environment: Environment, tensors: tuple[TensorRow, ...]
) -> Diagnosis:
    """Return the diagnosis of a mistake that the guard caught before the launch.

    ``tensors``: what the guard has checked so far, the bad operand included.
    """
    return Diagnosis(
        cell=cell,
        finding=error.finding,
        replay=Replay(
            where="gpu" if device.device_present() else "cpu",
            state="guard",
            outcome="raised",
            exception=str(error),
        ),
        tensors=tensors,
        context="alive",
        actions=("report",),
        environment=environment,
    )
