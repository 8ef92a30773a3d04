"""What the steps share."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"


def answer(**facts: Any) -> None:
    """Print the one JSON line of this step."""
    print(json.dumps(facts), flush=True)


def attempt(action: Callable[[], Any]) -> dict[str, Any]:
    """Call ``action``; return how long it took and what it raised, if anything."""
    started = time.perf_counter()
    facts: dict[str, Any] = {}
    try:
        value = action()
        if isinstance(value, bool | int | float | str):
            facts["value"] = value
    except Exception as error:  # whatever CUDA raises is the fact to record
        facts["raised"] = type(error).__name__
        facts["code"] = getattr(error, "error_code", None)
        facts["text"] = str(error)[:300]
    facts["ms"] = round((time.perf_counter() - started) * 1000, 3)
    return facts


def die(torch: Any, count: int = 1) -> Any:
    """Launch an index kernel with ``count`` indices out of range; return its unread result."""
    rows = torch.zeros(10, device=DEVICE)
    return rows[torch.full((count,), 10, device=DEVICE)]


def die_and_read(torch: Any) -> Any:
    """Die, and notice it."""
    return die(torch)[0].item()


def close_device_files() -> int:
    """Close every descriptor of an NVIDIA device in this process; return how many there were."""
    closed = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (numbers are wanted, not paths)
        try:
            target = str(Path(f"/proc/self/fd/{name}").readlink())
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            os.close(int(name))
            closed += 1
    return closed
