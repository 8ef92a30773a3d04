"""A diagnosis without tensor values, for notebooks that are saved and shared."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudassert_ipy.model import Diagnosis, Finding

_TYPE = re.compile(r"[A-Za-z_][\w.]{0,80}(?:Error|Exception|Exit|Interrupt)(?=:|$)")


def without_values(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis without the values of tensors.

    Shapes, types, valid ranges, counts and positions stay, and so does the source line. The hint
    goes, since it may be made from a value; of the replay's exception only the type stays, since
    CPU torch writes the offending value into its message.
    """
    finding, replay, failure = diagnosis.finding, diagnosis.replay, diagnosis.failure
    if finding is not None:
        finding = _valueless(finding)
    more = tuple(_valueless(item) for item in diagnosis.more)
    if replay is not None and replay.exception is not None:
        kind = _TYPE.match(replay.exception)
        replay = replace(replay, exception=kind[0] if kind else None)
    if failure is not None:
        assertions = tuple(replace(item, values=None) for item in failure.assertions)
        failure = replace(failure, assertions=assertions)
    rows = tuple(replace(row, minimum=None, maximum=None) for row in diagnosis.tensors)
    return replace(
        diagnosis, finding=finding, more=more, replay=replay, failure=failure, tensors=rows
    )


def _valueless(finding: Finding) -> Finding:
    origin = tuple(
        replace(
            step,
            minimum=None,
            maximum=None,
            given_minimum=None,
            given_maximum=None,
            note="",
        )
        for step in finding.origin
    )
    return replace(finding, minimum=None, maximum=None, bad_values=(), hint="", origin=origin)
