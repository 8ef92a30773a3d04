"""What a restart would run again and lose."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cudassert_ipy.restart.children import children, end_children
from cudassert_ipy.restart.handoff import MAX_SOURCE, RecordedCell
from cudassert_ipy.restart.plan import Loss, PastCell, losses, plan


def past(source, count=1, seconds=0.1, succeeded=True):
    cell = RecordedCell(source=source, execution_count=count, seconds=seconds, cell_id="c")
    return PastCell(cell=cell, succeeded=succeeded)


def test_successful_cells_in_their_order():
    """Cells that failed are left out; those whose outcome nobody knows are kept."""
    made = plan([past("a = 1", 1), past("1 / 0", 2, succeeded=False), past("b", 3, succeeded=None)])
    assert [(step.source, step.execution_count) for step in made.steps] == [("a = 1", 1), ("b", 3)]
    assert all(step.selected for step in made.steps)


def test_identical_cells_in_a_row_stand_once():
    """Repeats in a row count once, under the last number; repeats further apart stay."""
    made = plan(
        [
            past("a", 1),
            past("a", 2),
            past("x", 3, succeeded=False),
            past("a", 4),
            past("b", 5),
            past("a", 6),
        ]
    )
    assert [step.execution_count for step in made.steps] == [4, 5, 6]


@pytest.mark.parametrize(
    "source",
    [
        "!nvidia-smi",
        "%pip install torch",
        "# set-up\n!ls\n  %pip install x",
        "%%bash\nrm -r build",
        "%%script perl\n1",
        "!!date",
    ],
)
def test_shell_only_cells_are_not_ticked(source):
    """Cells that only call the shell or an installer are shown and not ticked."""
    (step,) = plan([past(source)]).steps
    assert step.shell_only
    assert not step.selected


@pytest.mark.parametrize(
    "source",
    ["x = 1\n!ls", "%cd data", "%env A=1", "files = !ls", "%matplotlib inline", "%%time\nx"],
)
def test_cells_that_do_more_are_ticked(source):
    """A shell line inside a cell, directories, variables and other magics run again."""
    (step,) = plan([past(source)]).steps
    assert not step.shell_only
    assert step.selected


def test_long_cells_stand_out():
    """A cell of ten seconds or more is marked."""
    short, long = plan([past("a", seconds=9.9), past("b", seconds=10.0)]).steps
    assert (short.long, long.long) == (False, True)


def test_own_magics_are_taken_out():
    """The restart never finds itself in the plan; the rest of such a cell keeps its lines."""
    made = plan(
        [
            past("%load_ext cudassert_ipy", 1),
            past("%cuda_debug restart", 2),
            past("%load_ext cudassert_ipy\n%cuda_debug simulator on\nimport math", 3),
            past("%%cuda_debug\nloss.item()", 4),
            past("# only a comment", 5),
            past("%load_ext cudassert_ipython", 6),
        ]
    )
    assert [step.source for step in made.steps] == [
        "\n\nimport math",
        "%%cuda_debug\nloss.item()",
        "%load_ext cudassert_ipython",
    ]


def test_cells_after_the_failure_are_not_ticked():
    """The replay needs the state from before the failing cell."""
    made = plan([past("a", 1), past("b", 5)], failed_count=3)
    assert [step.selected for step in made.steps] == [True, False]


def test_cell_too_long_for_the_handoff_is_not_ticked():
    """A cell that cannot be carried over does not spoil the restart."""
    (step,) = plan([past("#\n" * MAX_SOURCE + "x")]).steps
    assert not step.selected


def test_selection():
    """Without indices the ticked cells are taken; indices from a widget are not trusted."""
    made = plan([past("a", 1), past("!b", 2), past("c", 3)])
    assert [cell.source for cell in made.select()] == ["a", "c"]
    assert [cell.source for cell in made.select([2, 1, 1, 99, -1])] == ["!b", "c"]
    assert made.select([]) == ()


def test_losses_are_variables_with_sizes():
    """Data counts, code does not; the largest comes first; a container counts its items."""

    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

        @property
        def __class__(self):
            raise RuntimeError("asked for its class")

        def __sizeof__(self):
            raise RuntimeError("asked for its size")

    namespace = {
        "rows": [bytes(1000)] * 3,
        "text": "x" * 10_000,
        "odd": Hostile(),
        "sys": sys,
        "function": past,
        "Class": PastCell,
        "_private": "x" * 100_000,
        "known": 1,
    }
    found = {loss.name: loss for loss in losses(namespace, hidden={"known"})}
    assert set(found) == {"rows", "text", "odd"}
    assert 3000 < found["rows"].size < 4000
    assert found["rows"].type == "list"
    made = plan([], variables=found.values())
    assert [loss.name for loss in made.losses] == ["text", "rows", "odd"]


def test_arrays_have_their_bytes():
    """Arrays and tensors are measured by their data."""
    numpy = pytest.importorskip("numpy")
    (loss,) = losses({"data": numpy.zeros((1000, 100))})
    assert loss == Loss(name="data", type="ndarray", size=800_000)


def test_children_are_listed_and_ended():
    """Child processes are found with their children, and are gone afterwards, stubborn ones too."""
    stubborn = "trap '' TERM; sleep 100 & wait; wait"
    with subprocess.Popen(["sh", "-c", stubborn]) as shell:
        for _ in range(200):
            if {child.name for child in children()} >= {"sh", "sleep"}:
                break
        names = [child.name for child in end_children(grace=0.3)]
        assert shell.wait(5) == 0, "subprocess' answer for a child that was collected already"
    assert "sh" in names
    assert "sleep" in names
    assert not {child.name for child in children()} & {"sh", "sleep"}
