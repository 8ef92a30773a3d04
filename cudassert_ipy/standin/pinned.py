"""Pinned memory of the stand-in device: a mark on the storage of a CPU tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy.standin.tags import storage_of

if TYPE_CHECKING:
    from torch import Tensor

_PINNED = "_cudassert_pinned"


def pin(tensor: Tensor) -> None:
    """Mark the storage of a CPU tensor as pinned."""
    storage = storage_of(tensor)
    if storage is not None:
        setattr(storage, _PINNED, True)


def is_pinned_storage(tensor: Tensor) -> bool:
    """Whether the storage of ``tensor`` is marked as pinned."""
    return hasattr(storage_of(tensor), _PINNED)
