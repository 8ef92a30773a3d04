"""What there is to say about a failure that a log tells of: a verdict, then what it rests on.

Plain data like :mod:`cudassert_ipy.report.view`, for the text and the Markdown renderer. Nothing in
it speaks of "this kernel" or of buttons: the reader has a file, and the process is long gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.provenance import author, library
from cudassert_ipy.report import numbers
from cudassert_ipy.report.clean import clean_line
from cudassert_ipy.report.parts import Row, row
from cudassert_ipy.report.phrase import Phrase, code, join, phrase, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.model import Assertion, Failure

_MAX_OPERATIONS = 3
_MAX_OTHERS = 5
_MAX_RANKS = 8
_MAX_VALUES = 6
_MAX_OTHER = 42
_MAX_MESSAGE = 200
_MAX_IN_VERDICT = 100
_MODULES = re.compile(r"^torch\.(?:nn\.functional\.)?")
# Triton and compiled Python know no place and print one nevertheless.
_NOWHERE = re.compile(r"(?:unknown|<.*>)?$")


@dataclass(frozen=True, slots=True)
class Check:
    """One assertion, with the threads and the ranks of all the lines that repeat it."""

    assertion: Assertion
    count: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogView:
    """A failure in words; the first check is the one that decides."""

    found: bool
    verdict: Phrase
    rows: tuple[Row, ...] = ()
    steps: tuple[str, ...] = ()


def log_view(failure: Failure) -> LogView:
    """Return what to say about ``failure``."""
    if failure.kind == "not_cuda":
        advice = tuple(clean_line(text, 600) for text in failure.advice)
        return LogView(found=False, verdict=_nothing(failure), steps=advice)
    checks = _checks(failure.assertions)
    verdict = join([_what(failure, checks), _state(failure)])
    rows = _rows_of_first(checks[0]) if checks else []
    rows += [row("also", _other(check, checks[0])) for check in checks[1 : 1 + _MAX_OTHERS]]
    if len(checks) > 1 + _MAX_OTHERS:
        more = numbers.count(len(checks) - 1 - _MAX_OTHERS)
        rows.append(row("also", plain(messages.MORE_ASSERTIONS.format(count=more))))
    if not _says_only_the_kind(failure):
        rows.append(row("message", code(_message(failure, _MAX_MESSAGE))))
    steps = []
    for text in failure.advice:
        if text.startswith(_CAUSES):
            rows.append(row("causes", plain(text.removeprefix(_CAUSES))))
        elif text not in _IN_THE_VERDICT:
            steps.append(clean_line(text, 600))
    return LogView(found=True, verdict=verdict, rows=tuple(rows), steps=tuple(steps))


_CAUSES = messages.ADVICE_CAUSES.partition("{")[0]
_NOT_STARTED = frozenset(
    {
        messages.ADVICE_NOT_STARTED,
        *(text for code, text in messages.ADVICE_BY_CODE.items() if code in (35, 46, 100)),
    }
)
_IN_THE_VERDICT = frozenset({messages.ADVICE_CHILD, messages.ADVICE_ALIVE})


def ruled_out(failure: Failure) -> str:
    """Return what the failure shows not to be the cause; empty if it shows nothing."""
    if failure.assertions and failure.assertions[0].known:
        return messages.LOG_RULED_OUT["known_assertion"]
    texts = messages.LOG_RULED_OUT
    return texts.get(failure.kind) or (texts["alive"] if failure.sticky is False else "")


def requirement(failure: Failure) -> str:
    """Return what the check that decides demands; empty if there is none."""
    checks = _checks(failure.assertions)
    return checks[0].assertion.requirement if checks else ""


def printed_lines(failure: Failure) -> list[str]:
    """Return the error and the first assertions about as they were printed, one line each."""
    lines = [] if not failure.message else [_message(failure, 500)]
    checks = _checks(failure.assertions)
    for check in checks[: 1 + _MAX_OTHERS]:
        place = clean_line(check.assertion.file, 200)
        if check.assertion.line is not None:
            place += f":{numbers.number(check.assertion.line)}"
        if check.assertion.function:
            place += f": {clean_line(check.assertion.function, 120)}"
        expression = clean_line(check.assertion.expression)
        lines.append(f"{place}: Assertion `{expression}` failed.  # {_seen(check)}".lstrip(": "))
    if len(checks) > 1 + _MAX_OTHERS:
        more = numbers.count(len(checks) - 1 - _MAX_OTHERS)
        lines.append("# " + messages.MORE_ASSERTIONS.format(count=more))
    return lines


def _nothing(failure: Failure) -> Phrase:
    message = _message(failure, _MAX_MESSAGE)
    if not message:
        return phrase(messages.NO_CUDA_IN_TEXT)
    return join([phrase(messages.NO_CUDA_IN_TEXT), phrase(messages.LOG_LAST, message=message)])


def _what(failure: Failure, checks: Sequence[Check]) -> Phrase:
    if failure.kind != "device_assert":
        if _is_in_verdict(failure):
            message = _message(failure, _MAX_IN_VERDICT)
            return phrase(messages.LOG_CUDA_ERROR, message=message)
        name = library(failure.message) if failure.kind == "library_error" else ""
        if name:
            return phrase(messages.LOG_LIBRARY, library=name, use=messages.LIBRARY_USES[name])
        return phrase(messages.LOG_VERDICTS[failure.kind])
    if not checks:
        return phrase(messages.LOG_ASSERT_NOT_SEEN)
    assertion = checks[0].assertion
    names = _operations(assertion)
    if names and assertion.operand:
        operand = clean_line(assertion.operand, 60)
        return phrase(messages.LOG_ASSERT_OPERAND, operations=names, operand=operand)
    if names:
        return phrase(messages.LOG_ASSERT_IN, operations=names)
    return phrase(messages.LOG_ASSERT)


def _state(failure: Failure) -> Phrase:
    device = "CUDA" if failure.platform == "cuda" else "GPU"
    if failure.process == "child":
        if not failure.sticky:
            return phrase(messages.LOG_CHILD)
        needed = messages.ADVICE_ENGINE in failure.advice
        template = messages.LOG_ENGINE_DEAD if needed else messages.LOG_CHILD_DEAD
        return phrase(template, device=device)
    if not _NOT_STARTED.isdisjoint(failure.advice):
        return phrase(messages.LOG_NOT_STARTED, device=device)
    return phrase(messages.LOG_STATES[failure.context], device=device)


def _operations(assertion: Assertion) -> Phrase:
    """Return the operations, the usual one first, each without the modules that it is in."""
    names = [code(name) for name in dict.fromkeys(map(_short_name, assertion.operations))]
    if len(names) > _MAX_OPERATIONS:
        names = [*names[:_MAX_OPERATIONS], plain(messages.LOG_SIMILAR)]
    if len(names) < 2:
        return names[0] if names else ()
    return join([join(names[:-1], ", "), names[-1]], " or ")


def _short_name(operation: str) -> str:
    return clean_line(_MODULES.sub("", operation), 80)


def _rows_of_first(check: Check) -> list[Row]:
    assertion = check.assertion
    rows = []
    if assertion.requirement and assertion.requirement != assertion.expression:
        rows.append(row("must_hold", plain(assertion.requirement)))
    condition = join([_printed(assertion), plain(f"· {_seen(check)}")])
    rows.append(row("assertion", condition))
    values = [
        f"{clean_line(key, 40)} = {clean_line(value, 40)}"
        for key, value in (assertion.values or {}).items()
        if str(value) not in assertion.requirement
    ]
    if values:
        rows.append(row("printed", plain(", ".join(values[:_MAX_VALUES]))))
    return rows


def _printed(assertion: Assertion) -> Phrase:
    """Return the condition and where it stands, which is hardly ever the user's own code."""
    expression = clean_line(assertion.expression, 200)
    condition = code(expression) if expression else plain(messages.LOG_NO_EXPRESSION)
    path = assertion.file.replace("\\", "/")
    name = path.rpartition("/")[2]
    if _NOWHERE.match(name):
        return condition
    place = clean_line(name, 60)
    if assertion.line is not None:
        place += f":{numbers.number(assertion.line)}"
    template = messages.LOG_PLACES.get(author(assertion), messages.LOG_PLACE)
    return join([condition, phrase(template, place=place)])


def _other(check: Check, first: Check) -> Phrase:
    """Return a check that failed as well, on about one line."""
    condition = code(clean_line(check.assertion.expression, _MAX_OTHER))
    names = check.assertion.operations
    where: list[Phrase] = []
    if names and names != first.assertion.operations:
        where = [phrase(messages.LOG_OTHER_IN, operation=code(_short_name(names[0])))]
    return join([condition, *where, plain(f"· {_seen(check)}")])


def _seen(check: Check) -> str:
    one = check.count == 1
    template = messages.LOG_ONE_THREAD if one else messages.LOG_THREADS
    text = template.format(count=numbers.count(check.count))
    if not check.ranks:
        return text
    shown = ", ".join(map(numbers.number, check.ranks[:_MAX_RANKS]))
    if len(check.ranks) > _MAX_RANKS:
        more = numbers.count(len(check.ranks) - _MAX_RANKS)
        shown = f"{shown} {messages.AND_MORE.format(count=more)}"
    ranks = messages.LOG_RANK if len(check.ranks) == 1 else messages.LOG_RANKS
    return f"{text}, {ranks.format(ranks=shown)}"


def _checks(assertions: Sequence[Assertion]) -> list[Check]:
    """Return the assertions in order of appearance, those of several ranks as one."""
    groups: dict[tuple[object, ...], list[Assertion]] = {}
    for item in assertions:
        groups.setdefault((item.expression, item.file, item.line, item.function), []).append(item)
    return [
        Check(
            assertion=group[0],
            count=sum(item.count for item in group),
            ranks=tuple(sorted({item.rank for item in group if item.rank is not None})),
        )
        for group in groups.values()
    ]


def _says_only_the_kind(failure: Failure) -> bool:
    """Whether the message has nothing that the verdict does not say."""
    if failure.kind == "device_assert":
        return not failure.message or failure.code in (None, 710)
    return not failure.message or _is_in_verdict(failure)


def _is_in_verdict(failure: Failure) -> bool:
    """Whether the message itself is the best name for the error, and short enough for it."""
    return failure.kind == "cuda_error" and 0 < len(failure.message) <= _MAX_IN_VERDICT


def _message(failure: Failure, limit: int) -> str:
    text = clean_line(failure.message.strip().partition("\n")[0], 4 * limit)
    if len(text) <= limit:
        return text
    return text[: limit - 1].rpartition(" ")[0].rstrip(" ,.;:") + " …"
