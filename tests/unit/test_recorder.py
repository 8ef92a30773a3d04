from __future__ import annotations

from types import SimpleNamespace

from cudassert_ipy.notebook.recorder import Recorder


def info(source="x"):
    return SimpleNamespace(raw_cell=source, store_history=True, cell_id="a")


def result(of, *, success=True):
    return SimpleNamespace(info=of, success=success, execution_count=1)


def test_a_cell_is_recorded_with_its_outcome():
    """Source, number, duration and outcome of an outermost cell are kept."""
    recorder, cell = Recorder(), info("1 / 0")
    assert recorder.begin(cell, 4)
    record = recorder.end(result(cell, success=False))
    assert recorder.cells == [record]
    assert (record.source, record.execution_count, record.succeeded) == ("1 / 0", 4, False)
    assert record.seconds >= 0


def test_nested_cells_are_not_recorded():
    """Only the outermost of nested cells is a cell."""
    recorder, outer, inner = Recorder(), info("outer"), info("inner")
    recorder.begin(outer, 1)
    assert recorder.begin(inner, 1) is False
    assert recorder.end(result(inner)) is None
    assert recorder.inside_cell
    assert recorder.end(result(outer)).source == "outer"
    assert not recorder.inside_cell


def test_an_end_that_never_came_is_made_up_for():
    """A nested cell whose end was not announced ends with the one around it."""
    recorder, outer, inner = Recorder(), info("outer"), info("inner")
    recorder.begin(outer, 1)
    recorder.begin(inner, 1)
    assert recorder.end(result(outer)).source == "outer"
    assert recorder.begin(info(), 2)


def test_the_end_of_a_cell_that_never_began_is_nothing():
    """The cell that loads the extension only ends."""
    assert Recorder().end(result(info())) is None


def test_a_cancelled_cell_ends():
    """ipykernel announces the end of a cancelled cell with None."""
    recorder = Recorder()
    recorder.begin(info("await x"), 1)
    assert recorder.end(None).succeeded is False


def test_history_is_added_once():
    """Cells from before the load come with unknown outcome; known numbers are not doubled."""
    recorder = Recorder()
    recorder.add_history(["a = 1", "", "b = 2"])
    recorder.add_history(["a = 1"])
    assert [(c.source, c.execution_count, c.succeeded) for c in recorder.cells] == [
        ("a = 1", 1, None),
        ("b = 2", 3, None),
    ]


def test_state_for_a_replay_can_be_let_go():
    """A healthy cell keeps neither random states nor copies of variables."""
    recorder, cell = Recorder(), info()
    recorder.begin(cell, 1)
    record = recorder.end(result(cell))
    record.rng = record.host_state = object()
    record.forget_state()
    assert (record.rng, record.host_state) == (None, None)
