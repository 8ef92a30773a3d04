"""What a scan found, and how it reads."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cudassert_ipy import messages
from cudassert_ipy.report.clean import clean_line
from cudassert_ipy.report.numbers import allowed, bounds, count, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudassert_ipy.model import Finding

End: TypeAlias = Literal["complete", "stopped", "interrupted"]

_SHOWN_LINES = 20
_SHOWN_ITEMS = 6


@dataclass(frozen=True, slots=True)
class BadTensor:
    """One tensor of one batch with bad values."""

    batch: int
    """The number of the batch, counted from 0."""
    finding: Finding
    rows: tuple[int, ...] = ()
    """All rows (indices along dimension 0) with a bad value, up to the scan's limit."""
    dataset_indices: tuple[Any, ...] = ()
    """The samples that hold the bad values: ``loader.dataset[index]``."""
    possible_indices: tuple[Any, ...] = ()
    """Where the samples are not certain: all that may hold them."""


@dataclass(slots=True, repr=False)
class ScanReport:
    """What :func:`cudassert_ipy.scan` found: a sequence of :class:`BadTensor`."""

    entries: list[BadTensor] = field(default_factory=list)
    batches: int = 0
    """Batches that were checked."""
    bad_batches: int = 0
    bad_values: int = 0
    """All bad values, also those that are not listed."""
    bad_tensors: int = 0
    end: End = "complete"
    """Whether all batches were read, the first bad one ended the scan, or the user did."""
    without_rule: tuple[str, ...] = ()
    """Integer tensors for which no rule could be derived from the model."""
    unchecked: dict[str, int] = field(default_factory=dict)
    """Tensors with a rule that could not be applied, and in how many batches."""
    problems: list[str] = field(default_factory=list)
    """Batches that could not be checked, with the reason (the first 20)."""
    no_indices: str | None = None
    """Why dataset indices are not known; None where they are."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, in the order of the batches."""
        return tuple(entry.finding for entry in self.entries)

    @property
    def dataset_indices(self) -> tuple[Any, ...]:
        """Each sample with bad values once, in the order of the batches; only certain ones."""
        found = (index for entry in self.entries for index in entry.dataset_indices)
        return tuple(dict.fromkeys(_hashable(index) for index in found))

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[BadTensor]:
        return iter(self.entries)

    def __getitem__(self, position: int) -> BadTensor:
        return self.entries[position]

    def __bool__(self) -> bool:
        return self.bad_tensors > 0

    def __repr__(self) -> str:
        lines = [self._headline()]
        if self.entries:
            table = [messages.SCAN_COLUMNS, *self._table()]
            widths = [max(len(line[n]) for line in table) for n in range(len(table[0]))]
            for line in table:
                cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
                lines.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        """Return the same as a table for notebooks; every value is escaped."""
        parts = [f"<p>{html.escape(self._headline())}</p>"]
        if self.entries:
            head = "".join(f"<th>{html.escape(name)}</th>" for name in messages.SCAN_COLUMNS)
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
                for line in self._table()
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts += [f"<p>{html.escape(note)}</p>" for note in self._notes()]
        return "<div>" + "".join(parts) + "</div>"

    def _headline(self) -> str:
        values = {"batches": count(self.batches), "bad": count(self.bad_values)}
        if not self.bad_tensors:
            template = messages.SCAN_GOOD
        else:
            template = messages.SCAN_BAD
            values["bad_batches"] = count(self.bad_batches)
            values["values"] = "value" if self.bad_values == 1 else "values"
        return template.format(**values) + messages.SCAN_END[self.end]

    def _table(self) -> list[tuple[str, ...]]:
        return [
            (
                count(entry.batch),
                _listed(entry.rows, len(entry.rows)),
                clean_line(entry.finding.expression or entry.finding.operand, 60),
                _values(entry.finding),
                _valid(entry.finding),
                _samples(entry),
            )
            for entry in self.entries[:_SHOWN_LINES]
        ]

    def _notes(self) -> list[str]:
        notes = []
        more = self.bad_tensors - min(len(self.entries), _SHOWN_LINES)
        if more > 0:
            notes.append(messages.SCAN_MORE.format(count=count(more)))
        if self.no_indices is not None and self.entries:
            notes.append(self.no_indices)
        if self.without_rule:
            names = ", ".join(self.without_rule[:10])
            notes.append(messages.SCAN_WITHOUT_RULE.format(names=names))
        if self.unchecked:
            names = ", ".join(
                messages.SCAN_UNCHECKED_IN.format(name=name, count=count(number_of))
                for name, number_of in list(self.unchecked.items())[:10]
            )
            notes.append(messages.SCAN_UNCHECKED.format(names=names))
        return notes + self.problems


def _valid(finding: Finding) -> str:
    low, high = bounds(finding)
    if low is None or high is None or high < low:
        return clean_line(allowed(finding) or finding.requirement or "?", 60)
    text = messages.OPERAND_VALID.format(low=number(low), high=number(high))
    if finding.special_values:
        special = ", ".join(number(value) for value in finding.special_values[:4])
        text = messages.OPERAND_VALID_SPECIAL.format(
            low=number(low), high=number(high), special=special
        )
    return text


def _values(finding: Finding) -> str:
    distinct = list(dict.fromkeys(number(value) for value in finding.bad_values))
    text = ", ".join(distinct[:_SHOWN_ITEMS])
    is_cut = len(distinct) > _SHOWN_ITEMS or finding.bad_count > len(finding.bad_values)
    return text + (messages.SCAN_OF.format(count=count(finding.bad_count)) if is_cut else "")


def _samples(entry: BadTensor) -> str:
    if entry.dataset_indices:
        shown = _listed(entry.dataset_indices, len(entry.dataset_indices))
        return f"dataset[{shown}]"
    if entry.possible_indices:
        shown = _listed(entry.possible_indices, len(entry.possible_indices))
        return messages.SCAN_ONE_OF.format(samples=f"dataset[{shown}]")
    return "?"


def _listed(items: tuple[Any, ...], total: int) -> str:
    text = ", ".join(clean_line(repr(item), 40) for item in items[:_SHOWN_ITEMS])
    return text + (messages.SCAN_OF.format(count=count(total)) if total > _SHOWN_ITEMS else "")


def _hashable(index: Any) -> Any:
    return tuple(index) if isinstance(index, list) else index
