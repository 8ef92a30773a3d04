"""``load_ext.vs_autoreload``: seconds of ``%load_ext cudassert_ipy`` over ``%load_ext autoreload``.

Each load happens in a fresh kernel, the two by turns. The comparison is with the extension that
most users load without a thought about its cost.
"""

from __future__ import annotations

from statistics import median

from benchmarks.kernels import kernel

GOAL = 0.33
ROUNDS = 9
TIMED = """\
import time
started = time.perf_counter()
get_ipython().run_line_magic("load_ext", {name!r})
print(time.perf_counter() - started)"""


def _seconds(name: str) -> float:
    with kernel() as fresh:
        return float(fresh.run(TIMED.format(name=name)).text())


def measure() -> float:
    """Return the ratio of the medians; the first pair, which compiles the files, is dropped."""
    ours, theirs = [], []
    for _ in range(ROUNDS + 1):
        ours.append(_seconds("cudassert_ipy"))
        theirs.append(_seconds("autoreload"))
    return median(ours[1:]) / median(theirs[1:])
