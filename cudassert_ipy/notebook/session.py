"""One shell with the extension loaded: what is known about it, and what happens around a cell."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.notebook import device
from cudassert_ipy.notebook.debug_cell import blank_magic_line, find_magic_line
from cudassert_ipy.notebook.front_end import front_end, shows_buttons
from cudassert_ipy.notebook.hooks import Hooks
from cudassert_ipy.notebook.recorder import CellRecord, Recorder
from cudassert_ipy.notebook.settings import CudaDebug
from cudassert_ipy.notebook.stderr import Captures, remove_stale_files
from cudassert_ipy.notebook.terminal_stderr import TerminalCapture
from cudassert_ipy.restart.start import Start

if TYPE_CHECKING:
    from cudassert_ipy.model import Cell, Diagnosis, Environment
    from cudassert_ipy.notebook.debugging import DebugCell
    from cudassert_ipy.notebook.display import Display
    from cudassert_ipy.notebook.replaying import Replaying
    from cudassert_ipy.notebook.restarting import Restarting


class Session:
    """The extension in one shell.

    Attributes:
        dead_since: number of the cell in which the CUDA context died; None while it lives, and
            also when it died in a cell that has no number (``dead`` tells).
        diagnosis: the last diagnosis.
        failed: the record of the cell the diagnosis is about.
        muted: whether nothing is shown now (set-up cells that run again).
        start: how the process was started, for a restart.

    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.settings = CudaDebug(parent=shell)
        self.hooks = Hooks(shell)
        self.recorder = Recorder()
        self.front_end = front_end(shell)
        self.captures = Captures((2, 1)) if self.in_kernel else TerminalCapture()
        self.dead = False
        self.dead_since: int | None = None
        self.diagnosis: Diagnosis | None = None
        self.failed: CellRecord | None = None
        self.debug: DebugCell | None = None
        self.guard_always = False
        self.muted = False
        # A cell before a late `%load_ext` may have changed the directory; `_dh` has the first one.
        visited = shell.user_ns.get("_dh")
        self.start = Start.capture(cwd=str(visited[0]) if visited else None)
        self._pending: Diagnosis | None = None
        self._repr = device.DeadTensorRepr()
        self._copies: Any = None
        self._parts: dict[str, Any] = {}

    @property
    def has_buttons(self) -> bool:
        """Whether somebody can click here: not in a terminal, not driven by a program."""
        return shows_buttons(self.front_end)

    # --- parts that load on first use ---------------------------------------------------------

    @property
    def in_kernel(self) -> bool:
        """Whether the shell belongs to a Jupyter kernel (else: terminal IPython)."""
        return self.front_end != "terminal"

    @property
    def display(self) -> Display:
        """Where diagnoses are shown."""
        if "display" not in self._parts:
            from cudassert_ipy.notebook.display import Display

            self._parts["display"] = Display(self)
        return self._parts["display"]  # type: ignore[no-any-return]

    @property
    def replaying(self) -> Replaying:
        """Replays of the failed cell."""
        if "replaying" not in self._parts:
            from cudassert_ipy.notebook.replaying import Replaying

            self._parts["replaying"] = Replaying(self)
        return self._parts["replaying"]  # type: ignore[no-any-return]

    @property
    def restarting(self) -> Restarting:
        """Restarts in place."""
        if "restarting" not in self._parts:
            from cudassert_ipy.notebook.restarting import Restarting

            self._parts["restarting"] = Restarting(self)
        return self._parts["restarting"]  # type: ignore[no-any-return]

    @property
    def copies(self) -> Any:
        """Host copies of small integer tensors, taken after good cells."""
        if self._copies is None:
            from cudassert_ipy.replay.state import HostCopies

            self._copies = HostCopies(budget=self.settings.copies_mb << 20)
        return self._copies

    # --- installing -----------------------------------------------------------------------------

    def install(self) -> None:
        """Install all hooks. Raises nothing that would keep the extension from loading."""
        shell, hooks = self.shell, self.hooks
        hooks.traceback(self._trim_traceback, self._on_traceback, "%cuda_debug off")
        hooks.event("pre_run_cell", self._before_cell, "%cuda_debug off")
        hooks.event("post_run_cell", self._after_cell, "%cuda_debug off")
        hooks.transformer(blank_magic_line, "%cuda_debug off")
        shell.configurables.append(self.settings)
        hooks.other("settings", "%unload_ext cudassert_ipy", self._remove_settings)
        if isinstance(self.captures, TerminalCapture):
            self._pause_for_shell_commands(self.captures)
        elif self.settings.capture:
            self._start_capture()
        self._add_history()

    def remove(self) -> None:
        """Undo :meth:`install` and everything that came later."""
        if "replaying" in self._parts:
            self.replaying.close()
        if self.debug is not None:
            self.debug.abandon()
            self.debug = None
        self._repr.remove()
        if "display" in self._parts:
            self.display.close()
        self.hooks.remove_all()
        self.captures.close()
        simulator = sys.modules.get("cudassert_ipy.standin.simulator")
        if simulator is not None and simulator.is_on():
            simulator.off()

    def _remove_settings(self) -> None:
        if self.settings in self.shell.configurables:
            self.shell.configurables.remove(self.settings)

    def _start_capture(self) -> None:
        remove_stale_files()
        try:
            self.captures.start()
        except OSError as error:
            print(messages.CAPTURE_FAILED.format(error=error))
            return
        self.hooks.other(
            "file descriptors 2 and 1", "%config CudaDebug.capture = False", self.captures.stop
        )

    def _pause_for_shell_commands(self, terminal: TerminalCapture) -> None:
        """Give `!command` the user's own descriptor 2 (`!less` reads keys from it)."""

        def around(system: Any) -> Any:
            def run(command: str) -> Any:
                with terminal.paused():
                    return system(command)

            return run

        self.hooks.wrap("system", around, "%config CudaDebug.capture = False")

    def _add_history(self) -> None:
        """Take over the cells that ran before a late `%load_ext`; their outcome is unknown."""
        history = getattr(self.shell, "history_manager", None)
        if history is not None:
            self.recorder.add_history(list(history.input_hist_raw[1:]))

    # --- around a cell --------------------------------------------------------------------------

    def cell_number(self) -> int:
        """Return the number of the cell that is starting.

        IPython 9 increments ``execution_count`` before ``pre_run_cell``, older versions after the
        cell; the history, which holds one entry more than cells, tells which.
        """
        count = int(self.shell.execution_count)
        history = getattr(self.shell, "history_manager", None)
        stored = len(history.input_hist_raw) if history is not None else count
        return count - 1 if stored == count - 1 else count

    def current_cell(self) -> CellRecord | None:
        """Return the running cell, or the last one when none runs (a callback)."""
        if self.recorder.current is not None:
            return self.recorder.current
        return self.recorder.cells[-1] if self.recorder.cells else None

    def _before_cell(self, info: Any) -> None:
        if not self.recorder.begin(info, self.cell_number()):
            return
        self._pending = None
        if self.settings.capture and not self.in_kernel and device.could_use_cuda():
            self.captures.start()
        if self.captures.active:
            self.captures.begin_cell()
        options = find_magic_line(info.raw_cell)
        if options is not None or (self.guard_always and device.loaded_torch() is not None):
            from cudassert_ipy.notebook.debugging import DebugCell

            self.debug = DebugCell.begin(self, options)

    def _after_cell(self, result: Any) -> None:
        record = self.recorder.end(result)
        if record is None:
            return
        if record.store_history and result is not None:
            record.execution_count = result.execution_count
        debug, self.debug = self.debug, None
        try:
            if debug is not None:
                debug.end()
            if not self.dead and self.settings.fence and device.cuda_in_use():
                self._fence(record, result)
            if self._pending is not None:
                self._show_pending(debug)
            elif debug is not None:
                debug.report_good_cell()
        finally:
            if debug is not None:
                debug.abandon()
        if record.succeeded and self.settings.copies and not self.dead and device.cuda_in_use():
            self.copies.update(self.shell.user_ns, record.execution_count)
        if not self.in_kernel and self.captures.active:
            self.captures.stop()

    def _fence(self, record: CellRecord, result: Any) -> None:
        """Charge a death that nobody noticed to the cell that just ended."""
        swallowed = b"Assertion" in self.captures.cell_text()
        error = device.wait_for_device(self.settings.fence_seconds)
        if error is None:
            return
        self.recorder.current = record  # the cell is over, but this still belongs to it
        try:
            device.synchronize()
            if swallowed and record.succeeded:
                # The error was raised inside the cell and the user's own code caught it: the cell
                # keeps its status.
                for line in self._on_traceback(type(error), error, []):
                    print(line)
            elif record.succeeded:
                record.succeeded = False
                if result is not None:
                    result.error_in_exec = error
                self.shell.showtraceback((type(error), error, error.__traceback__))
            else:
                self._on_traceback(type(error), error, [])
        finally:
            self.recorder.current = None

    # --- errors -----------------------------------------------------------------------------------

    def _trim_traceback(self, error: BaseException | None) -> None:
        """Take the frames of the guard and of the simulator out of a traceback."""
        if device.loaded_torch() is None or error is None:
            return
        from cudassert_ipy.errors import OperandError

        if isinstance(error, OperandError) or device.simulated():
            from cudassert_ipy.checks.traceback import trim_traceback

            trim_traceback(error)

    def _on_traceback(self, _etype: Any, error: Any, stb: list[str]) -> list[str]:
        """Put one line above the traceback of a CUDA error, and prepare the panel."""
        if device.loaded_torch() is None or not isinstance(error, BaseException):
            return stb
        from cudassert_ipy.errors import OperandError

        diagnosis: Diagnosis | None
        if isinstance(error, OperandError):
            diagnosis = self._diagnose_operand_error(error)
        else:
            from cudassert_ipy.decode.failure import is_suspect

            if not is_suspect(error):
                return stb
            diagnosis = self._diagnose(error)
        if diagnosis is None:
            return stb
        from cudassert_ipy.report.text import one_line

        return [one_line(diagnosis), *stb]

    def _diagnose_operand_error(self, error: Any) -> Diagnosis:
        from cudassert_ipy.notebook.diagnosing import from_operand_error

        diagnosis = from_operand_error(error, self._cell(), self.environment())
        self._remember(diagnosis)
        return diagnosis

    def _diagnose(self, error: BaseException) -> Diagnosis | None:
        from cudassert_ipy.decode.failure import decode_exception
        from cudassert_ipy.model import Diagnosis
        from cudassert_ipy.notebook import diagnosing

        failure = decode_exception(error, self.captures.cell_text())
        if failure.kind == "not_cuda":
            return None
        if failure.context != "alive":
            device.synchronize()  # CUDA prints its assertions only in a synchronizing call
            failure = decode_exception(error, self.captures.cell_text())
        self.captures.sync()
        context = diagnosing.decide_context(failure)
        innocent = context == "dead" and self.dead
        if context == "dead" and not self.dead:
            self.mark_dead()
        diagnosis = Diagnosis(
            failure=failure,
            cell=self._cell(innocent=innocent),
            reported_at=diagnosing.reported_at(error, self.is_cell_file),
            context=context,
            actions=diagnosing.actions_for(context, can_replay=self.can_fork),
            environment=self.environment(),
        )
        if not innocent and context != "alive":
            self._remember(diagnosis)
        return diagnosis

    def _cell(self, *, innocent: bool = False) -> Cell:
        from cudassert_ipy.model import Cell

        record = self.current_cell()
        return Cell(
            execution_count=record.execution_count if record is not None else None,
            id=record.cell_id if record is not None else None,
            first_failed=self.dead_since,
            innocent=innocent,
        )

    def _remember(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = self._pending = diagnosis
        self.failed = self.current_cell()
        if not self.recorder.inside_cell and self.recorder.current is None:
            self._show_pending(None)  # a callback: no end of a cell will come

    def _show_pending(self, debug: DebugCell | None) -> None:
        diagnosis, self._pending = self._pending, None
        if diagnosis is None or self.muted:
            return
        if debug is not None and diagnosis.context == "dead" and debug.will_replay:
            diagnosis = self.replaying.from_checkpoint(debug.take_checkpoint(), diagnosis)
        self.display.show(diagnosis)

    def mark_dead(self, since: int | None = None) -> None:
        """Note that the context is dead; keep what lived on the device, make it showable."""
        record = self.current_cell()
        self.dead = True
        self.dead_since = since or (record.execution_count if record is not None else None)
        device.keep_alive()
        self._repr.install(self.dead_since)

    def own_processes(self) -> set[int]:
        """Return the ids of child processes that are ours, not the user's."""
        return {pid for pid in (getattr(self.captures, "pid", None),) if pid is not None}

    def forget_death(self) -> None:
        """Start anew: the dead device is gone (the simulator was turned off)."""
        self.dead, self.dead_since = False, None
        self._repr.remove()

    def check_at_load(self) -> None:
        """Say so when the kernel is dead already: the extension was loaded after the crash."""
        error = getattr(sys, "last_value", None)
        if device.loaded_torch() is None or not isinstance(error, BaseException):
            return
        from cudassert_ipy.decode.failure import is_suspect

        if not is_suspect(error):
            return
        self.muted = True  # to be shown once it is known which cell it was
        try:
            diagnosis = self._diagnose(error)
        finally:
            self.muted = False
        self.diagnosis = self.failed = None
        if diagnosis is None or not self.dead:
            return
        self.failed = self._cell_that_raised(error)
        count = self.failed.execution_count if self.failed is not None else None
        self.dead_since = self._repr.since = count
        cell = replace(diagnosis.cell, execution_count=count, first_failed=count)
        self.display.show(replace(diagnosis, cell=cell))

    def _cell_that_raised(self, error: BaseException) -> CellRecord | None:
        """Return the recorded cell whose code the traceback goes through."""
        trace, sources = error.__traceback__, []
        while trace is not None:
            filename = trace.tb_frame.f_code.co_filename
            if self.is_cell_file(filename):
                sources.append(self.cell_source(filename))
            trace = trace.tb_next
        for record in reversed(self.recorder.cells):
            if sources and record.source.strip() == sources[0].strip():
                return record
        return None

    # --- facts about the shell ------------------------------------------------------------------

    @property
    def can_fork(self) -> bool:
        """Whether a replay in a forked child is possible here."""
        return hasattr(os, "fork") and sys.platform != "darwin"

    def is_cell_file(self, filename: str) -> bool:
        """Whether ``filename`` is that of a notebook cell.

        ``compile._filename_map`` knows the cells of ipykernel and IPython >= 8 (seen in 8.12 to
        9.18); IPython 7 names them ``<ipython-input-…>``.
        """
        known = getattr(self.shell.compile, "_filename_map", {})
        return filename in known or filename.startswith("<ipython-input-")

    def cell_source(self, filename: str) -> str:
        """Return the source of a cell by its file name, as far as Python still has it."""
        import linecache

        return "".join(linecache.getlines(filename))

    def environment(self) -> Environment:
        """Return the versions for a bug report."""
        return device.environment(self.front_end)
