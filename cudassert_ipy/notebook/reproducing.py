"""Minimal reproducers of the last failure: written as scripts, tried, and shown for what they are.

Nothing of them runs in the kernel: each is tried in a fresh process, on the CPU with a stand-in
device, under limits of time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.notebook import device
from cudassert_ipy.notebook.fresh_replay import MODULE
from cudassert_ipy.notebook.kernel import busy
from cudassert_ipy.notebook.plain_cells import plain_python
from cudassert_ipy.notebook.replaying import Attempt
from cudassert_ipy.replay.cells_script import cells_scripts
from cudassert_ipy.replay.protocol import ReplayRequest
from cudassert_ipy.replay.rerun import start_rerun
from cudassert_ipy.replay.script import CannotWriteError, comment, operation_scripts

if TYPE_CHECKING:
    from collections.abc import Generator

    from cudassert_ipy.checks.call_data import CallData
    from cudassert_ipy.model import Diagnosis, Environment, Finding
    from cudassert_ipy.notebook.recorder import CellRecord
    from cudassert_ipy.notebook.session import Session
    from cudassert_ipy.replay.running import ReplayResult

_OPERATION_SECONDS: Final = 30.0
_SLOWER: Final = 4.0


@dataclass(frozen=True, slots=True)
class Reproducer:
    """One script and what trying it showed.

    Attributes:
        title: which kind it is.
        text: the script; empty where none could be written.
        status: what was verified, or why there is none.
        verified: whether it raised the same finding.

    """

    title: str
    text: str
    status: str
    verified: bool = False


class Reproducing:
    """Makes the reproducers of one session's last failure."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def reproduce_now(self) -> list[Reproducer]:
        """Make and try both scripts, and return them. Blocks; Ctrl-C ends the one being tried.

        Raises ``CudassertError`` when nothing has failed, or no process can be started.
        """
        steps = self._steps()
        try:
            attempt = next(steps)
            while True:
                attempt = steps.send(self._session.replaying.wait_for(attempt))
        except StopIteration as end:
            found: list[Reproducer] = end.value
        return found

    async def reproduce_in_panel(self) -> None:
        """Make and try both while the kernel stays usable, and show them in the panel."""
        display, diagnosis = self._session.display, self._session.diagnosis
        panel = display.panel
        if not self._session.settings.show_values:
            raise CudassertError(messages.REPRO_HIDDEN)
        steps = self._steps()
        with busy(self._session.shell, display.parent):
            try:
                attempt = next(steps)
                while True:
                    attempt = steps.send(await self._session.replaying.result_of(attempt))
            except StopIteration as end:  # Python lets no coroutine raise it by itself
                found: list[Reproducer] = end.value
        if panel is not None and diagnosis is not None:
            panel.show_scripts(found, diagnosis)

    def _steps(self) -> Generator[Attempt, ReplayResult, list[Reproducer]]:
        """Yield scripts being tried, take how it went, and return the reproducers."""
        diagnosis, cell = self._session.diagnosis, self._session.failed
        if diagnosis is None or cell is None:
            raise CudassertError(messages.REPRO_NOTHING)
        finding, call = diagnosis.finding, self._session.replaying.call
        cells, result = yield from self._cells(diagnosis, cell)
        if result is not None and result.finding is not None and cells.verified:
            # A finding of the guard comes without its call; what the script found has it.
            finding, call = finding or result.finding, call or result.call
        if result is not None and result.replay.outcome == "cancelled":
            return [cells]
        one = yield from self._operation(finding, call, diagnosis.environment)
        return [one, cells]

    # --- the cells ------------------------------------------------------------------------------

    def _cells(
        self, diagnosis: Diagnosis, cell: CellRecord
    ) -> Generator[Attempt, ReplayResult, tuple[Reproducer, ReplayResult | None]]:
        steps = [
            step
            for step in self._session.restarting.plan().steps
            if step.selected and _is_before(step.execution_count, cell.execution_count)
        ]
        seconds = _SLOWER * sum([*(step.seconds for step in steps), cell.seconds or 0.0])
        sources = [*(step.source for step in steps), cell.source]
        counts = [*(step.execution_count for step in steps), cell.execution_count]
        head = [messages.SCRIPT_CELLS_HEAD.format(versions=_versions(diagnosis.environment))]
        title = messages.REPRO_CELLS
        try:
            scripts = cells_scripts(
                [_plain(source) for source in sources],
                [messages.cell(count) for count in counts],
                head,
                _line_in_cell(diagnosis.finding),
            )
        except CannotWriteError as error:
            return Reproducer(title, "", messages.REPRO_NOT_WRITTEN.format(why=error)), None
        tried = None
        limit = self._session.settings.replay_seconds + seconds
        for script in scripts:
            label = messages.REPRO_PROGRESS_CELLS
            if script.is_whole:
                label = messages.REPRO_PROGRESS_ALL
            result = yield Attempt(label, None, self._try(script.text, limit))
            status, verified = self._judged(result, diagnosis)
            how = messages.REPRO_ALL_NEEDED
            if not script.is_whole:
                how = messages.REPRO_CELLS_KEPT.format(kept=script.kept, total=script.total)
            elif script.why:
                how = f"{script.why[:1].upper()}{script.why[1:]}."
            elif len(scripts) > 1:
                how = messages.REPRO_ALL_CELLS
            made = Reproducer(title, _stamped(script.text, status), f"{how} {status}", verified)
            if verified or result.replay.outcome == "cancelled":
                return made, result
            tried = tried or (made, result)
        assert tried is not None  # noqa: S101  there is a script, or an exception told why not
        return tried if len(scripts) == 1 else (made, result)

    # --- the one operation ----------------------------------------------------------------------

    def _operation(
        self, finding: Finding | None, call: CallData | None, environment: Environment
    ) -> Generator[Attempt, ReplayResult, Reproducer]:
        title = messages.REPRO_OPERATION
        if finding is None or call is None:
            why = messages.REPRO_NO_CALL
            return Reproducer(title, "", messages.REPRO_NOT_WRITTEN.format(why=why))
        try:
            scripts = operation_scripts(call, finding, environment)
        except CannotWriteError as error:
            return Reproducer(title, "", messages.REPRO_NOT_WRITTEN.format(why=error))
        first = None
        for text in scripts:
            running = self._try(text, _OPERATION_SECONDS)
            result = yield Attempt(messages.REPRO_PROGRESS_OPERATION, None, running)
            status, verified = _compared(result, finding)
            made = Reproducer(title, _stamped(text, status), status, verified)
            if verified or result.replay.outcome == "cancelled":
                return made
            first = first or made
        assert first is not None  # noqa: S101  there is one script at least
        return first

    # --- trying ---------------------------------------------------------------------------------

    def _try(self, text: str, seconds: float) -> Any:
        start, torch = self._session.start, device.loaded_torch()
        return start_rerun(
            (),
            ReplayRequest(source=text, timeout=seconds),
            module=MODULE,
            reason=messages.REPRO_BECAUSE,
            device_count=1 if torch is None else max(1, torch.cuda.device_count()),
            cwd=start.cwd,
            sys_path=start.sys_path,
        )

    def _judged(self, result: ReplayResult, diagnosis: Diagnosis) -> tuple[str, bool]:
        """Return what a run of cells shows, and whether it is the same finding."""
        if diagnosis.finding is not None or result.finding is None:
            return _compared(result, diagnosis.finding)
        known = {
            name
            for item in (diagnosis.failure.assertions if diagnosis.failure is not None else ())
            for name in item.operations
        }
        if known and result.finding.operation not in known:
            why = messages.REPRO_WHY_OTHER.format(operation=result.finding.operation)
            return messages.REPRO_NOT_REPRODUCED.format(why=why), False
        return messages.REPRO_FOUND, True


def _compared(result: ReplayResult, finding: Finding | None) -> tuple[str, bool]:
    found, replay = result.finding, result.replay
    if found is None:
        why = messages.REPRO_WHY_CLEAN
        if replay.outcome != "clean":
            exception = f": {replay.exception}" if replay.exception else ""
            why = messages.REPRO_WHY_ENDED.format(outcome=replay.outcome, exception=exception)
        return messages.REPRO_NOT_REPRODUCED.format(why=why[:500]), False
    if finding is None:
        return messages.REPRO_FOUND, True
    if _family(found) != _family(finding) or found.operand != finding.operand:
        why = messages.REPRO_WHY_OTHER.format(operation=found.operation)
        return messages.REPRO_NOT_REPRODUCED.format(why=why), False
    # As text: NaN is not equal to itself.
    if repr(found.bad_values) == repr(finding.bad_values):
        return messages.REPRO_VERIFIED, True
    return messages.REPRO_OTHER_VALUES, False


def _family(finding: Finding) -> str:
    """Return the operation without its overload: ``scatter_`` and ``scatter`` are one."""
    return finding.aten.split(".")[0].rstrip("_")


def _is_before(count: int | None, failed: int | None) -> bool:
    return count is None or failed is None or count < failed


def _line_in_cell(finding: Finding | None) -> int | None:
    """Return the line of the failed cell, as typed, from which the bad operation was called."""
    if finding is None or not finding.frames or finding.frames[0].file:
        return None
    return finding.frames[0].line


def _plain(source: str) -> str:
    try:
        return plain_python(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CannotWriteError(messages.SCRIPT_NO_PYTHON) from error


def _versions(environment: Environment) -> str:
    named = (("Python", environment.python), ("torch", environment.torch))
    return ", ".join(f"{name} {value}" for name, value in named if value)


def _stamped(text: str, status: str) -> str:
    """Return the script with what was verified below its first line."""
    first, _, rest = text.partition("\n")
    return f"{first}\n{comment(status)}\n{rest}"


def write(made: list[Reproducer], file: str, *, cells: bool) -> str:
    """Write one of the scripts to a new file and return what to say.

    The one operation unless ``cells`` or only the cells could be verified. Raises
    ``CudassertError`` where the file exists, cannot be written, or there is no script.
    """
    order = sorted(made, key=lambda item: (item.title != messages.REPRO_CELLS) is cells)
    if not cells:
        order.sort(key=lambda item: not item.verified)
    script = next((item for item in order if item.text), None)
    if script is None:
        raise CudassertError(messages.REPRO_NOTHING_WRITTEN)
    try:
        with Path(file).open("x", encoding="utf-8") as out:
            out.write(script.text)
    except FileExistsError:
        raise CudassertError(messages.REPRO_EXISTS.format(file=file)) from None
    except (OSError, ValueError) as error:
        raise CudassertError(messages.REPRO_NO_FILE.format(file=file, error=error)) from None
    return messages.REPRO_WRITTEN.format(file=file, status=script.status)


def as_text(made: list[Reproducer]) -> str:
    """Return both scripts with what was verified, to print."""
    parts = [f"{item.title} {item.status}\n\n{item.text}".rstrip() for item in made]
    return "\n\n".join(parts)
