"""One shell with the extension loaded: what is known about it, and what happens around a cell."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.notebook import device
from cudassert_ipy.notebook.debug_cell import (
    blank_magic_line,
    find_magic_line,
    remember_timed_body,
)
from cudassert_ipy.notebook.front_end import front_end, shows_buttons
from cudassert_ipy.notebook.hooks import Hooks
from cudassert_ipy.notebook.recorder import CellRecord, Recorder
from cudassert_ipy.notebook.settings import CudaDebug
from cudassert_ipy.notebook.stderr import Captures
from cudassert_ipy.restart.start import Start, pending_path

if TYPE_CHECKING:
    from cudassert_ipy.model import Diagnosis, Environment
    from cudassert_ipy.notebook.debugging import DebugCell
    from cudassert_ipy.notebook.display import Display
    from cudassert_ipy.notebook.failures import Failures
    from cudassert_ipy.notebook.replaying import Replaying
    from cudassert_ipy.notebook.restarting import Restarting
    from cudassert_ipy.notebook.terminal_stderr import TerminalCapture
    from cudassert_ipy.replay.host_state import HostState

SLOW_SECONDS = 10.0
"""After a cell longer than this, blocking launches are called to mind."""


class Session:
    """The extension in one shell.

    Attributes:
        dead_since: number of the cell in which the CUDA context died; None while it lives, and
            also when it died in a cell that has no number (``dead`` tells).
        diagnosis: the last diagnosis.
        failed: the record of the cell the diagnosis is about.
        pending: what is shown when the running cell ends.
        dead_repr: how dead tensors are shown.
        muted: whether nothing is shown now (set-up cells that run again).
        start: how the process was started, for a restart.

    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.settings = CudaDebug(parent=shell)
        self.hooks = Hooks(shell)
        self.recorder = Recorder()
        self.front_end = front_end(shell)
        self.captures = self._make_captures()
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
        self.pending: Diagnosis | None = None
        self.dead_repr = device.DeadTensorRepr()
        self._copies: Any = None
        self._host_state: HostState | None = None
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
    def failures(self) -> Failures:
        """What is done about errors."""
        if "failures" not in self._parts:
            from cudassert_ipy.notebook.failures import Failures

            self._parts["failures"] = Failures(self)
        return self._parts["failures"]  # type: ignore[no-any-return]

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
        hooks.other("DataLoader iterators", "%cuda_debug off", self.recorder.close)
        hooks.other("settings", "%unload_ext cudassert_ipy", self._remove_settings)
        if self.in_kernel:
            if self.settings.capture:
                self._start_capture()
            switch = "%config CudaDebug.capture = False"
            hooks.other("file descriptors 2 and 1", switch, self.captures.stop)
        else:
            self._pause_for_shell_commands()
        self.settings.observe(self._capture_changed, "capture")
        # The files outlive a process that is killed, not one that ends.
        atexit.register(self.captures.close)
        self._add_history()

    def remove(self) -> None:
        """Undo :meth:`install` and everything that came later."""
        if "replaying" in self._parts:
            self.replaying.close()
        if self.debug is not None:
            self.debug.abandon()
            self.debug = None
        self.dead_repr.remove()
        if "display" in self._parts:
            self.display.close()
        self.hooks.remove_all()
        self.captures.close()
        atexit.unregister(self.captures.close)
        simulator = sys.modules.get("cudassert_ipy.standin.simulator")
        if simulator is not None and simulator.is_on():
            from cudassert_ipy.errors import CudassertError

            try:
                simulator.off()
            except CudassertError as error:  # not the main thread
                print(error)

    def _remove_settings(self) -> None:
        if self.settings in self.shell.configurables:
            self.shell.configurables.remove(self.settings)

    def _capture_changed(self, change: Any) -> None:
        if not change["new"]:
            self.captures.close()
        elif self.in_kernel:
            self._start_capture()

    def _make_captures(self) -> Captures | TerminalCapture:
        if self.in_kernel:
            return Captures((2, 1))
        if not os.isatty(2):  # redirected by the user: there is no terminal to keep
            return Captures((2,))
        from cudassert_ipy.notebook.terminal_stderr import TerminalCapture

        return TerminalCapture()

    def _start_capture(self) -> None:
        try:
            self.captures.start()
        except OSError as error:
            print(messages.CAPTURE_FAILED.format(error=error))
            return

    def _pause_for_shell_commands(self) -> None:
        """Give `!command` in a terminal the user's own descriptor 2 (`!less` reads keys there)."""

        def around(system: Any) -> Any:
            def run(command: str) -> Any:
                with self.captures.paused():
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
        self.pending = None
        if self.settings.capture and not self.in_kernel and device.could_use_cuda():
            self.captures.start()
        if self.captures.active:
            self.captures.begin_cell()
        if device.could_use_cuda() and not self.dead:
            self._note_host_state()
        remember_timed_body(info.raw_cell)
        options = find_magic_line(info.raw_cell)
        if options is not None or (self.guard_always and device.loaded_torch() is not None):
            from cudassert_ipy.notebook.debugging import DebugCell

            try:
                self.debug = DebugCell.begin(self, options)
            except KeyboardInterrupt:
                # IPython would swallow it here and run the cell, unguarded.
                DebugCell.refuse(self.shell)

    def _note_host_state(self) -> None:
        """Note small variables, which the cell may change before it fails."""
        from cudassert_ipy.replay.host_state import HostState

        self._host_state = HostState.take(self.shell.user_ns, self._host_state)
        if self.recorder.current is not None:
            self.recorder.current.host_state = self._host_state

    def _after_cell(self, result: Any) -> None:
        record = self.recorder.end(result)
        if record is None:
            self.captures.end_cell()  # the cell that loaded the extension
            return
        if record.store_history and result is not None:
            record.execution_count = result.execution_count
        debug, self.debug = self.debug, None
        try:
            if debug is not None:
                debug.end()
            if not self.dead and device.cuda_in_use():
                self.failures.fence(record, result)
            if self.pending is not None:
                self.failures.show_pending(debug)
            elif debug is not None and debug.findings:
                self.failures.show_swallowed(debug, record, result)
            elif debug is not None:
                debug.report_good_cell()
        finally:
            if debug is not None:
                debug.abandon()
        if (record.seconds or 0.0) > SLOW_SECONDS and device.launches_block():
            print(messages.STATUS_BLOCKING)
        if record.succeeded and self.settings.copies and not self.dead and device.cuda_in_use():
            self.copies.update(self.shell.user_ns, record.execution_count)
        if record is not self.failed:
            record.forget_state()
        self.captures.end_cell()
        if not self.in_kernel:
            self.captures.stop()

    # --- errors ---------------------------------------------------------------------------------

    def _trim_traceback(self, error: BaseException | None) -> None:
        if error is not None and device.loaded_torch() is not None:
            self.failures.trim(error)

    def _on_traceback(self, _etype: Any, error: Any, stb: list[str]) -> list[str]:
        if device.loaded_torch() is None or not isinstance(error, BaseException):
            return stb
        return self.failures.explain(error, stb)

    def check_at_load(self) -> None:
        """Say so when the kernel is dead already: the extension was loaded after the crash."""
        error = getattr(sys, "last_value", None)
        if device.loaded_torch() is not None and isinstance(error, BaseException):
            self.failures.check_at_load(error)

    def offer_pending(self) -> None:
        """Offer what was left for this kernel before its user restarted it by hand."""
        if not self.in_kernel:
            return
        from jupyter_core.paths import jupyter_runtime_dir

        file = getattr(getattr(self.shell.kernel, "parent", None), "connection_file", "")
        if file and pending_path(Path(jupyter_runtime_dir()), file).exists():
            self.restarting.offer_pending()

    # --- facts about the shell ------------------------------------------------------------------

    def own_processes(self) -> set[int]:
        """Return the ids of child processes that are ours, not the user's."""
        return {pid for pid in (getattr(self.captures, "pid", None),) if pid is not None}

    @property
    def can_fork(self) -> bool:
        """Whether a replay in a forked child is possible here."""
        return hasattr(os, "fork") and sys.platform != "darwin"

    def is_cell_file(self, filename: str) -> bool:
        """Whether ``filename`` is that of a notebook cell."""
        return self.cell_of(filename) is not None

    def cell_of(self, filename: str) -> int | None:
        """Return the number of the cell with that file name; None for other files.

        ``compile._filename_map`` knows the cells of ipykernel and IPython >= 8 (seen in 8.12 to
        9.18); IPython 7 names them ``<ipython-input-…>``.
        """
        known = getattr(self.shell.compile, "_filename_map", {})
        if filename in known:
            return int(known[filename])
        path = Path(filename)
        if path.parent.name.startswith("ipykernel_"):  # a forked child has its own folder of cells
            numbers = (number for name, number in known.items() if Path(name).name == path.name)
            return next(map(int, numbers), None)
        if filename.startswith("<ipython-input-"):
            number = filename.split("-")[2]
            return int(number) if number.isdigit() else None
        return None

    def environment(self) -> Environment:
        """Return the versions for a bug report."""
        return device.environment(self.front_end)
