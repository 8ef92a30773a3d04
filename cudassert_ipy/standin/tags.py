"""Tags on the storages of ordinary CPU tensors: which stand-in device they are on.

A tag is an attribute of the storage's Python object, which torch keeps alive exactly as long as the
storage itself (seen in torch 2.6 to 2.14). So a tag is weak, cannot be mistaken for that of another
storage at a re-used address, and is shared by all views and aliases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

_ATTRIBUTE = "_cudassert_tag"
_storage_of = torch._C.TensorBase.untyped_storage


@dataclass(frozen=True, slots=True)
class Tag:
    """Where a storage is, and whether its values are the real ones."""

    device_index: int | None
    """Index of the stand-in device; None for a CPU storage whose values are substitutes."""
    substitute: bool = False


def tag_of(tensor: Tensor) -> Tag | None:
    """Return the tag of a tensor's storage, or None for an ordinary CPU tensor."""
    storage = storage_of(tensor)
    return None if storage is None else getattr(storage, _ATTRIBUTE, None)


def tag(tensor: Tensor, value: Tag | None) -> None:
    """Set or (with None) remove the tag of a tensor's storage; no effect without a storage."""
    storage = storage_of(tensor)
    if storage is not None:
        tag_storage(storage, value)


def tag_of_storage(storage: Any) -> Tag | None:
    """Return the tag of a ``torch.UntypedStorage``."""
    return getattr(storage, _ATTRIBUTE, None)


def tag_storage(storage: Any, value: Tag | None) -> None:
    """Set or remove the tag of a ``torch.UntypedStorage``."""
    if value is not None:
        setattr(storage, _ATTRIBUTE, value)
    elif hasattr(storage, _ATTRIBUTE):
        delattr(storage, _ATTRIBUTE)


def storage_of(tensor: Tensor) -> Any:
    """Return the storage that carries a tensor's tag, or None where there is none.

    For sparse tensors it is that of their values, for the wrappers of functorch (``vmap``,
    ``grad``) that of the tensor inside.
    """
    try:
        return _storage_of(tensor)
    except (RuntimeError, NotImplementedError):
        inner = _inner(tensor)
        return None if inner is None else storage_of(inner)


def _inner(tensor: Tensor) -> Tensor | None:
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
        inner: Tensor = functorch.get_unwrapped(tensor)
        return inner
    with torch._C.DisableTorchFunction():
        if tensor.layout is torch.sparse_coo:
            return tensor._values()
        if tensor.layout in _COMPRESSED:
            return tensor.values()
    return None


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
