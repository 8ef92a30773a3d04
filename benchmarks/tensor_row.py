"""``stats.*``: what the tensor table shows of one tensor, over one ``torch.aminmax`` of the same.

A full row: minimum, maximum, NaN and infinity counts, shape, dtype and device, as a ``TensorRow``.
``stats.vs_lovely_1e6`` is the default string of lovely-tensors over that row.
"""

from __future__ import annotations

import os
import time
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = 2.5
LOVELY_GOAL = 8.0
_SECONDS = 4.0
_ROUNDS = (9, 400)
"""At least and at most so many pairs of measurements, within ``_SECONDS``."""


def float32_1e6() -> float:
    """Return the ratio for a million floats."""
    return _over_aminmax(lambda torch: torch.randn(10**6))


def float32_1e8() -> float:
    """Return the ratio for a hundred million floats, which no cache holds."""
    return _over_aminmax(lambda torch: torch.randn(10**8))


def int64_1e6() -> float:
    """Return the ratio for a million integers."""
    return _over_aminmax(lambda torch: torch.randint(0, 50_000, (10**6,)))


def vs_lovely_1e6() -> float:
    """Return how many of our rows fit into one string of lovely-tensors, for a million floats."""
    torch = _torch()
    import lovely_tensors

    tensor = torch.randn(10**6)
    return 1 / _ratio(lambda: _row(tensor), lambda: str(lovely_tensors.lovely(tensor)))


def _over_aminmax(make: Callable[[Any], Any]) -> float:
    torch = _torch()
    tensor = make(torch)
    return _ratio(lambda: _row(tensor), lambda: torch.aminmax(tensor))


def _torch() -> Any:
    # Threads would be measured as much as the work, on a machine that others use too.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    return torch


def _row(tensor: Any) -> Any:
    from cudassert_ipy.checks.inspect import dtype_name
    from cudassert_ipy.checks.statistics import summarize
    from cudassert_ipy.model import TensorRow

    statistics = summarize(tensor)
    return TensorRow(
        name="x",
        role="input",
        operation="x",
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor),
        device=str(tensor.device),
        minimum=statistics.minimum,
        maximum=statistics.maximum,
        nan_count=statistics.nan_count,
        inf_count=statistics.inf_count,
    )


def _ratio(ours: Callable[[], Any], theirs: Callable[[], Any]) -> float:
    """Return the ratio of the medians of two calls made by turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    ours(), theirs()
    least, most = _ROUNDS
    end = time.perf_counter() + _SECONDS
    while len(seconds[0]) < least or (len(seconds[0]) < most and time.perf_counter() < end):
        turn = len(seconds[0]) % 2
        for which in (turn, 1 - turn):
            started = time.perf_counter()
            (ours, theirs)[which]()
            seconds[which].append(time.perf_counter() - started)
    return median(seconds[0]) / median(seconds[1])
