"""Where a handoff waits for a kernel that its user restarts by hand.

A module of its own: every load looks there, and must not import the data model for it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path


def pending_path(directory: Path, connection_file: str) -> Path:
    """Return the file that waits for the kernel with that connection file."""
    digest = hashlib.sha256(Path(connection_file).name.encode()).hexdigest()[:32]
    return directory / f"cudassert-pending-{digest}.json"
