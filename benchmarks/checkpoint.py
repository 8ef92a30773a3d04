"""``checkpoint.ms_per_gb``: milliseconds per GB for the checkpoint of a kernel with 4 GB resident.

Timed in the kernel, from asking for the checkpoint until its child shares nothing any more and the
cell may start, as before each ``%%cuda_debug`` cell. Nearly all of it is the system copying page
tables, once for each of the three forks that make a worker under its supervisor
(``replay/supervisor.py``).
"""

from __future__ import annotations

from benchmarks.kernels import kernel

GOAL = 40.0
GIGABYTES = 4
ROUNDS = 9
SETUP = f"""\
import torch
resident = [torch.ones(2**28, dtype=torch.uint8) for _ in range({4 * GIGABYTES})]
"""
TIMED = f"""\
import statistics, time
from cudassert_ipy.notebook.child_shell import CellRun
from cudassert_ipy.replay.checkpoint import Checkpoint
from cudassert_ipy.replay.state import HostCopies

def seconds():
    started = time.perf_counter()
    checkpoint = Checkpoint.take(HostCopies(), execute=CellRun(get_ipython()))
    taken = time.perf_counter() - started
    checkpoint.discard()
    time.sleep(0.5)  # the system takes the memory of the last one apart meanwhile
    return taken

seconds()
print(statistics.median(seconds() for _ in range({ROUNDS})))"""


def measure() -> float:
    """Return the median."""
    with kernel() as running:
        running.run("%load_ext cudassert_ipy")
        running.run(SETUP)
        return float(running.run(TIMED).text()) * 1000 / GIGABYTES
