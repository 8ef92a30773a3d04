"""The fresh process of a rerun: ``python -m cudassert_ipy.notebook.fresh_process``.

Reads its order from stdin, runs the set-up cells and the failed one in an IPython shell of its own
on the stand-in device, and tells what happens on the descriptor that was its stdout. Ends when its
stdin does: then its parent is gone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from cudassert_ipy import messages
from cudassert_ipy.replay.protocol import Done, Progress, ReplayRequest
from cudassert_ipy.replay.rerun import RerunOrder
from cudassert_ipy.replay.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudassert_ipy.replay.rerun import SetupCell
    from cudassert_ipy.replay.rng import RandomState

_BEAT = 0.25
_GRACE = 1.0


def main() -> NoReturn:
    """Run the order on stdin and end the process."""
    control, events = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what the cells print goes beside what their errors print
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    with os.fdopen(control, "rb") as orders:
        line = orders.readline()
        if not line.endswith(b"\n"):
            os._exit(1)  # the parent went before it had said what to do
        order = RerunOrder.from_dict(json.loads(line))
        sender = Sender(events, order.token)
        progress = _Progress(sender, order.seconds)
        progress.start()
        threading.Thread(target=_end_with_parent, args=(orders,), daemon=True).start()
        try:
            done = _run(order, sender, progress)
        except Exception as error:  # ours, not a cell's: no kind of it may pass for a verdict
            traceback.print_exc()
            note = messages.REPLAY_NOT_SET_UP.format(error=f"{type(error).__name__}: {error}")
            done = Done(outcome="inconclusive", note=note)
        if os.getpid() == sender.owner:  # a cell may fork and its child come out here
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # whatever the cell put in its place
                    stream.flush()
            sender.send(done)
        os._exit(0)


class SetupRun:
    """Runs the set-up cells and then the failed cell, as the user had run them."""

    def __init__(
        self, shell: Any, order: RerunOrder, rng: RandomState | None, progress: _Progress
    ) -> None:
        self._shell = shell
        self._cells = order.cells
        self._count = order.execution_count
        self._rng = rng
        self._progress = progress
        self._failed: str | None = None

    def __call__(self, source: str) -> None:
        """Run all cells; the error of the first that fails is raised."""
        for cell in self._cells:
            self._progress.label = messages.rerun_progress(cell.execution_count)
            with _silence():
                self._run_setup(cell)
        self._progress.label = messages.REPLAY_PROGRESS
        if self._rng is not None:
            self._rng.restore()
        self._run(source, self._count)

    def notes(self) -> list[str]:
        """Return which set-up cell failed here though it had not failed in the kernel."""
        return [] if self._failed is None else [self._failed]

    def _run_setup(self, cell: SetupCell) -> None:
        try:
            self._run(cell.source, cell.execution_count)
        except BaseException as error:
            self._failed = messages.rerun_setup_failed(cell.execution_count, error)
            raise

    def _run(self, source: str, execution_count: int | None) -> None:
        from cudassert_ipy.notebook.debug_cell import remember_timed_body

        shell = self._shell
        remember_timed_body(source)
        if execution_count is not None:
            shell.execution_count = execution_count
        # The parent knows its cells by the number in this name (`Session.cell_of`).
        name = f"<ipython-input-{shell.execution_count}-rerun>"
        # `get_code_name`: seen in IPython 7.34 to 9.18; where it is not asked, lines keep no cell.
        shell.compile.get_code_name = lambda *_args, **_options: name
        result = shell.run_cell(source, store_history=True)
        result.raise_error()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drop what is printed meanwhile: a set-up cell's output stands under that cell already."""
    kept = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    os.close(null)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # whatever the cell put in its place
                stream.flush()
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)


def _run(order: RerunOrder, sender: Sender, progress: _Progress) -> Done:
    from cudassert_ipy.replay.cell import CellReplay
    from cudassert_ipy.replay.rng import RandomState
    from cudassert_ipy.replay.state import HostCopies
    from cudassert_ipy.restart.start import take_over

    _limit_processor(order.seconds)
    take_over(None, order.sys_path)
    if "" not in sys.path:
        sys.path.insert(0, "")  # as in a kernel: the notebook's own modules
    request = ReplayRequest.from_dict(order.request)
    rng = None if request.rng is None else RandomState.from_dict(request.rng)
    replay = CellReplay(
        HostCopies(),
        SetupRun(_shell(), order, rng, progress),
        sender.send,
        device_count=order.device_count,
        memory_limit=order.memory_limit,
    )
    return replay.run(request.source, time.monotonic())


def _shell() -> Any:
    """Return an IPython shell that prints plain text and writes no history."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from cudassert_ipy.notebook.child_shell import _detach
    from cudassert_ipy.notebook.debug_cell import blank_magic_line

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    shell.input_transformers_cleanup.insert(0, blank_magic_line)
    _detach(shell)
    return shell


class _Progress(threading.Thread):
    """Tells that the process is alive and what it does, and ends it when its time is over."""

    def __init__(self, sender: Sender, seconds: float) -> None:
        super().__init__(name="cudassert-progress", daemon=True)
        self.label = messages.RERUN_STARTS
        self._sender = sender
        self._limit = seconds
        self._begun = time.monotonic()

    def run(self) -> None:
        while (seconds := time.monotonic() - self._begun) < self._limit:
            self._sender.send(Progress(label=self.label, seconds=seconds))
            time.sleep(_BEAT)
        note = messages.REPLAY_TIMED_OUT.format(seconds=self._limit)
        self._sender.send(Done(outcome="timed_out", seconds=seconds, note=note))
        time.sleep(_GRACE)  # so that the parent reads it
        _end_all()


def _end_with_parent(orders: Any) -> None:
    orders.read()
    _end_all()


def _end_all() -> NoReturn:
    """End this process and, where it leads a session, everything the cells started."""
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _limit_processor(seconds: float) -> None:
    """Let the system end this process where no thread of it comes to run (a hanging regex)."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limit = int(2 * seconds) + 60
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


if __name__ == "__main__":
    main()
