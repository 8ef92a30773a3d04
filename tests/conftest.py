"""Order of the layers: what is quick and says most comes first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
LAYERS = ("unit", "shell", "gpu", "models", "kernel", "notebooks", "browser")


def _layer(item: pytest.Item) -> int:
    name = item.path.relative_to(HERE).parts[0]
    return LAYERS.index(name) if name in LAYERS else len(LAYERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_layer)
