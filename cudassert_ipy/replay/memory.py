"""How much memory there is for a child, and how the child is kept from taking more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_LIMIT = 1 << 62
HEADROOM = 0.25
"""Share of this process's resident memory that must be free for a checkpoint."""


def available() -> int:
    """Return the bytes this process could still take: the machine's, or its cgroup's if less."""
    return min(_machine(), *_cgroups(), _NO_LIMIT)


def resident() -> int:
    """Return the resident bytes of this process."""
    return _status_bytes("VmRSS")


def refusal(extra: int = 0) -> tuple[int, int] | None:
    """Return (needed, available) bytes where a checkpoint would be unsafe, else None.

    A child starts with none of its own memory, but every page that either side writes doubles.
    ``extra`` is what the checkpoint copies.
    """
    needed = int(resident() * HEADROOM) + extra
    free = available()
    return (needed, free) if free < needed else None


def limit_child(limit: int) -> None:
    """Let this process take at most ``limit`` further bytes, and die first when memory runs out.

    ``RLIMIT_DATA``, not ``RLIMIT_AS``: a CUDA process has reserved address space of the size of all
    memory, and ``RLIMIT_AS`` then refuses the first allocation. Does nothing on Windows.
    """
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = _status_bytes("VmData") + limit
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        return  # a container that hides it; the limit above still holds


def _machine() -> int:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _NO_LIMIT


def _cgroups() -> Iterator[int]:
    """Yield the head-room of each memory cgroup this process is in (version 2 and 1)."""
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, usage = Path("/sys/fs/cgroup"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        here = root / path.strip().lstrip("/")
        for directory in (here, *here.parents):
            yield _headroom(directory / limit, directory / usage, directory / "memory.stat")
            if directory == root:
                break


def _headroom(limit: Path, usage: Path, statistics: Path) -> int:
    try:
        maximum = int(limit.read_text("ascii"))  # "max" where there is none
        used = int(usage.read_text("ascii"))
    except (OSError, ValueError):
        return _NO_LIMIT
    # File pages that nobody used lately are given back before anything is killed.
    for line in _lines(str(statistics)):
        if line.startswith("inactive_file "):
            used -= int(line.split()[1])
    return max(0, maximum - used)


def _status_bytes(key: str) -> int:
    for line in _lines("/proc/self/status"):
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
