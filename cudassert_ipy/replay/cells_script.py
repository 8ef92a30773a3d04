"""The cells that a failing one needs, as one script."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cudassert_ipy import messages
from cudassert_ipy.replay.dataflow import facts_of
from cudassert_ipy.replay.script import CannotWriteError, comment
from cudassert_ipy.replay.slicing import CannotSliceError, Statement, needed, statements

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TEXT: Final = 200_000
"""Characters of a script."""


@dataclass(frozen=True, slots=True)
class CellsScript:
    """A script of cells; ``is_whole``: no statement was left out, and ``why``."""

    text: str
    is_whole: bool
    why: str = ""
    kept: int = 0
    total: int = 0


def cells_scripts(
    sources: Sequence[str], names: Sequence[str], head: Sequence[str], line: int | None
) -> list[CellsScript]:
    """Return scripts of cells, the one with the fewest statements first, all cells last.

    Args:
        sources: the cells as plain Python, in the order in which they ran; the last one failed.
        names: what each is called.
        head: comment lines to begin with.
        line: where in the failed cell the bad operation was called; None where that is unknown.
            What stands after it is left out.

    Raises :class:`CannotWriteError` for cells that no script can hold.

    """
    try:
        items = statements(sources)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CannotWriteError(messages.SCRIPT_NO_PYTHON) from error
    own = [n for n, item in enumerate(items) if item.cell == len(sources) - 1]
    if not own:
        raise CannotWriteError(messages.SCRIPT_NO_PYTHON)
    if line is not None:
        before = [n for n in own if items[n].line <= line]
        last = before[-1] if before else own[-1]
        items, targets = items[: last + 1], [last]
    else:
        targets = own
    if any(facts_of(item.node).awaits for item in items):
        raise CannotWriteError(messages.SCRIPT_AWAITS)
    if _uses(items, "get_ipython"):  # magics are comments by now
        raise CannotWriteError(messages.SCRIPT_IPYTHON)
    why = ""
    scripts = []
    try:
        kept = needed(items, targets)
    except CannotSliceError as error:
        why = messages.SCRIPT_NOT_CUT.format(what=error)
    else:
        if len(kept) < len(items):
            scripts.append(CellsScript(_text(kept, names, head), False, "", len(kept), len(items)))
    whole = _verbatim(sources, items, names, head)
    scripts.append(CellsScript(whole, True, why, len(items), len(items)))
    if all(len(script.text) > MAX_TEXT for script in scripts):
        raise CannotWriteError(messages.SCRIPT_TOO_LONG)
    return [script for script in scripts if len(script.text) <= MAX_TEXT]


def _verbatim(
    sources: Sequence[str], items: Sequence[Statement], names: Sequence[str], head: Sequence[str]
) -> str:
    """Return all cells with their comments, the failed one as far as its statements go."""
    if any(_is_future(item.node) for item in items):  # these must come first
        return _text(items, names, head)
    last = "\n".join(item.text for item in items if item.cell == len(sources) - 1)
    lines = [*map(comment, head), *_shown(items)]
    for name, source in zip(names, [*sources[:-1], last], strict=True):
        lines += ["", comment(name), source.rstrip("\n")]
    return _clean(lines)


def _text(items: Sequence[Statement], names: Sequence[str], head: Sequence[str]) -> str:
    lines = [comment(line) for line in head]
    future = [item for item in items if _is_future(item.node)]
    lines += [*(item.text for item in future), *_shown(items)]
    cell = -1
    for item in items:
        if _is_future(item.node):
            continue
        if item.cell != cell:
            cell = item.cell
            lines += ["", comment(names[cell])]
        lines.append(item.text)
    return _clean(lines)


def _shown(items: Sequence[Statement]) -> list[str]:
    """Return the import of what a notebook has without one."""
    return ["from IPython.display import display"] if _uses(items, "display") else []


def _uses(items: Sequence[Statement], name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name
        for item in items
        for node in ast.walk(item.node)
    )


def _clean(lines: Sequence[str]) -> str:
    text = "\n".join(lines) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
