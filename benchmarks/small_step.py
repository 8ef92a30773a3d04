"""``replay.overhead_small_step``: a replayed small training step over the same step on the CPU.

A step of a small Transformer (embedding, one encoder layer, cross entropy, Adam) in a cell with a
hundred of them, in a replay's child and in plain CPU torch, by turns. The cell times its own steps,
so that neither the fork nor the first step, which loads code, is counted.
"""

from __future__ import annotations

import os
from statistics import median
from typing import Any

GOAL = 4.0
ROUNDS = 5
STEPS = 100
CELL = f"""\
import time, torch
from torch import nn
torch.manual_seed(0)
embed = nn.Embedding(1000, 64).to(device)
layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).to(device)
head = nn.Linear(64, 10).to(device)
parameters = [*embed.parameters(), *layer.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
ids = torch.randint(0, 1000, (32, 16)).to(device)
labels = torch.randint(0, 10, (32,)).to(device)
times = []
for step in range({STEPS}):
    started = time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(head(layer(embed(ids)).mean(1)), labels)
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - started)
print(sorted(times[10:])[(len(times) - 10) // 2])
"""


def measure() -> float:
    """Return the ratio of the medians."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    replayed, plain = [], []
    for _ in range(ROUNDS):
        replayed.append(_in_replay())
        plain.append(_on_cpu())
    return median(replayed) / median(plain)


def _execute(names: dict[str, Any], source: str) -> None:
    exec(compile(source, "<cell>", "exec"), names)


def _in_replay() -> float:
    from cudassert_ipy.replay.checkpoint import Checkpoint, ReplayRequest
    from cudassert_ipy.replay.state import HostCopies

    names: dict[str, Any] = {"device": "cuda"}
    checkpoint = Checkpoint.take(HostCopies(), execute=lambda source: _execute(names, source))
    result = checkpoint.start(ReplayRequest(source=CELL)).wait()
    if result.replay.outcome not in ("clean", "inconclusive") or not result.tensors:
        msg = f"the replay did not run the step: {result}"
        raise RuntimeError(msg)
    return float(result.output)


def _on_cpu() -> float:
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        _execute({"device": "cpu"}, CELL)
    return float(printed.getvalue())
