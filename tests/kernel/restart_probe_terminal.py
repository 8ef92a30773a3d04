"""The probe extension for terminal IPython."""

from pathlib import Path

from cudassert_ipy.notebook import terminal
from cudassert_ipy.notebook.rerun import run_recorded_cell_in_terminal
from cudassert_ipy.restart import start as start_module
from cudassert_ipy.restart.handoff import Handoff, RecordedCell, read
from cudassert_ipy.restart.resume import resume


class Stage:
    """One line of text per step."""

    def __init__(self, shell, handoff):
        self.shell, self.handoff, self.outcome = shell, handoff, None

    async def run_cell(self, cell):
        self.outcome = run_recorded_cell_in_terminal(self.shell, cell)
        if self.outcome.error and not self.outcome.interrupted:
            print(self.outcome.error)
        return self.outcome.success

    def progress(self, label, done, total):
        print(f"[{done + 1}/{total}] {label}", flush=True)

    def cancelled(self):
        return self.outcome is not None and self.outcome.interrupted

    async def replay_failing_cell(self):
        print("replayed", self.handoff.failing.source)

    def finish(self, note):
        print(note, flush=True)


start_module.EXTENSION_OPTION = "--InteractiveShellApp.extra_extensions=restart_probe_terminal"


def load_ipython_extension(shell):
    handle = terminal.TerminalHandle(shell, start_module.Start.capture())

    def again(*sources, **fields):
        cells = tuple(RecordedCell(source=s, execution_count=n) for n, s in enumerate(sources, 1))
        terminal.restart_now(handle, Handoff(cells=cells, **fields), blocking=True)

    shell.user_ns.update(again=again, allowed=terminal.can_exec, RecordedCell=RecordedCell)
    path = shell.config.CudaDebug.get("handoff", "")
    if not path:
        return
    handoff = read(Path(str(path)))

    def work():
        terminal.drive(resume(handoff, Stage(shell, handoff)))

    terminal.schedule_resume(shell, handoff, work)
