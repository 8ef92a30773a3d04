"""Skip, and say so, where the libraries are not installed; keep them from the network."""

from __future__ import annotations

import importlib.util
import os

import pytest

LIBRARIES = ("transformers", "torch_geometric")
MISSING = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]

# No test asks a hub for anything; this makes a mistake there an error instead of a download.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not MISSING:
        return
    reason = f"NOT INSTALLED: {', '.join(MISSING)} (pip install -e '.[test-models]')"
    for item in items:
        if "tests/models/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))
