"""The probe extension for terminal IPython."""

from pathlib import Path

from cudassert_ipy.notebook import terminal
from cudassert_ipy.restart import start as start_module
from cudassert_ipy.restart.handoff import Handoff, RecordedCell, read
from cudassert_ipy.restart.resume import resume

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
        stage = terminal.TerminalStage(shell, lambda: print("replayed", handoff.failing.source))
        terminal.drive(resume(handoff, stage))

    terminal.schedule_resume(shell, handoff, work)
