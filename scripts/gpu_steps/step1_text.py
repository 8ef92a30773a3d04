"""When assertion text appears on fd 2, how many bytes, and whether the GIL is free meanwhile.

Every case kills its context, so each is a process of its own: this file again, with a plan. A plan
is a list of calls after the launch; after each, the size of fd 2 (a file) is noted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from common import DEVICE, answer, attempt, die

CASES = (
    # name, bad indices, fd 2, calls after the launch
    ("each_in_turn", 1_000, "file", "wait query wait synchronize item"),
    ("query_only", 1_000, "file", "wait query wait query wait"),
    ("item_only", 1_000, "file", "item"),
    ("launch_again", 1_000, "file", "wait launch wait synchronize"),
    ("million", 1_000_000, "file", "synchronize"),
    ("hundred_million", 100_000_000, "file", "synchronize"),
    ("million_pipe", 1_000_000, "pipe", "synchronize"),
)
CASE_LIMIT = 25


class Ticker(threading.Thread):
    """A Python thread that ticks each millisecond; a long gap means that the GIL was held."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0

    def run(self) -> None:
        """Tick for as long as the process lives."""
        last = time.perf_counter()
        while True:
            time.sleep(0.001)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now


def case(count: int, calls: str) -> None:
    """Run one plan; print its facts. fd 2 is whatever the parent gave."""
    import torch

    torch.zeros(1, device=DEVICE)
    stream = torch.cuda.current_stream() if DEVICE == "cuda" else None
    ticker = Ticker()
    ticker.start()
    facts: list[dict[str, Any]] = []
    kept: list[Any] = []
    actions = {
        "wait": lambda: time.sleep(0.3),
        "query": lambda: stream.query() if stream else None,
        "synchronize": lambda: torch.cuda.synchronize() if stream else None,
        "item": lambda: int(kept[0][0]),
        "launch": lambda: kept.append(torch.ones(10, device=DEVICE) + 1),
    }
    plan = [("kill", lambda: kept.append(die(torch, count)))]
    plan += [(name, actions[name]) for name in calls.split()]
    for name, action in plan:
        ticker.longest = 0.0
        fact = {"call": name, **attempt(action)}
        time.sleep(0.003)
        fact["longest_gil_gap_ms"] = round(ticker.longest * 1000, 1)
        fact["bytes_on_fd_2"] = os.fstat(2).st_size
        facts.append(fact)
    print(json.dumps(facts), flush=True)
    os._exit(0)  # leave no destructor a chance to abort


def run_case(name: str, count: int, kind: str, calls: str) -> dict[str, Any]:
    """Run one case in a process whose fd 2 is a file or a pipe."""
    command = [sys.executable, __file__, DEVICE, str(count), calls]
    facts: dict[str, Any] = {"name": name, "bad_indices": count, "fd_2": kind}
    with tempfile.TemporaryFile() as file:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=file if kind == "file" else subprocess.PIPE,
            cwd=Path(__file__).parent,
        )
        try:
            out, err = process.communicate(timeout=CASE_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            facts["hung"] = True
        facts["seconds"] = round(time.perf_counter() - started, 2)
        if kind == "file":
            file.seek(0)
            err = file.read()
    facts["exit"] = process.returncode
    facts["bytes"] = len(err)
    facts["lines"] = err.count(b"Assertion `")
    print(f"----- {name}\n{err[:6000].decode(errors='replace')}")
    try:
        facts["calls"] = json.loads(out)
    except ValueError:
        facts["error"] = "no answer"
    return facts


def main() -> None:
    """Run all cases one after the other, as far as the time reaches."""
    deadline = time.monotonic() + 80
    cases = [run_case(*row) for row in CASES if time.monotonic() < deadline - 8]
    answer(cases=cases, left_out=len(CASES) - len(cases))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        case(int(sys.argv[2]), sys.argv[3])
    else:
        main()
