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


def judge(diagnosis: Diagnosis, changed: Sequence[str]) -> Diagnosis:
    """Return the diagnosis with what speaks against its replay.

    Args:
        diagnosis: with the replay's result in it.
        changed: variables that the cell reads, that it had changed before it failed, and that could
            not be put back for the replay.

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
    said = [*doubts, *_bugs(diagnosis)]
    if not said:
        return diagnosis
    note = " ".join([*([replay.note] if replay.note else []), *said])
    if finding is not None:
        finding = replace(finding, certainty="depends_on_substitutes")
    return replace(diagnosis, finding=finding, replay=replace(replay, outcome=outcome, note=note))


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
