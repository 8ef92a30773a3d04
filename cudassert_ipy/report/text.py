"""A diagnosis as plain text, for terminals, logs and the ``text/plain`` of a display bundle."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.report.clean import cut
from cudassert_ipy.report.log import log_view
from cudassert_ipy.report.numbers import count
from cudassert_ipy.report.phrase import as_text
from cudassert_ipy.report.picture import text_bar
from cudassert_ipy.report.private import without_values
from cudassert_ipy.report.tensors import tensor_lines
from cudassert_ipy.report.view import SIGNS, View, one_line, view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from cudassert_ipy.model import Diagnosis, Failure
    from cudassert_ipy.report.parts import Row
    from cudassert_ipy.report.source import MarkedSource

__all__ = ["one_line", "render_failure", "render_text"]

_MIN_WIDTH = 40
_LABEL_WIDTH = 13
_TENSOR_LINES = 12
# Columns of messages.TENSORS_HEAD that fit: tensor, role, shape, type, min, max, allowed, bad.
_TENSOR_COLUMNS = (0, 1, 3, 4, 5, 6, 7, 8)


def render_text(diagnosis: Diagnosis, *, width: int = 88, show_values: bool = True) -> str:
    """Return the diagnosis as text without ANSI codes, wrapped to ``width`` columns (at least 40).

    It says what :func:`cudassert_ipy.report.html.render_html` says; what is folded away there
    follows at the end here.
    """
    if not show_values:
        diagnosis = without_values(diagnosis)
    said = view(diagnosis)
    console = _console(width)
    _print_view(console, said)
    if not said.short:
        _print_tensors(console, diagnosis)
    return _finish(console)


def render_failure(failure: Failure, *, width: int = 88) -> str:
    """Return the failure that was found in a log as text; nothing in it speaks of "this kernel".

    The first line is the verdict, then what it rests on, then what to do. At least 40 columns wide.
    """
    said = log_view(failure)
    verdict = as_text(said.verdict, "`")
    console = _console(width)
    _print_rows(console, _labeled(said.rows, console.width))
    _print_rows(console, [(messages.LABELS["next"], step) for step in said.steps], bullet="-")
    # The first line stays whole, for `head -1`.
    sign = f"{SIGNS['bad']} " if said.found else ""
    return f"{sign}{verdict}\n\n{_finish(console)}".rstrip()


def _console(width: int) -> Console:
    from rich.console import Console

    # Everything is given, so that neither FORCE_COLOR nor a notebook changes the result.
    return Console(
        file=StringIO(),
        width=max(width, _MIN_WIDTH),
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        force_interactive=False,
        legacy_windows=False,
        emoji=False,
        markup=False,
        highlight=False,
    )


def _finish(console: Console) -> str:
    written = console.file
    text = written.getvalue() if isinstance(written, StringIO) else ""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _print_view(console: Console, said: View) -> None:
    from rich.text import Text

    title = as_text(said.title, "`") if said.short else f"{SIGNS[said.tone]} {as_text(said.title)}"
    if said.place:
        title += f"  ({said.place})"
    console.print(Text(title))
    if said.simulated:
        console.print(Text(f"  {messages.SIMULATED}"))
    if said.short:
        return
    console.print()
    if said.source is not None:
        _print_source(console, said.source)
    _print_rows(console, _labeled(said.rows, console.width))
    _print_rows(console, [(messages.LABELS["next"], as_text(step, "`")) for step in said.steps])
    for detail in said.details:
        console.print()
        console.print(Text(f"{detail.summary}:"))
        _print_rows(console, _labeled(detail.rows, console.width))


def _labeled(rows: Iterable[Row], width: int) -> list[tuple[str, str]]:
    # The bar shrinks with the terminal: a folded bar shows nothing.
    bar = min(34, max(8, width - 50))
    return [
        (row.label, text_bar(row.drawing, bar) if row.drawing else as_text(row.text, "`"))
        for row in rows
    ]


def _print_rows(console: Console, rows: list[tuple[str, str]], *, bullet: str = "") -> None:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    grid = Table.grid(padding=(0, 1, 0, 2))
    grid.add_column(width=_LABEL_WIDTH, no_wrap=True)
    if bullet:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    previous = ""
    for label, text in rows:
        marks = [Text(bullet)] if bullet else []
        grid.add_row(Text("" if label == previous else label), *marks, Text(text))
        previous = label
    console.print(grid)


def _print_source(console: Console, source: MarkedSource) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    gutter = f"  {source.line} │ "
    room = console.width - len(gutter) - 1
    before, marked, after = source.before, source.marked, source.after
    if cell_len(source.text) > room:
        before = before if len(before) <= 14 else "… " + before[-12:]
        marked = cut(marked, max(room - cell_len(before), 8))
        after = cut(after, max(room - cell_len(before) - cell_len(marked), 1)) if after else ""
    console.print(
        Text(gutter + before + marked + after), no_wrap=True, crop=False, overflow="ignore"
    )
    if marked:
        carets = "^" * max(cell_len(marked), 1)
        blank = " " * (len(gutter) - 2) + "│ " + " " * cell_len(before)
        console.print(Text(blank + carets), no_wrap=True, crop=False, overflow="ignore")
    console.print()


def _print_tensors(console: Console, diagnosis: Diagnosis) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    lines, more = tensor_lines(diagnosis)
    if not lines:
        return
    more += max(len(lines) - _TENSOR_LINES, 0)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for index in _TENSOR_COLUMNS:
        table.add_column(messages.TENSORS_HEAD[index], overflow="fold")
    for line in lines[:_TENSOR_LINES]:
        table.add_row(*(Text(line.cells[index]) for index in _TENSOR_COLUMNS))
    console.print()
    console.print(Text(messages.DETAILS_TENSORS.format(count=count(len(diagnosis.tensors))) + ":"))
    console.print(table)
    if more:
        console.print(Text(messages.TENSORS_MORE.format(count=count(more))))
