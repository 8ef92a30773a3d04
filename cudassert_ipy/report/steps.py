"""What to do next, after a failure, a finding or a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.report import numbers
from cudassert_ipy.report.finding import function_of, operand_name
from cudassert_ipy.report.phrase import Phrase, phrase

if TYPE_CHECKING:
    from cudassert_ipy.model import Diagnosis

_MEMORY_KINDS = ("illegal_memory_access", "misaligned_address", "launch_failure")


def next_steps(diagnosis: Diagnosis) -> list[Phrase]:
    """Return what to do next, the most useful first."""
    actions = diagnosis.actions
    steps = []
    if diagnosis.finding is not None:
        number = diagnosis.finding.line
        line = "the line" if number is None else f"line {numbers.number(number)}"
        if number is not None and len(diagnosis.finding.frames) > 1:
            inner = diagnosis.finding.frames[-1]
            line = messages.NEXT_FIX_INNER.format(
                line=numbers.number(inner.line), function=function_of(inner)
            )
        elif diagnosis.finding.library is not None:
            line = messages.NEXT_FIX_GIVEN.format(line=line)  # the line itself may be right
        if not diagnosis.finding.aten and diagnosis.finding.expression:
            line = messages.NEXT_FIX_VALUES.format(name=operand_name(diagnosis.finding))
        template = (
            messages.NEXT_FIX_DEAD if diagnosis.context == "dead" else messages.NEXT_FIX_ALIVE
        )
        return [phrase(template, line=line)]
    replay = diagnosis.replay
    if "replay" in actions and (replay is None or replay.outcome in ("timed_out", "cancelled")):
        steps.append(phrase(messages.NEXT_REPLAY))
    if "restart_and_replay" in actions:
        clean = replay is not None and replay.outcome == "clean" and replay.where == "cpu"
        text = messages.NEXT_RESTART_ON_GPU if clean else messages.NEXT_RESTART_AND_REPLAY
        steps.append(phrase(text))
    elif "restart" in actions:
        steps.append(phrase(messages.NEXT_RESTART))
    if not steps and diagnosis.context == "dead":
        steps.append(phrase(messages.NEXT_MANUAL_RESTART))
    if not steps or (replay is not None and replay.outcome in ("clean", "inconclusive")):
        steps.append(phrase(messages.NEXT_BEFORE))
    kind = None if diagnosis.failure is None else diagnosis.failure.kind
    if replay is not None and replay.outcome == "clean" and kind in _MEMORY_KINDS:
        steps.append(phrase(messages.NEXT_SANITIZER))
    return steps
