"""What a diagnosis says and in which order: all renderers take their words from here.

A view is plain data: clean, bounded, not escaped. The renderers only set it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from cudassert_ipy import messages
from cudassert_ipy.report import numbers
from cudassert_ipy.report.clean import clean_line
from cudassert_ipy.report.finding import (
    finding_details,
    finding_rows,
    finding_title,
    function_of,
    is_by_rule,
    more_rows,
)
from cudassert_ipy.report.parts import Detail, Row, row
from cudassert_ipy.report.phrase import Part, Phrase, as_text, code, join, phrase, plain
from cudassert_ipy.report.source import MarkedSource, marked_source
from cudassert_ipy.report.steps import next_steps

if TYPE_CHECKING:
    from cudassert_ipy.model import Assertion, Diagnosis, Environment, Failure

Tone: TypeAlias = Literal["bad", "good", "unsure", "quiet"]
SIGNS: dict[Tone, str] = {"bad": "✗", "good": "✓", "unsure": "?", "quiet": "·"}
"""Signs beside the color, which alone would not reach everybody."""

_MAX_ASSERTIONS = 5
_MAX_REASONS = 3
# In a kernel the rows about the context and the next steps say the same, about this kernel.
_SAID_BETTER = frozenset(messages.ADVICE_FOR_A_LOG)
_CAUSES = messages.ADVICE_CAUSES.partition("{")[0]


@dataclass(frozen=True, slots=True)
class View:
    """A diagnosis in words."""

    tone: Tone
    title: Phrase
    place: str
    """Cell and line, e.g. ``cell [7], line 5``."""
    simulated: bool
    short: bool
    """Whether the title is all there is to say."""
    source: MarkedSource | None = None
    rows: tuple[Row, ...] = ()
    steps: tuple[Phrase, ...] = ()
    details: tuple[Detail, ...] = ()


def view(diagnosis: Diagnosis) -> View:
    """Return what there is to say."""
    if is_short(diagnosis):
        return _short(diagnosis)
    finding, failure = diagnosis.finding, diagnosis.failure
    if finding is None and failure is None and diagnosis.replay is None:
        return _checked(diagnosis)
    rows: list[Row] = []
    details: list[Detail] = []
    source = None
    tone: Tone
    title, tone = _failure_title(failure), "bad"
    printed = printed_rows(diagnosis)
    if finding is not None:
        title = finding_title(finding)
        source = marked_source(finding)
        rows += finding_rows(diagnosis)
        rows += more_rows(diagnosis.more)
        details += finding_details(finding)
        # The finding has said what happened and what must hold, better than the assertion can.
        kept = ("noticed", "message", "note")
        printed = [
            item
            for item in failure_rows(diagnosis)
            if item.label in {messages.LABELS[key] for key in kept}
        ] + printed
    elif diagnosis.replay is not None:
        outcome = diagnosis.replay.outcome
        title, tone = phrase(messages.REPLAY_TITLES[outcome]), "unsure"
        rows += replay_rows(diagnosis)
        folded = failure_rows(diagnosis)
        if outcome not in ("clean", "raised"):
            # The replay has no answer: what mostly causes this assertion is the best there is.
            typical = [item for item in folded if item.label == messages.LABELS["causes"]]
            rows[1:1] = typical
            folded = [item for item in folded if item not in typical]
        printed = folded + printed
    else:
        rows += failure_rows(diagnosis)
    rows += _context(diagnosis)
    summary = messages.DETAILS_ASSERTION if failure is not None else messages.DETAILS_VERSIONS
    details.append(Detail(summary, tuple(printed)))
    return View(
        tone=tone,
        title=title,
        place=_place(diagnosis),
        simulated=diagnosis.environment.simulated,
        short=False,
        source=source,
        rows=tuple(rows),
        steps=tuple(next_steps(diagnosis)),
        details=tuple(detail for detail in details if detail.rows),
    )


def is_short(diagnosis: Diagnosis) -> bool:
    """Return whether one line says it all: an innocent cell, or an error that kills nothing."""
    if diagnosis.finding is not None or diagnosis.replay is not None:
        return False
    if diagnosis.failure is None or diagnosis.failure.kind == "not_cuda":
        return not diagnosis.tensors
    # The traceback tells the rest.
    return diagnosis.cell.innocent or diagnosis.context == "alive"


def _short(diagnosis: Diagnosis) -> View:
    failure, cell = diagnosis.failure, diagnosis.cell
    if cell.innocent:
        if cell.first_failed is None:
            title = phrase(messages.INNOCENT_UNKNOWN)
        else:
            title = phrase(messages.INNOCENT, cell=numbers.number(cell.first_failed))
        title = join([title, phrase(messages.INNOCENT_NEXT)])
    elif failure is None or failure.kind == "not_cuda":
        title = phrase(messages.NO_CUDA_IN_TEXT)
    else:
        child = [messages.IN_CHILD] if failure.process == "child" else []
        sentences = [messages.KIND_EXPLANATIONS[failure.kind], *child, _alive(diagnosis)]
        title = join([(*_failure_title(failure), Part(".")), *map(phrase, sentences)])
    return View(
        tone="quiet",
        title=title,
        place="",
        simulated=diagnosis.environment.simulated,
        short=True,
    )


def _checked(diagnosis: Diagnosis) -> View:
    """Return the view of a cell that went well and whose operands were looked at."""
    bad = sum(tensor.bad_count > 0 for tensor in diagnosis.tensors)
    template = messages.CHECKED_BAD if bad else messages.CHECKED_GOOD
    return View(
        tone="bad" if bad else "good",
        title=phrase(
            template,
            bad=numbers.count(bad),
            count=numbers.count(len(diagnosis.tensors)),
            tensors="tensor" if len(diagnosis.tensors) == 1 else "tensors",
            hold="holds" if bad == 1 else "hold",
        ),
        place=_place(diagnosis),
        simulated=diagnosis.environment.simulated,
        short=False,
    )


def _failure_title(failure: Failure | None) -> Phrase:
    kind = "cuda_error" if failure is None else failure.kind
    return phrase(messages.FAILURE_TITLE, title=messages.KIND_TITLES[kind])


def _operations(assertion: Assertion) -> list[str]:
    return [clean_line(name, 80) for name in assertion.operations[:6]]


def failure_rows(diagnosis: Diagnosis) -> list[Row]:
    """Return the rows about the error itself: in words, decoded, and where Python noticed it."""
    failure = diagnosis.failure
    if failure is None:
        return []
    rows = [row("what", phrase(messages.KIND_EXPLANATIONS[failure.kind]))]
    if failure.process == "child":
        rows.append(row("note", phrase(messages.IN_CHILD)))
    for assertion in failure.assertions[:_MAX_ASSERTIONS]:
        rows += _assertion_rows(assertion)
    if failure.kind == "device_assert" and not failure.assertions:
        rows.append(row("assertion", phrase(messages.ASSERT_NOT_SEEN)))
    if failure.message and (failure.kind != "device_assert" or failure.code not in (None, 710)):
        rows.append(row("message", code(clean_line(failure.message.strip().partition("\n")[0]))))
    noticed = diagnosis.reported_at
    if noticed is not None and not diagnosis.cell.innocent:
        why = messages.NOTICED_BLOCKING if failure.blocking else messages.NOTICED_ASYNC
        where = f"line {numbers.number(noticed.line)}" if noticed.line is not None else ""
        at = [plain(where)] if where else []
        if noticed.source.strip():
            at.append(code(clean_line(noticed.source.strip(), 100)))
        place = join([*at])
        rows.append(row("noticed", join([*([place] if place else []), phrase(why)], " · ")))
    advice = [text for text in failure.advice if text not in _SAID_BETTER]
    return [*rows, *(_advice_row(text) for text in advice[:4])]


def _advice_row(text: str) -> Row:
    if text.startswith(_CAUSES):
        return row("causes", plain(text.removeprefix(_CAUSES)))
    return row("advice", plain(text))


def printed_rows(diagnosis: Diagnosis) -> list[Row]:
    """Return the assertions as CUDA printed them, and the versions."""
    rows: list[Row] = []
    failure = diagnosis.failure
    assertions = failure.assertions if failure is not None else ()
    for assertion in assertions[:_MAX_ASSERTIONS]:
        rows += _printed_assertion(assertion)
    more = len(assertions) - _MAX_ASSERTIONS
    if more > 0:
        text = messages.MORE_ASSERTIONS.format(count=numbers.count(more))
        rows.append(row("assertion", plain(text)))
    versions = _versions(diagnosis.environment)
    return [*rows, row("versions", plain(versions))] if versions else rows


def _assertion_rows(assertion: Assertion) -> list[Row]:
    rows = []
    if not assertion.known:
        text = [code(clean_line(assertion.expression, 200)), phrase(messages.ASSERT_UNKNOWN)]
        rows.append(row("checked", join(text, " · ")))
    names = _operations(assertion)
    if names:
        *first_names, last = [code(name) for name in names]
        rows.append(
            row("operations", join([*filter(None, [join(first_names, ", ")]), last], " or "))
        )
    if assertion.operand:
        rows.append(row("checked", plain(assertion.operand)))
    if assertion.requirement:
        rows.append(row("must_hold", plain(assertion.requirement)))
    return rows


def _printed_assertion(assertion: Assertion) -> list[Row]:
    where = clean_line(assertion.file.replace("\\", "/").rpartition("/")[2], 80)
    if assertion.line is not None:
        where += f":{numbers.number(assertion.line)}"
    if assertion.function:
        where += f" {clean_line(assertion.function, 80)}"
    text = [code(clean_line(assertion.expression, 200)), plain(where)]
    if assertion.rank is not None:
        text.append(plain(f"rank {numbers.number(assertion.rank)}"))
    rows = [row("assertion", join(text, " · "))]
    first = ""
    if assertion.block and assertion.thread:
        first = messages.ASSERT_FIRST.format(
            block=numbers.shape(assertion.block), thread=numbers.shape(assertion.thread)
        )
    threads = messages.ASSERT_ONE_THREAD if assertion.count == 1 else messages.ASSERT_THREADS
    if first or assertion.count > 1:
        text_of = threads.format(count=numbers.count(assertion.count), first=first)
        rows.append(row("threads", plain(text_of)))
    if assertion.values:
        shown = [f"{clean_line(k, 40)} = {clean_line(v, 40)}" for k, v in assertion.values.items()]
        rows.append(row("values", plain(", ".join(shown[:6]))))
    return rows


def replay_rows(diagnosis: Diagnosis) -> list[Row]:
    """Return the rows about a replay that brought no finding."""
    replay = diagnosis.replay
    if replay is None:
        return []
    duration = numbers.seconds(replay.seconds)
    said = messages.REPLAY_TEXTS[replay.outcome]
    if replay.outcome == "clean" and replay.reasons:
        said = messages.REPLAY_RULED_OUT
    text = phrase(said, seconds=duration)
    if replay.outcome == "clean" and replay.where == "gpu":
        text = join([phrase(messages.REPLAY_RERUN_CLEAN), text])
    rows = [row("result", text)]
    if replay.outcome == "clean":
        rows += [row("open", plain(reason)) for reason in replay.reasons[:_MAX_REASONS]]
    if replay.substituted > 0:
        # No count: many of those are gradients and buffers that the user never named.
        rows.append(row("lost", phrase(messages.SUBSTITUTED)))
    if replay.note:
        rows.append(row("note", plain(replay.note)))
    if replay.exception:
        rows.append(row("exception", code(clean_line(replay.exception, 400))))
    how = phrase(
        messages.REPLAY_HOW,
        where=messages.REPLAY_WHERE[replay.where],
        seconds=duration,
        state=messages.REPLAY_STATES[replay.state],
    )
    return [*rows, row("replay", how)]


def _context(diagnosis: Diagnosis) -> list[Row]:
    state = diagnosis.context
    if state == "dead":
        rows = [row("context", phrase(messages.CONTEXT_DEAD))]
        if diagnosis.finding is None and diagnosis.replay is None:
            rows.append(row("lost", join([phrase(messages.LOST), phrase(messages.KEPT)])))
        return rows
    if state == "alive":
        replay = diagnosis.replay
        by_rule = diagnosis.finding is not None and is_by_rule(diagnosis.finding)
        if replay is not None and replay.state == "guard" and (by_rule or replay.where == "cpu"):
            return []  # no device took part
        return [row("context", phrase(_alive(diagnosis)))]
    return [row("context", phrase(messages.CONTEXT_UNKNOWN))]


def _alive(diagnosis: Diagnosis) -> str:
    """Return why the context is alive: it never died, the guard stepped in, or a restart."""
    replay = diagnosis.replay
    if diagnosis.cell.first_failed is not None or (replay is not None and replay.state == "rerun"):
        return messages.CONTEXT_RESTARTED
    if replay is not None and replay.state == "guard":
        return messages.CONTEXT_GUARD
    return messages.CONTEXT_ALIVE


def _place(diagnosis: Diagnosis) -> str:
    number = diagnosis.cell.execution_count
    places = [] if number is None else [f"cell [{numbers.number(number)}]"]
    finding = diagnosis.finding
    if finding is None or finding.line is None:
        return ", ".join(places)
    if len(finding.frames) < 2:
        places.append(f"line {numbers.number(finding.line)}")
        return ", ".join(places)
    # The accused line is in a function that the cell called: its number is not the cell's.
    places.append(f"line {numbers.number(finding.frames[0].line)}")
    inner = finding.frames[-1]
    return f"{', '.join(places)} → {function_of(inner)}, line {numbers.number(inner.line)}"


def _versions(environment: Environment) -> str:
    named = [
        ("Python", environment.python),
        ("torch", environment.torch),
        ("CUDA", environment.cuda),
        ("driver", environment.driver),
        ("GPU", environment.gpu),
        ("ipykernel", environment.ipykernel),
        ("in", environment.front_end),
    ]
    return " · ".join(f"{name} {clean_line(value, 60)}" for name, value in named if value)


def one_line(diagnosis: Diagnosis) -> str:
    """Return the line that stands above the traceback."""
    if is_short(diagnosis):
        text = as_text(_short(diagnosis).title, "`")
    elif diagnosis.finding is not None:
        context = messages.ONE_LINE_DEAD if diagnosis.context == "dead" else ""
        by_rule = is_by_rule(diagnosis.finding)  # no fact about GPUs
        if diagnosis.replay is not None and diagnosis.replay.state == "guard" and not by_rule:
            on_cpu = diagnosis.replay.where == "cpu"
            context = messages.ONE_LINE_GUARD_CPU if on_cpu else messages.ONE_LINE_GUARD
        title = as_text(finding_title(diagnosis.finding))
        text = " ".join(filter(None, [f"{title}.", context, messages.ONE_LINE_DETAILS]))
    else:
        text = _one_line_of_failure(diagnosis)
    simulated = f" ({messages.ONE_LINE_SIMULATED})" if diagnosis.environment.simulated else ""
    return clean_line(f"cudassert_ipy: {text}{simulated}", 600)


def _one_line_of_failure(diagnosis: Diagnosis) -> str:
    failure = diagnosis.failure
    kind = "cuda_error" if failure is None else failure.kind
    names = _operations(failure.assertions[0]) if failure and failure.assertions else []
    what = messages.ONE_LINE_IN.format(operations=" or ".join(names)) if names else ""
    title = messages.ONE_LINE_TITLE.format(title=messages.KIND_TITLES[kind], what=what)
    context = messages.ONE_LINE_DEAD if diagnosis.context == "dead" else ""
    if diagnosis.context == "unknown":
        context = messages.CONTEXT_UNKNOWN
    if diagnosis.reported_at is None:
        place = messages.ONE_LINE_NO_PLACE
    elif failure is not None and failure.blocking:
        place = messages.ONE_LINE_BLOCKING
    else:
        place = messages.ONE_LINE_PLACE
    return " ".join(filter(None, [title, context, place]))
