"""The outputs of a saved notebook (.ipynb) as text, cell by cell."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class CellOutputs(NamedTuple):
    """What one cell printed and showed."""

    position: int
    """Of the cell in the notebook, counted from 1."""
    execution_count: int | None
    text: bytes


def is_notebook(data: bytes) -> bool:
    """Return whether ``data`` looks like a saved notebook."""
    return data.lstrip()[:1] == b"{" and b'"cells"' in data and b'"nbformat"' in data


def cell_outputs(data: bytes) -> list[CellOutputs]:
    """Return streams, tracebacks and plain text results of each cell that has any, in order.

    Raises ``ValueError`` if ``data`` is not a notebook. Odd entries are skipped.
    """
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError) as error:
        msg = f"not a notebook: {error}"
        raise ValueError(msg) from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if cells is None:
        msg = "not a notebook: it has no cells"
        raise ValueError(msg)
    found = []
    for position, cell in enumerate(cells if isinstance(cells, list) else (), start=1):
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        parts: list[str] = []
        for output in outputs if isinstance(outputs, list) else ():
            if isinstance(output, dict):
                parts += _output_parts(output)
        if parts:
            count = cell.get("execution_count")
            text = "\n".join(parts).encode("utf-8", "replace")
            found.append(CellOutputs(position, count if type(count) is int else None, text))
    return found


def _output_parts(output: dict[str, Any]) -> list[str]:
    parts = [_text(output.get("text"))]
    traceback = output.get("traceback")
    if isinstance(traceback, list):
        parts.append("\n".join(item for item in traceback if isinstance(item, str)))
    if output.get("output_type") == "error":
        parts.append(f"{_text(output.get('ename'))}: {_text(output.get('evalue'))}")
    data = output.get("data")
    if isinstance(data, dict):
        parts.append(_text(data.get("text/plain")))
    return [part for part in parts if part]


def _text(value: Any) -> str:
    """Return a notebook's text, which is one string or a list of lines."""
    if isinstance(value, list):
        return "".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""
