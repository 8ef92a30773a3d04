"""Many replays in one kernel, and one replay of very many operations: nothing grows.

``make soak`` takes 500 replays (``CUDASSERT_SOAK``), ``make test`` 50.
"""

from __future__ import annotations

import os

import psutil
import pytest

from cudassert_ipy.replay.checkpoint import Checkpoint, ReplayRequest
from cudassert_ipy.replay.state import HostCopies
from tests.kernel.driver import FAILING, SETUP

REPLAYS = int(os.environ.get("CUDASSERT_SOAK", "50"))
WARM_UP = 5
GROWTH = 32 << 20
"""Bytes that a kernel may gain in all of them: IPython's history and In grow by each request."""

OPERATIONS = 100_000
MANY = f"""\
import resource
import torch
table = torch.zeros(10, 2, device="cuda")
lines = ["def touch(ids):"]
lines += ["    table[ids]" for _ in range(500)]  # as many places in the source
exec("\\n".join(lines))
ids = torch.tensor([1, 2], device="cuda")
touch(ids)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range({OPERATIONS} // 500 - 1):
    touch(ids)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.kernel
@pytest.mark.timeout(30 + 10 * REPLAYS)
def test_replays_leave_the_kernel_as_it_was(start_kernel):
    """Descriptors, threads, children and memory of the kernel stay flat over many replays."""
    kernel = start_kernel()
    kernel.run(SETUP)
    assert kernel.run(FAILING).status == "error"
    process = psutil.Process(kernel.pid)

    def held():
        return process.num_fds(), process.num_threads(), len(process.children(recursive=True))

    for number in range(WARM_UP + REPLAYS):
        if number == WARM_UP:
            before, resident = held(), process.memory_info().rss
        [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
        assert diagnosis["finding"]["bad_values"] == [1000], number
        kernel.log.clear()
    assert held() == before
    assert process.memory_info().rss - resident < GROWTH


def test_a_cell_of_a_hundred_thousand_operations():
    """The tensor table and the trace of a replay are bounded, in the child and in what it tells."""
    names = {}

    def execute(source):
        exec(compile(source, "<string>", "exec"), names)

    request = ReplayRequest(source=MANY, timeout=150)
    result = Checkpoint.take(HostCopies(), execute=execute).start(request).wait()
    assert result.replay.outcome == "clean", result
    assert 0 < len(result.tensors) <= 200
    assert int(result.output) < 30_000  # KB
