"""Execute the tour headless, print what its user sees, and say where to look: `make demo`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "notebooks" / "tour.ipynb"
EXECUTED = ROOT / "build" / "tour.ipynb"
DIAGNOSIS = "application/vnd.cudassert.diagnosis.v1+json"


def execute(source: Path, target: Path) -> None:
    """Run every cell of ``source``; write the result to ``target`` also when a cell fails."""
    notebook = nbformat.read(source, as_version=4)
    target.parent.mkdir(exist_ok=True)
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(source.parent)}},
    )
    try:
        client.execute()
    finally:
        nbformat.write(notebook, target)


def diagnoses(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    """Yield (source of the cell, text of the panel) for each output that holds a diagnosis."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if DIAGNOSIS in data:
                yield cell.source, data["text/plain"]


def show(notebook: nbformat.NotebookNode) -> int:
    """Print each diagnosis under the cell that it belongs to; return how many there were."""
    count = 0
    for source, panel in diagnoses(notebook):
        count += 1
        print()
        for line in source.splitlines():
            print(f"  | {line}")
        print()
        print(panel.rstrip())
    return count


def main() -> int:
    """Return 0 when the tour ran and showed at least one diagnosis."""
    print(f"Running {TOUR.relative_to(ROOT)} without a browser ...", flush=True)
    started = time.monotonic()
    failed = None
    try:
        execute(TOUR, EXECUTED)
    except CellExecutionError as error:
        failed = str(error)
    count = show(nbformat.read(EXECUTED, as_version=4))
    print()
    if failed is not None:
        print(f"The tour stopped at a cell that should have worked:\n{failed}", file=sys.stderr)
    elif count == 0:
        print("The tour ran, but showed no diagnosis.", file=sys.stderr)
    else:
        print(f"Done in {time.monotonic() - started:.0f} s. The executed notebook: {EXECUTED}")
        print("Open it in JupyterLab, with the buttons:  make lab")
    return int(failed is not None or count == 0)


if __name__ == "__main__":
    sys.exit(main())
