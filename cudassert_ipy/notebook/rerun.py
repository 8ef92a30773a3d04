"""Run a recorded cell again as if the user had run it, under its old number, without its output."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudassert_ipy.notebook.resuming import drop_output, interrupted, take_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudassert_ipy.restart.handoff import Handoff, RecordedCell


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutcome:
    """How a recorded cell ended this time."""

    success: bool
    error: str | None = None
    """One line: type and text of the exception."""
    traceback: tuple[str, ...] = ()
    """The traceback as IPython formatted it, colors included."""
    interrupted: bool = False
    """It was stopped by the user (stop button, Ctrl-C)."""
    seconds: float = 0.0


async def run_recorded_cell(
    shell: Any, cell: RecordedCell, handoff: Handoff, *, quiet: bool = True
) -> CellOutcome:
    """Run ``cell`` in a kernel the way ipykernel's ``do_execute`` runs a request.

    After a SIGINT between the cells it does not run and counts as interrupted.
    It stores history under ``cell.execution_count``, may await, may be interrupted, and cannot ask
    for input. With ``quiet`` its output reaches no front end, since a set-up cell's output stands
    under that cell already; without, it goes to the cell that asked for the restart.
    """
    if interrupted():
        return CellOutcome(success=False, error=KeyboardInterrupt.__name__, interrupted=True)
    place(shell, cell.execution_count)
    if quiet:
        drop_output(shell, handoff)
    started = time.perf_counter()
    try:
        with _no_input(shell.kernel):
            result = await _run(shell, cell)
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        return _outcome(shell, None, error, started)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        take_parent(shell, handoff)
    # Let the kernel answer clicks (Cancel) between two cells that never await.
    await asyncio.sleep(0)
    return _outcome(shell, result, None, started)


async def _run(shell: Any, cell: RecordedCell) -> Any:
    failure = None
    try:
        transformed = shell.transform_cell(cell.source)
    except Exception:  # as in do_execute: the shell shows it as the cell's error
        transformed, failure = cell.source, sys.exc_info()
    options: dict[str, Any] = {"store_history": True, "silent": False}
    if "cell_id" in inspect.signature(shell.run_cell_async).parameters:  # from IPython 8
        options["cell_id"] = cell.cell_id
    prepared = {"transformed_cell": transformed, "preprocessing_exc_tuple": failure}
    if not shell.should_run_async(cell.source, **prepared):
        with _interruptible():
            return shell.run_cell(cell.source, **options)
    future = asyncio.ensure_future(shell.run_cell_async(cell.source, **prepared, **options))
    result = None
    with _cancellable(future):
        try:
            result = await future
        finally:
            # Only the synchronous `run_cell` announces the end by itself.
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", result)
    return result


def run_recorded_cell_in_terminal(shell: Any, cell: RecordedCell) -> CellOutcome:
    """Run ``cell`` in terminal IPython, its printed output swallowed."""
    place(shell, cell.execution_count)
    started = time.perf_counter()
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            result = shell.run_cell(cell.source, store_history=True)
    except KeyboardInterrupt as error:
        return _outcome(shell, None, error, started)
    return _outcome(shell, result, None, started)


def place(shell: Any, execution_count: int | None) -> None:
    """Make the next cell that runs be cell ``execution_count``; ``In`` is filled up to it.

    Never back to a number that was used: IPython's history database would refuse it. In a fresh
    process that cannot happen, since a session's numbers rise.
    """
    if execution_count is None or execution_count <= shell.execution_count:
        return
    history = shell.history_manager
    for kept in (history.input_hist_raw, history.input_hist_parsed):
        kept.extend([""] * (execution_count - len(kept)))
    shell.execution_count = execution_count


def _outcome(shell: Any, result: Any, error: BaseException | None, started: float) -> CellOutcome:
    if result is not None:
        error = result.error_before_exec or result.error_in_exec
    # IPython clears neither when a cell succeeds: only look after a failure.
    traceback = tuple(getattr(shell, "_last_traceback", None) or ()) if error is not None else ()
    return CellOutcome(
        success=error is None and result is not None,
        error=None if error is None else f"{type(error).__name__}: {error}".rstrip(": "),
        traceback=traceback,
        interrupted=isinstance(error, KeyboardInterrupt | asyncio.CancelledError),
        seconds=time.perf_counter() - started,
    )


@contextlib.contextmanager
def _no_input(kernel: Any) -> Iterator[None]:
    # ipykernel 6 and 7: `input` raises StdinNotImplementedError; nobody would see the question.
    forward = getattr(kernel, "_forward_input", None)
    if forward is None:
        yield
        return
    forward(False)
    try:
        yield
    finally:
        kernel._restore_input()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    # Between requests a kernel ignores SIGINT: the stop button has to work on this cell as well.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _cancellable(future: asyncio.Future[Any]) -> Iterator[None]:
    loop = future.get_loop()

    def cancel(*_: Any) -> None:
        # Threadsafe also wakes the loop up, which ipykernel's own handler forgets (tornado 6.6.1).
        loop.call_soon_threadsafe(future.cancel)

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
