"""The child processes of this one: listed before a restart, ended by it.

Children survive an exec, and workers that watch for their parent never notice it, since the pid
stays (measured with torch DataLoader workers). They would keep files, ports and GPU memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE = 1.0
"""Seconds between asking children to end and killing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One running descendant; ``start_time`` tells it from a later process with its pid."""

    pid: int
    name: str
    start_time: str


def children() -> tuple[Child, ...]:
    """Return all running descendants of this process, nearest first; empty without ``/proc``."""
    by_parent: dict[int, list[Child]] = {}
    for parent, child in _processes():
        by_parent.setdefault(parent, []).append(child)
    found: list[Child] = []
    waiting = [os.getpid()]
    while waiting:
        for child in by_parent.pop(waiting.pop(0), ()):
            found.append(child)
            waiting.append(child.pid)
    return tuple(found)


def end_children(grace: float = GRACE) -> tuple[Child, ...]:
    """End all descendants (SIGTERM, then SIGKILL after ``grace`` seconds); return who they were.

    Dead ones are collected: the next process does not know them, and they would stay for ever. One
    that even SIGKILL does not end (it waits for a device) is left after another ``grace`` seconds.
    """
    before = children()
    for child in before:
        _signal(child, signal.SIGTERM)
    for child in _wait(grace):
        _signal(child, signal.SIGKILL)
    _wait(grace)
    return before


def _wait(seconds: float) -> tuple[Child, ...]:
    """Collect dead children until no descendant runs or the time is over; return who still runs."""
    deadline = time.monotonic() + seconds
    while True:
        left = children()
        _collect()
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):  # there is none at all
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _processes() -> Iterator[tuple[int, Child]]:
    proc = Path("/proc")
    if not proc.is_dir():
        return
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        # A process may end while it is read.
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            head, _, tail = text.rpartition(")")
            fields = tail.split()
            if fields[0] in "ZX":  # already dead, only not collected
                continue
            name = head.partition("(")[2]
            yield int(fields[1]), Child(pid=int(entry.name), name=name, start_time=fields[19])


def _signal(child: Child, number: int) -> None:
    with contextlib.suppress(OSError, IndexError):  # gone meanwhile
        stat = Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8", errors="replace")
        if stat.rpartition(")")[2].split()[19] == child.start_time:
            os.kill(child.pid, number)
