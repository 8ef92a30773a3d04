"""``replay.vs_restart``: from the click to the finding, over what one does without this tool.

Without it: restart the kernel, import torch again, run the cells again, the failing one included.
Both in the same kernel by turns, on the simulator; ``%cuda_debug replay`` is what the button does.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.kernels import Kernel, kernel

GOAL = 0.5
ROUNDS = 5
SETUP = (
    "%load_ext cudassert_ipy",
    "%cuda_debug simulator on",
    "import torch\nfrom torch import nn",
    """\
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(1000, 128), nn.Flatten(), nn.Linear(128 * 16, 10)).cuda()
ids = torch.randint(0, 1000, (32, 16))
ids[7, 3] = 1000""",
)
FAILING = "print(model(ids.cuda()).sum().item())"
DIAGNOSIS = "application/vnd.cudassert.diagnosis.v1+json"


def _restart_by_hand(running: Kernel) -> float:
    started = time.perf_counter()
    running.restart()
    for cell in SETUP:
        running.run(cell)
    running.run(FAILING, status="error")
    return time.perf_counter() - started


def _replay(running: Kernel) -> float:
    result = running.run("%cuda_debug replay")
    diagnoses = [
        output["data"][DIAGNOSIS]
        for output in result.outputs
        if DIAGNOSIS in output.get("data", {})
    ]
    if not diagnoses or diagnoses[-1]["finding"] is None:
        msg = f"the replay found nothing: {result}"
        raise RuntimeError(msg)
    return result.seconds


def measure() -> float:
    """Return the ratio of the medians."""
    replays, restarts = [], []
    with kernel() as running:
        for _ in range(ROUNDS):
            restarts.append(_restart_by_hand(running))
            replays.append(_replay(running))
    return median(replays) / median(restarts)
