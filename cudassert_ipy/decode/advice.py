"""What to do next about a failure, and what not to bother with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.decode.catalog import catalog

if TYPE_CHECKING:
    from cudassert_ipy.model import Assertion, Failure

_MAX_CAUSES = 3


def advice(failure: Failure, *, mentions_dsa: bool = False) -> tuple[str, ...]:
    """Return sentences, most useful first; ``mentions_dsa``: the text suggests that switch."""
    if failure.kind == "not_cuda":
        return ()
    lines: list[str] = []
    if failure.process == "child":
        lines.append(messages.ADVICE_CHILD)
    if failure.kind == "device_assert":
        lines += _assertion_advice(failure.assertions)
    by_kind = messages.ADVICE_BY_KIND.get(failure.kind)
    if by_kind:
        lines.append(by_kind)
    elif failure.kind == "cuda_error" and not failure.sticky:
        unsure = failure.sticky is None
        lines.append(messages.ADVICE_UNSURE if unsure else messages.ADVICE_ALIVE)
    if failure.sticky:
        if failure.process == "this":
            lines.append(messages.ADVICE_RESTART)
        if failure.blocking is not True and failure.kind != "launch_timeout":
            lines.append(messages.ADVICE_EXACT_LINE[failure.platform])
        if mentions_dsa:
            lines.append(messages.ADVICE_DSA)
    return tuple(lines)


def _assertion_advice(assertions: tuple[Assertion, ...]) -> list[str]:
    known = next((item for item in assertions if item.known), None)
    row = catalog().find(known.expression, known.file, known.function) if known else None
    if row is None:
        return [messages.ADVICE_ON_CPU]
    return [messages.ADVICE_CAUSES.format(causes="; ".join(row.causes[:_MAX_CAUSES]))]
