"""``cell.vs_bare``: a trivial cell through a kernel with the extension over one without it.

Timed by the client, from the request until the kernel is idle again, in two kernels by turns.
"""

from __future__ import annotations

from statistics import median

from benchmarks.kernels import kernel

GOAL = 1.05
ROUNDS = 400
WARM_UP = 40
CELL = "x = 1"


def measure() -> float:
    """Return the ratio of the medians."""
    ours: list[float] = []
    bare: list[float] = []
    with kernel() as with_extension, kernel() as without:
        with_extension.run("%load_ext cudassert_ipy")
        without.run("pass")
        for turn in range(WARM_UP + ROUNDS):
            pair = [(with_extension, ours), (without, bare)]
            for running, seconds in pair if turn % 2 else reversed(pair):
                seconds.append(running.run(CELL).seconds)
    return median(ours[WARM_UP:]) / median(bare[WARM_UP:])
