"""Whether exec frees the memory of a dead GPU context, how soon CUDA works, and the blocking line.

Three times: alone, with an idle forked child that kept the device files, and with one that closed
them. The process dies of a bad index, then execs this file again under the same pid.
"""

from __future__ import annotations

import json
import os
import posix
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from common import DEVICE, answer, attempt, close_device_files, die_and_read

BYTES = 8 << 30
VARIANTS = ("alone", "child_kept_files", "child_closed_files")


def free_memory(torch: Any) -> int | None:
    """Return the free bytes of the device, as the driver sees them."""
    return int(torch.cuda.mem_get_info()[0]) if DEVICE == "cuda" else None


def idle_child(*, close: bool) -> int:
    """Fork a child that does nothing, with or without the device files."""
    pid = os.fork()
    if pid == 0:
        if close:
            close_device_files()
        signal.alarm(60)
        while True:
            signal.pause()
    return pid


def before(variant: str) -> None:
    """Fill memory, die, and exec."""
    import torch

    facts: dict[str, Any] = {"variant": variant, "pid": os.getpid(), "child": None}
    torch.zeros(1, device=DEVICE)
    facts["free_at_start"] = free_memory(torch)
    kept = torch.ones(BYTES if DEVICE == "cuda" else 8, dtype=torch.uint8, device=DEVICE)
    facts["free_when_full"] = free_memory(torch)
    facts["death"] = attempt(lambda: die_and_read(torch))
    facts["kept"] = tuple(kept.shape)
    if variant != "alone":
        facts["child"] = idle_child(close=variant == "child_closed_files")
        time.sleep(0.3)
    facts["exec_at"] = time.monotonic()
    sys.stdout.flush()
    arguments = [sys.executable, __file__, DEVICE, "after", json.dumps(facts)]
    posix.execve(sys.executable, arguments, {**os.environ, "CUDA_LAUNCH_BLOCKING": "1"})


def after(facts: dict[str, Any]) -> None:
    """Use CUDA again in the new process."""
    since = facts.pop("exec_at")
    facts["python_started_s"] = round(time.monotonic() - since, 3)
    import torch

    facts["torch_imported_s"] = round(time.monotonic() - since, 3)
    facts["first_call"] = attempt(lambda: float(torch.ones(10, device=DEVICE).sum()))
    facts["first_call_done_s"] = round(time.monotonic() - since, 3)
    facts["same_pid"] = os.getpid() == facts.pop("pid")
    facts["free_after_exec"] = free_memory(torch)
    if facts["child"] is not None:
        os.kill(facts["child"], signal.SIGKILL)
        os.waitpid(facts["child"], 0)
        time.sleep(0.5)
        facts["free_after_child_ended"] = free_memory(torch)
    facts["blocking_line"] = blocking_line(torch)
    print(json.dumps(facts), flush=True)
    os._exit(0)


def blocking_line(torch: Any) -> dict[str, Any]:
    """Launch a bad kernel; return whether the error came at its own line."""
    weight = torch.zeros(10, 4, device=DEVICE)
    index = torch.full((3,), 10, device=DEVICE)
    try:
        rows = torch.nn.functional.embedding(index, weight)  # the line that must be named
        moved = rows + 1
        moved.sum().item()
    except Exception as error:  # whatever CUDA raises is the fact to record
        own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
        return {
            "raised": type(error).__name__,
            "line": own[-1].line,
            "exact": "must be named" in (own[-1].line or ""),
            "text": str(error)[:300],
        }
    return {"raised": None}


def run(variant: str) -> dict[str, Any]:
    """Run one variant in a process of its own."""
    command = [sys.executable, __file__, DEVICE, "before", variant]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=28,
            cwd=Path(__file__).parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"variant": variant, "error": "hung"}
    print(f"----- {variant}\n{done.stderr[-4000:]}")
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"variant": variant, "exit": done.returncode, "error": done.stderr[-500:]}


if __name__ == "__main__":
    match sys.argv[2:]:
        case ["before", name]:
            before(name)
        case ["after", text]:
            after(json.loads(text))
        case _:
            answer(variants=[run(name) for name in VARIANTS])
