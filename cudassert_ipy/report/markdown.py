"""A diagnosis as Markdown, made to be pasted into an issue of some project."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.report.clean import clean_line, hide_home
from cudassert_ipy.report.log import log_view, printed_lines, requirement, ruled_out
from cudassert_ipy.report.numbers import count
from cudassert_ipy.report.private import without_values
from cudassert_ipy.report.tensors import tensor_lines
from cudassert_ipy.report.view import view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cudassert_ipy.model import Diagnosis, Failure
    from cudassert_ipy.report.parts import Row
    from cudassert_ipy.report.phrase import Part, Phrase
    from cudassert_ipy.report.source import MarkedSource

_BACKTICKS = re.compile(r"`+")
# Brackets alone do nothing; what would make a link or an image of them is escaped.
_SPECIAL = re.compile(r"([\\`*_<>~&]|\](?=[(\[:]))")
# Words that a forge turns into a mention, a reference, a link or mathematics; only code keeps them
# from it: on GitHub not even a backslash makes a dollar sign plain.
_LINKED = re.compile(
    r"[@$]|#\d|://|www\.|GH-\d|(?<![0-9a-z])[0-9a-f]{7,40}(?![0-9a-z])", re.IGNORECASE
)


def render_markdown(diagnosis: Diagnosis, *, show_values: bool = True) -> str:
    """Return the diagnosis as Markdown that mentions nobody, embeds nothing and names no home.

    Source lines and, with ``show_values``, tensor values are in it: show it before it is sent.
    """
    if not show_values:
        diagnosis = without_values(diagnosis)
    said = view(diagnosis)
    place = f" ({_plain(said.place)})" if said.place else ""
    lines = [f"### {messages.MARKDOWN_TITLE}", "", f"{_say(said.title)}{place}", ""]
    if said.simulated:
        lines += [f"*{messages.SIMULATED}*", ""]
    if diagnosis.failure is not None and diagnosis.failure.message:
        first = diagnosis.failure.message.strip().partition("\n")[0]
        lines += [_code(clean_line(first)), ""]
    if said.source is not None:
        lines += [*_source(said.source), ""]
    if said.rows:
        lines += [*_rows(said.rows), ""]
    for detail in said.details:
        lines += [f"**{detail.summary}**", "", *_rows(detail.rows), ""]
    lines += _tensors(diagnosis)
    lines.append(f"*{messages.REPORT_FOOTER}*")
    return "\n".join(lines) + "\n"


def render_failure_markdown(
    failure: Failure,
    *,
    title: str = "",
    place: str = "",
    versions: Mapping[str, str] | None = None,
) -> str:
    """Return the failure that was found in a log as short Markdown, safe to paste like the other.

    ``title`` is the name of the log, ``place`` the notebook cell, ``versions`` what the log says of
    torch and the rest.
    """
    said = log_view(failure)
    heading = f": {_code(clean_line(title))}" if title else ""
    lines = [f"### {messages.MARKDOWN_TITLE}{heading}", "", _say(said.verdict), ""]
    if said.found:
        lines += [*_block("text", printed_lines(failure)), ""]
    facts = [
        (messages.LABELS["noticed"], place),
        (messages.LABELS["must_hold"], requirement(failure)),
        (messages.LABELS["ruled_out"], ruled_out(failure)),
        (messages.LABELS["versions"], _versions(versions or {})),
    ]
    facts = [(label, _plain(clean_line(text, 600))) for label, text in facts if text]
    if facts:
        lines += [*(f"- **{label}:** {text}" for label, text in facts), ""]
    lines.append(f"*{messages.REPORT_FOOTER}*")
    return "\n".join(lines) + "\n"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{messages.LOG_VERSIONS[name]} {text}" for name, text in versions.items())


def _say(item: Phrase) -> str:
    return "".join(_part(part) for part in item)


def _part(part: Part) -> str:
    if part.style == "code":
        return _code(part.text)
    if part.style == "strong":
        return f"**{_plain(part.text)}**"
    return _plain(part.text)


def _code(text: str) -> str:
    """Return ``text`` as a code span whose fence is longer than any run of backticks in it."""
    text = hide_home(text)
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if not text or text[0] in " `" or text[-1] in " `" else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _plain(text: str) -> str:
    words = hide_home(text).split(" ")
    return " ".join(
        _code(word) if _LINKED.search(word) else _SPECIAL.sub(r"\\\1", word) for word in words
    )


def _rows(rows: Iterable[Row]) -> list[str]:
    return [f"- **{row.label}:** {_say(row.text)}" for row in rows]


def _source(source: MarkedSource) -> list[str]:
    lines = [source.text]
    if source.marked and hide_home(source.text) == source.text:
        lines.append(" " * len(source.before) + "^" * len(source.marked))
    return _block("python", lines)


def _block(language: str, lines: Iterable[str]) -> list[str]:
    """Return a code block whose fence is longer than any run of backticks in it."""
    shown = [hide_home(line) for line in lines]
    longest = max((len(run) for line in shown for run in _BACKTICKS.findall(line)), default=0)
    fence = "`" * max(longest + 1, 3)
    return [f"{fence}{language}", *shown, fence]


def _tensors(diagnosis: Diagnosis) -> list[str]:
    lines, more = tensor_lines(diagnosis)
    if not lines:
        return []
    table = [
        _table_row(messages.TENSORS_HEAD),
        _table_row(["---"] * len(messages.TENSORS_HEAD)),
        *(_table_row([_cell(cell) for cell in line.cells]) for line in lines),
    ]
    if more:
        table += ["", messages.TENSORS_MORE.format(count=count(more))]
    return [*table, ""]


def _cell(text: str) -> str:
    # In a table even a code span must not hold a bare vertical bar.
    return _code(text).replace("|", "\\|") if text else ""


def _table_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
