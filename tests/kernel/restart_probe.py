"""A tiny extension that restarts and resumes, so that the mechanism is tested on its own."""

import asyncio
import os
import signal
import sys

from IPython import get_ipython

from cudassert_ipy.notebook import kernel as leaving
from cudassert_ipy.notebook import resuming
from cudassert_ipy.notebook.rerun import run_recorded_cell
from cudassert_ipy.restart import start as start_module
from cudassert_ipy.restart.handoff import Handoff, HandoffError, RecordedCell, read
from cudassert_ipy.restart.resume import resume

# The real extension would take the handoff itself.
start_module.EXTENSION_OPTION = "--InteractiveShellApp.extra_extensions=restart_probe"

handle = None
failures = []


class Stage:
    def __init__(self, shell, handoff):
        self.shell, self.handoff = shell, handoff

    async def run_cell(self, cell):
        outcome = await run_recorded_cell(self.shell, cell, self.handoff)
        if not outcome.success:
            print("failed with", outcome.error)
        return outcome.success

    def progress(self, label, done, total):
        print(f"{done}/{total} {label}")

    def cancelled(self):
        return self.handoff.extra.get("cancels", False) and resuming.interrupted()

    async def replay_failing_cell(self):
        print("replayed", self.handoff.failing.source)

    def finish(self, note):
        print(note)


def load_ipython_extension(shell):
    global handle
    shell.user_ns["probe"] = sys.modules[__name__]
    handle = leaving.IpykernelHandle(shell, start_module.Start.capture())
    path = shell.config.CudaDebug.get("handoff", "")
    if not path:
        return
    from pathlib import Path

    try:
        handoff = read(Path(str(path)))
    except HandoffError as error:
        print(f"ignored: {error}", file=sys.__stderr__)
        return
    shell.user_ns["handoff"] = handoff

    async def work():
        await resume(handoff, Stage(shell, handoff))
        if "slow" in handoff.extra:
            await asyncio.sleep(handoff.extra["slow"])

    resuming.schedule_resume(shell, handoff, work)
    if "interrupt" in handoff.extra:
        os.kill(os.getpid(), signal.SIGINT)


def handoff(**fields):
    parent = leaving.parent_of_current_cell(get_ipython())
    return Handoff(parent=parent.message, idents=parent.idents, **fields)


def magic(*, blocking=True, **fields):
    """Restart within the cell."""
    leaving.restart_now(handle, handoff(reply_owed=True, **fields), blocking=blocking)


def button(*, blocking=True, delay=0.0, **fields):
    """Restart once this cell has been answered, its output going to this cell."""
    made = handoff(**fields)

    def go():
        leaving.restart_soon(
            handle, lambda: made, blocking=blocking, on_failure=lambda error: failures.append(error)
        )

    if delay:
        get_ipython().kernel.io_loop.call_later(delay, go)
    else:
        go()


def by_hand(*sources):
    """Resume in this kernel, as after a restart by hand."""
    taken = resuming.here(get_ipython(), Handoff(cells=cells(*sources), execution_count=9))
    stage = Stage(get_ipython(), taken)
    resuming.resume_soon(get_ipython(), taken, lambda: resume(taken, stage))


def cells(*sources, first=1):
    return tuple(
        RecordedCell(source=source, execution_count=number, seconds=0.1)
        for number, source in enumerate(sources, start=first)
    )
