"""The outputs of a saved notebook (.ipynb, nbformat 3 to 4) as text, cell by cell."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from cudassert_ipy.decode.html_file import page_text
from cudassert_ipy.model import MIME_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST_KEY = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:cells|metadata|nbformat|nbformat_minor|worksheets)"\s*:'
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Text that stands for something which only HTML shows.
_BARE_REPR = re.compile(r"<[\w.]+ object(?: at 0x[0-9a-fA-F]+)?>\s*")
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
_MAX_COUNT = 10**9
_MAX_DIGITS = 20


class CellOutputs(NamedTuple):
    """What one cell printed and showed."""

    position: int
    """Of the cell in the notebook, counted from 1."""
    execution_count: int | None
    text: bytes


def is_notebook(data: bytes) -> bool:
    """Return whether ``data``, the beginning of a file, looks like a saved notebook."""
    return _FIRST_KEY.match(data) is not None


def cell_outputs(data: bytes | bytearray) -> list[CellOutputs]:
    """Return streams, tracebacks and results of each cell that has any, in order.

    What this tool showed there is left out: it repeats what CUDA printed. Raises ``ValueError`` if
    ``data`` is not a notebook. Odd entries are skipped, bytes that are no UTF-8 replaced.
    """
    try:
        notebook = json.loads(data.decode("utf-8-sig", "replace"), parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        msg = f"not a notebook: {error}"
        raise ValueError(msg) from error
    if not isinstance(notebook, dict) or not {"cells", "worksheets"} & notebook.keys():
        msg = "not a notebook: it has no cells"
        raise ValueError(msg)
    widgets = _widgets(notebook)
    found = []
    for position, cell in enumerate(_cells(notebook), start=1):
        parts = [
            part for output in _dicts(_get(cell, "outputs")) for part in _parts(output, widgets)
        ]
        if parts:
            count = _get(cell, "execution_count", _get(cell, "prompt_number"))
            numbered = type(count) is int and 0 <= count < _MAX_COUNT
            text = "\n".join(parts).encode("utf-8", "replace")
            found.append(CellOutputs(position, count if numbered else None, text))
    return found


def _whole_number(digits: str) -> int | None:
    """Return the number, which may have more digits than Python converts."""
    return int(digits) if len(digits) < _MAX_DIGITS else None


def _cells(notebook: dict[str, Any]) -> list[Any]:
    """Return the cells of nbformat 4, then those of the worksheets of nbformat 3."""
    cells = notebook.get("cells")
    found = list(cells) if isinstance(cells, list) else []
    for worksheet in _dicts(notebook.get("worksheets")):
        inside = worksheet.get("cells")
        found += inside if isinstance(inside, list) else []
    return found


def _widgets(notebook: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what Output widgets show, by the id of the widget."""
    states = notebook
    for key in ("metadata", "widgets", _WIDGET_STATE, "state"):
        states = _get(states, key)
    if not isinstance(states, dict):
        return {}
    return {name: _dicts(_get(_get(state, "state"), "outputs")) for name, state in states.items()}


def _parts(output: dict[str, Any], widgets: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield the texts of one output, and of the outputs inside it when it is a widget."""
    data = output.get("data")
    # nbformat 3 has no "data": names such as "text" and "html" stand beside the others.
    data = data if isinstance(data, dict) else {}
    if MIME_TYPE in data or MIME_TYPE in output:
        return
    model = _get(data.get(_WIDGET_VIEW), "model_id")
    for inner in widgets.get(model, ()) if isinstance(model, str) else ():
        yield from _parts(inner, {})
    yield from _own_parts(output, data)


def _own_parts(output: dict[str, Any], data: dict[str, Any]) -> Iterator[str]:
    traceback = "\n".join(_strings(output.get("traceback")))
    if traceback:
        yield traceback
    name, value = _text(output.get("ename")), _text(output.get("evalue"))
    first = value.partition("\n")[0]
    # The traceback says it again, and an assertion in it must not count twice.
    if (name or value) and (not first or first not in _ANSI.sub("", traceback)):
        yield f"{name}: {value}"
    plain = _text(output.get("text")) or _text(data.get("text/plain"))
    page = _text(data.get("text/html")) or _text(output.get("html"))
    if plain and not (page and _BARE_REPR.fullmatch(plain)):
        yield plain
    elif page:
        yield "".join(piece.text for piece in page_text([page.encode("utf-8", "replace")]))


def _get(item: Any, key: str, otherwise: Any = None) -> Any:
    return item.get(key, otherwise) if isinstance(item, dict) else otherwise


def _dicts(items: Any) -> list[dict[str, Any]]:
    """Return the dicts in a list, and in lists inside it."""
    return [item for item in _flat(items) if isinstance(item, dict)]


def _strings(items: Any) -> list[str]:
    return [item for item in _flat(items) if isinstance(item, str)]


def _text(value: Any) -> str:
    """Return a notebook's text, which is one string or a list of lines."""
    return "".join(_strings(value))


def _flat(value: Any) -> Iterator[Any]:
    """Yield what is in lists, however deep; a value that is no list is the only one."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo.extend(reversed(item))
        else:
            yield item
