"""How far the result of a replay can be trusted, said in the diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.decode.known_bugs import possible_bugs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.model import Diagnosis, Failure, Finding

_NAMES_SHOWN = 5
_MAX_REASONS = 3


def judge(diagnosis: Diagnosis, changed: Sequence[str], *, fence: bool = True) -> Diagnosis:
    """Return the diagnosis with what speaks against its replay.

    Args:
        diagnosis: with the replay's result in it.
        changed: variables that the cell reads, that it had changed before it failed, and that could
            not be put back for the replay.
        fence: whether each cell waits for the device at its end, so that an error is its own.

    """
    failure, finding, replay = diagnosis.failure, diagnosis.finding, diagnosis.replay
    if replay is None:
        return diagnosis
    doubts = []
    if finding is not None and failure is not None and _is_another(finding, failure):
        names = dict.fromkeys(name for a in failure.assertions for name in a.operations)
        doubts.append(messages.DOUBT_OPERATION.format(operations=" or ".join(names)))
    if replay.state == "after_failure" and changed:
        names_text = ", ".join(changed[:_NAMES_SHOWN])
        doubts.append(messages.DOUBT_CHANGED.format(names=names_text))
    outcome = replay.outcome
    if outcome == "clean" and replay.state == "after_failure" and _asserted(failure):
        # The device did find a bad value: what ran here were not the values of that run.
        outcome = "inconclusive"
        doubts.append(messages.DOUBT_NOT_MET)
    bugs = _bugs(diagnosis)
    if outcome != "clean":
        doubts += bugs
    if doubts:
        note = " ".join([*([replay.note] if replay.note else []), *doubts])
        replay = replace(replay, outcome=outcome, note=note)
        if finding is not None:
            finding = replace(finding, certainty="depends_on_substitutes")
    reasons: tuple[str, ...] = ()
    if replay.outcome == "clean":
        reasons = (*bugs, *replay.reasons, *_by_kind(failure, fence=fence))
    replay = replace(replay, reasons=reasons[:_MAX_REASONS])
    return replace(diagnosis, finding=finding, replay=replay)


def _by_kind(failure: Failure | None, *, fence: bool) -> list[str]:
    """Return what the kind of the error itself leaves open."""
    if failure is None:
        return []
    reasons = []
    if not fence and not failure.blocking:
        reasons.append(messages.OPEN_EARLIER)
    if failure.kind in messages.OPEN_KINDS:
        reasons.append(messages.OPEN_KINDS[failure.kind])
    return reasons


def _bugs(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the known bugs of this torch that fit, where the data turned out to be good."""
    failure, replay, where = diagnosis.failure, diagnosis.replay, diagnosis.environment
    if failure is None or replay is None or replay.outcome != "clean" or where.simulated:
        return ()
    operations = [row.operation for row in diagnosis.tensors]
    return possible_bugs(where.torch, failure, operations=operations)


def _asserted(failure: Failure | None) -> bool:
    return failure is not None and failure.kind == "device_assert"


def _is_another(finding: Finding, failure: Failure) -> bool:
    """Whether the device's own text names operations, and not the one that was found."""
    known = [assertion for assertion in failure.assertions if assertion.known]
    if not known or len(known) < len(failure.assertions):
        return False
    return all(finding.operation not in assertion.operations for assertion in known)
