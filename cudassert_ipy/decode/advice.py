"""What to do next about a failure, and what not to bother with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cudassert_ipy import messages
from cudassert_ipy.decode import codes
from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.decode.known_bugs import possible_bugs

if TYPE_CHECKING:
    from cudassert_ipy.model import Failure

_MAX_CAUSES = 3
_MAX_ADVICE = 4
_INITIALIZATION, _UNKNOWN_ERROR, _CAPTURE = 3, 999, range(900, 909)


class Situation(NamedTuple):
    """What else a text shows that the advice depends on."""

    mentions_dsa: bool = False
    """It suggests TORCH_USE_CUDA_DSA."""
    distributed: bool = False
    """NCCL, DataParallel or DistributedDataParallel is in use."""
    torch_version: str | None = None


def advice(failure: Failure, *, situation: Situation = Situation()) -> tuple[str, ...]:  # noqa: B008  (immutable)
    """Return sentences, most useful first."""
    if failure.kind == "not_cuda":
        return ()
    lines = [messages.ADVICE_CHILD] if failure.process == "child" else []
    lines += _of_the_error(failure)
    if failure.sticky and failure.process == "this":
        lines.append(_restart(failure))
        if failure.blocking is not True and failure.kind not in _NOWHERE:
            lines.append(_exact_line(failure, situation))
    lines += possible_bugs(situation.torch_version, failure)
    if failure.sticky and situation.mentions_dsa:
        lines.append(messages.ADVICE_DSA)
    return tuple(lines[:_MAX_ADVICE])


# No line of the program is to be found for these.
_NOWHERE = frozenset({"launch_timeout", "hardware_error", "ecc_error"})


def _of_the_error(failure: Failure) -> list[str]:
    kind, code = failure.kind, failure.code
    if kind == "device_assert":
        return _of_the_assertion(failure)
    if failure.platform == "hip" and kind in messages.ADVICE_BY_KIND_HIP:
        return [messages.ADVICE_BY_KIND_HIP[kind]]
    if failure.platform == "xpu" and kind == "launch_failure":
        return [messages.ADVICE_XPU_LOST]
    if kind in messages.ADVICE_BY_KIND:
        return [messages.ADVICE_BY_KIND[kind]]
    if failure.sticky:
        return []
    if code == _INITIALIZATION:
        return [messages.ADVICE_FORK_SUSPECTED, messages.ADVICE_NOT_STARTED]
    if code is not None and codes.is_start(code):
        return [messages.ADVICE_NOT_STARTED]
    if code in _CAPTURE:
        return [messages.ADVICE_CAPTURE]
    if failure.sticky is False:
        return [messages.ADVICE_ALIVE]
    lost = [messages.ADVICE_DRIVER_LOST] if code == _UNKNOWN_ERROR else []
    unsure = messages.ADVICE_UNSURE_XPU if failure.platform == "xpu" else messages.ADVICE_UNSURE
    return [*lost, unsure]


def _of_the_assertion(failure: Failure) -> list[str]:
    """Name causes only where the catalogue knows that the user's values can be one."""
    if not failure.assertions:
        return [messages.ADVICE_FIND_ASSERTION]
    known = next((item for item in failure.assertions if item.known), None)
    row = catalog().find(known.expression, known.file, known.function) if known else None
    if row is None:
        return [messages.ADVICE_UNKNOWN_ASSERTION]
    if row.nature == "internal":
        return [messages.ADVICE_INTERNAL]
    causes = "; ".join(row.causes[:_MAX_CAUSES])
    typical = [messages.ADVICE_CAUSES.format(causes=causes)] if causes else []
    return [messages.ADVICE_OWN, *typical] if row.nature == "own" else typical


def _restart(failure: Failure) -> str:
    if failure.platform == "hip" and failure.code is None:
        return messages.ADVICE_ROCM_ABORT
    return messages.ADVICE_RESTART if failure.platform == "cuda" else messages.ADVICE_RESTART_OTHER


def _exact_line(failure: Failure, situation: Situation) -> str:
    if situation.distributed and failure.platform == "cuda":
        return messages.ADVICE_EXACT_LINE_DISTRIBUTED
    return messages.ADVICE_EXACT_LINE[failure.platform]
