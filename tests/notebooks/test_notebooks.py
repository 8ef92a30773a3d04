"""The notebooks of this repository run from top to bottom and show what they promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
DIAGNOSIS = "application/vnd.cudassert.diagnosis.v1+json"

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]


def _diagnoses(cell: nbformat.NotebookNode) -> list[dict[str, Any]]:
    return [
        output.data[DIAGNOSIS] for output in cell.outputs if DIAGNOSIS in output.get("data", {})
    ]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_committed_without_outputs(path: Path) -> None:
    """No outputs are committed: they would be stale, and they hold paths and values."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code_cells
    assert not any(cell.outputs or cell.execution_count for cell in code_cells)


@pytest.fixture(scope="module")
def tour() -> nbformat.NotebookNode:
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOKS / "tour.ipynb", as_version=4)
    NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    ).execute()
    return notebook


def _cell(notebook: nbformat.NotebookNode, start: str) -> nbformat.NotebookNode:
    """Return the first code cell whose source starts with ``start``."""
    return next(
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.source.startswith(start)
    )


def test_the_tour_names_the_assertion(tour: nbformat.NotebookNode) -> None:
    """The failing cell shows the true error and a diagnosis with a dead context."""
    cell = _cell(tour, "ids, labels")
    errors = [output for output in cell.outputs if output.output_type == "error"]
    assert [error.ename for error in errors] == ["AcceleratorError"]
    diagnosis = _diagnoses(cell)[-1]
    assert diagnosis["failure"]["kind"] == "device_assert"
    assert diagnosis["failure"]["code"] == 710
    assert diagnosis["context"] == "dead"


def test_the_tour_replay_finds_the_token(tour: nbformat.NotebookNode) -> None:
    """The replay names line, expression, value and batch row."""
    finding = _diagnoses(_cell(tour, "%cuda_debug replay"))[-1]["finding"]
    assert finding["bad_values"] == [1000]
    assert finding["bad_positions"] == [[7, 3]]
    assert finding["batch_rows"] == [7]
    assert (finding["valid_minimum"], finding["valid_maximum"]) == (0, 999)
    assert finding["shape"] == [32, 16]
    assert "embedding" in finding["operation"]


def test_the_tour_goes_on_after_the_restart(tour: nbformat.NotebookNode) -> None:
    """The kernel is alive after the restart: guarded cells raise, the fixed one prints a loss."""
    guarded = _diagnoses(_cell(tour, "%%cuda_debug\nlogits"))[-1]
    assert guarded["replay"]["state"] == "guard"
    assert guarded["context"] == "alive"
    fixed = _cell(tour, "%%cuda_debug\nbatch")
    assert any("loss" in output.get("text", "") for output in fixed.outputs)
    labels = _diagnoses(_cell(tour, "%%cuda_debug\ntargets"))[-1]["finding"]
    assert labels["bad_values"] == [10]
    assert -100 in labels["special_values"]


def test_the_tour_keeps_its_prompt_numbers(tour: nbformat.NotebookNode) -> None:
    """Prompt numbers go on over the restart."""
    numbers = [cell.execution_count for cell in tour.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1))
