"""The engine of the process after a restart, with a stage that only notes what it is told."""

from __future__ import annotations

import asyncio

import pytest

from cudassert_ipy.restart.handoff import Handoff, RecordedCell
from cudassert_ipy.restart.resume import resume


class Stage:
    def __init__(self, fails=(), cancel_after=None, breaks=None):
        self.events = []
        self.fails, self.cancel_after, self.breaks = fails, cancel_after, breaks

    async def run_cell(self, cell):
        await asyncio.sleep(0)
        self.events.append(f"run {cell.source}")
        if self.breaks == cell.source:
            raise self.error
        return cell.source not in self.fails

    def progress(self, label, done, total):
        self.events.append(f"{done}/{total} {label}")

    def cancelled(self):
        return self.cancel_after is not None and f"run {self.cancel_after}" in self.events

    async def replay_failing_cell(self):
        self.events.append("replay")

    def finish(self, note):
        self.events.append(note)


CELLS = tuple(RecordedCell(source=name, execution_count=n) for n, name in enumerate("abc", start=1))
FAILING = RecordedCell(source="boom", execution_count=7)


def run(stage, **fields):
    return asyncio.run(resume(Handoff(**fields), stage))


def test_set_up_then_replay():
    """Cells run in order with progress, then the failing cell is replayed, then the note comes."""
    stage = Stage()
    outcome = run(stage, cells=CELLS[:2], failing=FAILING, replay=True)
    assert (outcome.state, outcome.ran, outcome.left) == ("done", 2, ())
    assert stage.events == [
        "0/3 Running cell [1] again",
        "run a",
        "1/3 Running cell [2] again",
        "run b",
        "2/3 Replaying cell [7]",
        "replay",
        "Set-up done: 2 cells ran again.",
    ]


def test_plain_restart_runs_nothing():
    """Without cells and replay there is only the note."""
    stage = Stage()
    assert run(stage, failing=FAILING, replay=False).state == "done"
    assert stage.events == ["Restarted."]


@pytest.mark.parametrize(
    ("failing", "note"),
    [
        ("a", "Stopped: cell [1] failed this time. 2 cells after it did not run."),
        ("c", "Stopped: cell [3] failed this time."),
    ],
)
def test_stops_at_the_first_failure(failing, note):
    """Nothing runs after a cell that fails, the replay included."""
    stage = Stage(fails=failing)
    outcome = run(stage, cells=CELLS, failing=FAILING, replay=True)
    assert outcome.state == "failed"
    assert outcome.failed == CELLS["abc".index(failing)]
    assert outcome.left == CELLS["abc".index(failing) :]
    assert stage.events[-2:] == [f"run {failing}", note]


@pytest.mark.parametrize(("after", "fails", "done"), [("a", "", 1), ("b", "b", 1), ("c", "", 3)])
def test_cancel(after, fails, done):
    """A cancel stops before the next cell and before the replay; a cell it broke is no failure."""
    stage = Stage(cancel_after=after, fails=fails)
    outcome = run(stage, cells=CELLS, failing=FAILING, replay=True)
    assert (outcome.state, outcome.ran, outcome.failed) == ("cancelled", done, None)
    assert outcome.left == CELLS[done:], "the cell that was stopped did not run either"
    assert stage.events[-1] == f"Cancelled after {done} of 3 cells."
    assert "replay" not in stage.events


@pytest.mark.parametrize("error", [RuntimeError("lost"), KeyboardInterrupt()])
def test_broken_stage_still_says_how_it_ended(error):
    """When the stage itself breaks, the note says so and the exception goes on."""
    stage = Stage(breaks="b")
    stage.error = error
    with pytest.raises(type(error)):
        run(stage, cells=CELLS)
    assert stage.events[-1].startswith("The restart worked, what was to follow did not: ")
    assert type(error).__name__ in stage.events[-1]
