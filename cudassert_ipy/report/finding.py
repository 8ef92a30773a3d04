"""What a finding says: title, rows and what unfolds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.model import MAX_POSITIONS, Diagnosis, Finding, Frame, Holder
from cudassert_ipy.report import numbers
from cudassert_ipy.report.clean import clean_line
from cudassert_ipy.report.origin import origin_rows
from cudassert_ipy.report.parts import Detail, Row, row
from cudassert_ipy.report.phrase import Phrase, code, join, phrase, plain
from cudassert_ipy.report.picture import picture, text_bar
from cudassert_ipy.report.places import function_in, line_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_POSITIONS = 4
_SHOWN_ROWS = 12
_SHOWN_MORE = 5


def finding_title(finding: Finding) -> Phrase:
    """Return the headline, e.g. ``3 of 512 values in ids are out of range for embedding``."""
    name, operation = code(operand_name(finding)), code(short_operation(finding.operation))
    if finding.bad_count < 1:
        return phrase(messages.FINDING_TITLE_PLAIN, name=name, operation=operation)
    total = max(numbers.size(finding), finding.bad_count)
    template = messages.FINDING_TITLE
    if is_by_rule(finding):
        template = messages.FINDING_TITLE_RULE
    elif _holder(finding) is not None:
        template = messages.FINDING_TITLE_HOLDER
    return phrase(
        template,
        count=numbers.count(finding.bad_count),
        total=numbers.count(total),
        values="value" if total == 1 else "values",
        verb="is" if finding.bad_count == 1 else "are",
        name=name,
        operation=operation,
    )


def is_by_rule(finding: Finding) -> bool:
    """Whether the finding is about a batch and a rule of the user's own: no operation took part."""
    return not finding.aten and finding.operation == "check_batch"


def operand_name(finding: Finding) -> str:
    """Return what the user wrote for the operand or for what it was made from.

    Else the operation's own name for it.
    """
    holder = _holder(finding)
    named = finding.expression if holder is None else holder.expression
    return clean_line(named or finding.operand or "operand", 60)


def _holder(finding: Finding) -> Holder | None:
    return finding.holder if not finding.expression else None


def short_operation(operation: str) -> str:
    """Return the last part of a dotted name; ``x[index]`` and the like stay as they are."""
    name = clean_line(operation, 80)
    dotted = name.replace(".", "").replace("_", "").isalnum()
    return name.rpartition(".")[2] if dotted else name


def finding_rows(diagnosis: Diagnosis) -> list[Row]:
    """Return the facts of the finding of ``diagnosis``, the most telling first."""
    finding, replay = diagnosis.finding, diagnosis.replay
    if finding is None:
        return []
    rows = [row("operand", _operand(finding))]
    if _holder(finding) is not None:
        rows.append(row("holder", _held(finding)))
    if finding.library is not None:
        rows.append(row("library", _frame(finding.library)))
    limits = numbers.allowed(finding)
    if limits:
        rows.append(row("allowed", plain(limits)))
    elif finding.requirement:
        rows.append(row("allowed", plain(finding.requirement)))
    drawing = picture(finding)
    if drawing is not None:
        rows.append(row("range", plain(text_bar(drawing)), drawing))
    offenders = _offenders(finding, _SHOWN_POSITIONS)
    if offenders:
        rows.append(row("bad", offenders))
    # A vector's batch rows are its positions; saying them twice helps nobody.
    if finding.batch_rows and len(finding.shape) > 1:
        rows.append(row("rows", plain(_batch_rows(finding))))
    if finding.dataset_indices:
        rows.append(row("items", plain(_dataset_items(finding))))
    if finding.hint:
        rows.append(row("hint", plain(finding.hint)))
    rows += origin_rows(finding)
    # The guard's own exception says what stands above already.
    if replay is not None and replay.exception and replay.state != "guard":
        rows.append(row("cpu_torch", code(clean_line(replay.exception, 300))))
    rows.append(row("certainty", _certainty(diagnosis, finding)))
    if replay is not None and replay.note:
        rows.append(row("note", plain(replay.note)))
    return rows


def more_rows(more: Sequence[Finding]) -> list[Row]:
    """Return one row for each further bad operand, and how many are not shown."""
    rows = [row("more", _other(item)) for item in more[:_SHOWN_MORE]]
    left = len(more) - _SHOWN_MORE
    if left > 0:
        rows.append(row("more", plain(messages.MORE_FINDINGS.format(count=numbers.count(left)))))
    return rows


def finding_details(finding: Finding) -> list[Detail]:
    """Return what unfolds: more positions, and the calls from the cell inwards."""
    details = []
    known = min(len(finding.bad_positions), MAX_POSITIONS)
    if known > _SHOWN_POSITIONS and not numbers.is_all_nan(finding):
        template = messages.DETAILS_POSITIONS
        if known == finding.bad_count:
            template = messages.DETAILS_ALL_POSITIONS
        summary = template.format(
            count=numbers.count(known), total=numbers.count(finding.bad_count)
        )
        rows = (row("positions", _offenders(finding, MAX_POSITIONS)),)
        details.append(Detail(summary, rows))
    if len(finding.frames) > 1:
        details.append(
            Detail(
                messages.DETAILS_FRAMES,
                tuple(
                    row(
                        "frames",
                        _frame(f),
                    )
                    for f in finding.frames[:10]
                ),
            )
        )
    return details


def function_of(frame: Frame) -> str:
    """Return a function and where it stands, e.g. ``Net.forward in model.py``."""
    return function_in(frame.function, frame.file)


def position_texts(finding: Finding, limit: int) -> list[str]:
    """Return ``value at [position], [position]`` of the first offending values, value by value."""
    places: dict[str, list[str]] = {}
    for index, position in enumerate(finding.bad_positions[:limit]):
        known = index < len(finding.bad_values)
        value = numbers.number(finding.bad_values[index]) if known else ""
        places.setdefault(value, []).append(numbers.shape(position))
    return [
        messages.BAD_AT.format(value=value, positions=", ".join(found)).strip()
        if value
        else ", ".join(found)
        for value, found in places.items()
    ]


def _frame(frame: Frame) -> Phrase:
    where = plain(f"{function_of(frame)}, line {numbers.number(frame.line)}")
    return join([where, code(clean_line(frame.source.strip(), 120))], ": ")


def _held(finding: Finding) -> Phrase:
    """Return the user's tensor and where in it the values stand."""
    holder = _holder(finding)
    if holder is None:
        return ()
    kind = " ".join(filter(None, [clean_line(holder.dtype, 40), numbers.shape(holder.shape)]))
    shown = [numbers.shape(position) for position in holder.positions[:_SHOWN_POSITIONS]]
    more = len(holder.positions) > _SHOWN_POSITIONS
    there = messages.HELD_AT.format(positions=", ".join(shown) + (", …" if more else ""))
    return join([code(clean_line(holder.expression, 60)), plain(kind), plain(there)], " · ")


def _operand(finding: Finding) -> Phrase:
    held = _holder(finding) is not None
    parts = [code(clean_line(finding.operand, 60) if held else operand_name(finding))]
    kind = " ".join(filter(None, [clean_line(finding.dtype, 40), numbers.shape(finding.shape)]))
    parts.append(plain(kind))
    if numbers.is_all_nan(finding):
        parts.append(plain(messages.ALL_NAN))
    elif finding.minimum is not None or finding.maximum is not None:
        low, high = numbers.number(finding.minimum), numbers.number(finding.maximum)
        parts.append(plain(f"min {low}, max {high}"))
    role = clean_line(finding.operand, 40)
    operation = clean_line(finding.operation, 80)
    if operation and not is_by_rule(finding):
        parts.append(
            phrase("{role} of {op:code}" if role else "{op:code}", role=role, op=operation)
        )
    return join(parts, " · ")


def _offenders(finding: Finding, limit: int) -> Phrase:
    if numbers.is_all_nan(finding):
        return plain(messages.ALL_NAN)
    texts = position_texts(finding, limit)
    if finding.nan_count > 0 and not any("NaN" in text for text in texts):
        nan = messages.NAN_COUNT.format(count=numbers.count(finding.nan_count))
        texts.insert(0, nan)
    more = finding.bad_count - min(len(finding.bad_positions), limit)
    if texts and more > 0 and finding.bad_positions:
        texts.append(messages.AND_MORE.format(count=numbers.count(more)))
    return plain("; ".join(texts), 2000) if texts else ()


def _batch_rows(finding: Finding) -> str:
    shown = [numbers.number(item) for item in finding.batch_rows[:_SHOWN_ROWS]]
    more = len(finding.batch_rows) > _SHOWN_ROWS or len(finding.batch_rows) >= MAX_POSITIONS
    return ", ".join(shown) + (", …" if more else "")


def _dataset_items(finding: Finding) -> str:
    """Return ``dataset[4711], dataset[12], …``."""
    indices = finding.dataset_indices[:_SHOWN_ROWS]
    shown = ", ".join(f"dataset[{numbers.number(index)}]" for index in indices)
    return shown + (", …" if len(finding.dataset_indices) > _SHOWN_ROWS else "")


_DOUBTS = tuple(
    text.partition("{")[0] for text in (messages.DOUBT_CHANGED, messages.DOUBT_OPERATION)
)
"""How a note begins that says itself why a finding is not certain: no zeros are to blame."""


def _certainty(diagnosis: Diagnosis, finding: Finding) -> Phrase:
    replay = diagnosis.replay
    if finding.certainty == "depends_on_substitutes":
        note = "" if replay is None else replay.note or ""
        noted = replay is not None and bool(note) and replay.substituted == 0
        noted = noted or any(doubt in note for doubt in _DOUBTS)
        return phrase(messages.NOT_CERTAIN_NOTE if noted else messages.NOT_CERTAIN)
    if replay is None or replay.state != "guard":
        return phrase(messages.CERTAIN)
    if is_by_rule(finding):
        return phrase(messages.CERTAIN_RULE)
    on_cpu = replay.where == "cpu"
    return phrase(messages.CERTAIN_GUARD_CPU if on_cpu else messages.CERTAIN_GUARD)


def _other(finding: Finding) -> Phrase:
    inner = finding.frames[-1] if finding.frames else None
    where = line_of(finding.line, inner.function if inner else "", inner.file if inner else "")
    parts = [plain(where)] if where else []
    parts.append(
        phrase(
            messages.MORE_FINDING,
            name=code(operand_name(finding)),
            operation=code(short_operation(finding.operation)),
            count=numbers.count(finding.bad_count),
            total=numbers.count(max(numbers.size(finding), finding.bad_count)),
        )
    )
    if finding.minimum is not None or finding.maximum is not None:
        low, high = numbers.number(finding.minimum), numbers.number(finding.maximum)
        parts.append(plain(f"min {low}, max {high}"))
    limits = numbers.allowed(finding) or finding.requirement
    if limits:
        parts.append(plain(messages.MORE_ALLOWED.format(limits=clean_line(limits, 200))))
    return join(parts, " · ")
