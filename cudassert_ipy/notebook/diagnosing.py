"""From an exception in a cell to a diagnosis: decode it, then ask the device."""

from __future__ import annotations

import linecache
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.decode.failure import decode_exception
from cudassert_ipy.model import Cell, Diagnosis, Frame, Replay, ReportedAt
from cudassert_ipy.notebook import device
from cudassert_ipy.notebook.debug_cell import (
    TIMED_FILES,
    find_magic_line,
    is_in_body,
    lines_before_body,
    lines_before_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.errors import OperandError
    from cudassert_ipy.model import Context, Environment, Failure, Finding, TensorRow


def classify(error: BaseException) -> Context:
    """Say what an error that the device itself reported means for the context."""
    return decode_exception(error).context


def name_cause(failure: Failure, found: BaseException | None, captured: bytes) -> Failure:
    """Return what CUDA itself says, where the error in the cell was only a consequence.

    cuBLAS, cuDNN and NCCL fail in words of their own on a dead context.

    Args:
        failure: by the error in the cell.
        found: the error that the device reported when it was asked.
        captured: what the cell printed.

    """
    if failure.sticky is not None or failure.process == "child" or found is None:
        return failure
    cause = decode_exception(found, captured)
    return replace(cause, blocking=failure.blocking) if cause.sticky else failure


def decide_context(failure: Failure) -> Context:
    """Say whether this kernel's context is dead: by the text where it is sure, else by a probe."""
    if failure.process == "child" or failure.context == "alive":
        return "alive"
    found = device.probe(classify)
    return failure.context if found == "unknown" else found


def reported_at(
    error: BaseException, source: str, is_cell: Callable[[str], bool]
) -> ReportedAt | None:
    """Return the line of the cell where Python noticed the error; None when no cell is on the way.

    Args:
        error: with its traceback.
        source: of the cell, as typed.
        is_cell: whether a file name is that of a notebook cell. Functions of other cells that this
            one called are not its lines.

    """
    own: set[str] = set(TIMED_FILES)
    found = None
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if found is None and is_cell(filename):
            own.add(filename)
        if filename in own:
            found = (filename, trace.tb_lineno)
        trace = trace.tb_next
    if found is None:
        return None
    filename, line = found
    text = linecache.getline(filename, line).rstrip("\n")
    return ReportedAt(line=line + _lines_above(filename, source, line, text), source=text)


def _lines_above(filename: str, source: str, line: int, text: str) -> int:
    """Return how many lines of a cell IPython left out above what it compiled as ``filename``.

    It drops blank lines at the top of a cell, and compiles the body of ``%%time``, ``%%capture``
    and the like on its own.
    """
    if filename in TIMED_FILES or is_in_body(source, line, text):
        return lines_before_body(source)
    return 0 if find_magic_line(source) is not None else lines_before_code(source)


def as_typed(
    diagnosis: Diagnosis,
    source: str,
    cell_of: Callable[[str], int | None],
    execution_count: int | None = None,
) -> Diagnosis:
    """Return ``diagnosis`` with lines counted in the cell as typed, and files named for people.

    ``cell_of(filename)`` gives the number of the cell with that file name; ``execution_count`` is
    that of this cell where the finding may be in another one, as in a rerun.
    """
    finding = diagnosis.finding
    if finding is None:
        return diagnosis
    outer = [item.frames[0] for item in (finding, *diagnosis.more) if item.frames]
    first: str | None = outer[0].file if outer else None
    if first is None or (execution_count is not None and cell_of(first) != execution_count):
        first = None
    # After a restart the cell was only replayed: this kernel knows no number for its file.
    is_cell = first is not None and (cell_of(first) is not None or _is_module(outer[0]))

    def typed(frame: Frame) -> Frame:
        number = cell_of(frame.file)
        if frame.file in TIMED_FILES or (frame.file == first and is_cell):
            above = _lines_above(frame.file, source, frame.line, frame.source)
            return replace(frame, line=frame.line + above, file="")
        name = Path(frame.file).name if number is None else messages.cell(number)
        return replace(frame, file=name)

    more = tuple(_finding_as_typed(item, typed) for item in diagnosis.more)
    return replace(diagnosis, finding=_finding_as_typed(finding, typed), more=more)


def _is_module(frame: Frame) -> bool:
    # IPython 8.0 to 8.5 name a cell's own frame "<cell line: 1>".
    return frame.function == "<module>" or frame.function.startswith("<cell line")


def _finding_as_typed(finding: Finding, typed: Callable[[Frame], Frame]) -> Finding:
    frames = tuple(typed(frame) for frame in finding.frames)
    origin = []
    for step in finding.origin:
        frame = Frame(
            function=step.function, line=step.line or 0, source=step.source, file=step.file
        )
        frame = typed(frame)
        line = None if step.line is None else frame.line
        origin.append(replace(step, line=line, file=frame.file))
    line = frames[-1].line if frames else finding.line
    return replace(finding, frames=frames, line=line, origin=tuple(origin))


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
