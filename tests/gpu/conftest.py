"""Tests that need a CUDA device: each runs its code in a process of its own.

A device-side assert ends the CUDA context of its process, so nothing here may touch CUDA in the
process of pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl")


@cache
def has_device() -> bool:
    """Ask a fresh process, and only if the machine has a driver at all."""
    if not any(Path(path).exists() for path in DEVICE_FILES):
        return False
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not has_device():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@dataclass(frozen=True)
class Done:
    """A finished process."""

    status: int
    out: str
    err: str


RunPython = Callable[..., Done]


@pytest.fixture
def run_python() -> RunPython:
    """Run code in a fresh interpreter that has a live device."""

    def run(code: str, *, timeout: float = 90, **environment: str) -> Done:
        env = {key: value for key, value in os.environ.items() if not key.startswith("CUDASSERT")}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            cwd=ROOT,
            env={**env, **environment},
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run
