"""A diagnosis without tensor values, for notebooks that are saved and shared."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudassert_ipy.model import Diagnosis

_TYPE = re.compile(r"[A-Za-z_][\w.]{0,80}(?:Error|Exception|Exit|Interrupt)(?=:|$)")


def without_values(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis without the values of tensors.

    Shapes, types, valid ranges, counts and positions stay, and so does the source line. The hint
    goes, since it may be made from a value; of the replay's exception only the type stays, since
    CPU torch writes the offending value into its message.
    """
    finding, replay, failure = diagnosis.finding, diagnosis.replay, diagnosis.failure
    if finding is not None:
        finding = replace(finding, minimum=None, maximum=None, bad_values=(), hint="")
    if replay is not None and replay.exception is not None:
        kind = _TYPE.match(replay.exception)
        replay = replace(replay, exception=kind[0] if kind else None)
    if failure is not None:
        assertions = tuple(replace(item, values=None) for item in failure.assertions)
        failure = replace(failure, assertions=assertions)
    rows = tuple(replace(row, minimum=None, maximum=None) for row in diagnosis.tensors)
    return replace(diagnosis, finding=finding, replay=replay, failure=failure, tensors=rows)
