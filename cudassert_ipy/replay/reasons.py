"""What a replay that found nothing leaves open, by what it saw of this cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy import messages

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.replay_policy import Collector


def left_open(collector: Collector, context: Context) -> tuple[str, ...]:
    """Return why the GPU may have met a bad value that this replay did not, likely ones first.

    Args:
        collector: what the replay saw.
        context: of its stand-in device.

    """
    reasons = []
    if context.drew_random:
        reasons.append(messages.OPEN_RANDOM)
    if context.used_substitutes:
        reasons.append(messages.OPEN_SUBSTITUTES)
    low = sorted(collector.history.low_precision)
    if low:
        reasons.append(messages.OPEN_PRECISION.format(dtypes=" and ".join(low)))
    if messages.STANDIN_EAGER in collector.remarks:
        reasons.append(messages.OPEN_COMPILED)
    return tuple(reasons)
