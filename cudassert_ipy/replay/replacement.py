"""In the child: every device tensor becomes an ordinary CPU tensor, and stays the same object."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from cudassert_ipy.replay.state import HostCopies, storage_of
from cudassert_ipy.standin.device import device_index, is_device_tensor
from cudassert_ipy.standin.tags import Tag, tag

if TYPE_CHECKING:
    from collections.abc import Iterable

_LAZY_ZEROS: Final = 2**20
"""From this size on, zeros are pages that cost nothing until they are written."""

_KEPT: Final[list[torch.UntypedStorage]] = []
"""Old device storages. Freeing one would call CUDA, which a forked child must never do."""


class CannotReplaceError(RuntimeError):
    """A tensor on the device has a layout whose memory cannot be replaced."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What :func:`replace_device_tensors` did.

    Attributes:
        tensors: device tensors found.
        substituted: those whose values are lost and which hold zeros now.
        cells: execution counts that the copied values are of.

    """

    tensors: int
    substituted: int
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Host:
    storage: torch.UntypedStorage
    tag: Tag
    cell: int | None


def replace_device_tensors(tensors: Iterable[torch.Tensor], copies: HostCopies) -> Replaced:
    """Give each device tensor among ``tensors`` host memory, tagged as living on the device.

    The memory is the copy that ``copies`` has of the tensor's storage, else zeros with the
    substitute bit. ``tensor.data = …`` keeps the Python object and its C++ body, so optimizers,
    closures, generators, ``.grad``, hooks and weak references follow, and tensors that shared a
    storage share the new one (measured on real CUDA tensors of torch 2.14; ``swap_tensors`` refuses
    tensors that autograd saved).

    Only for a forked child with no mode active: the process can never use its device again. The
    old storages are kept for ever.

    Raises:
        CannotReplaceError: a device tensor without a plain storage (sparse), or one that is still
            on the device afterwards: it would abort the process at the first use.

    """
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        found = [tensor for tensor in tensors if is_device_tensor(tensor)]
        hosts: dict[int, _Host] = {}
        for tensor in found:
            storage = storage_of(tensor)
            if storage is None:
                msg = f"{tensor.layout} {tuple(tensor.shape)}"
                raise CannotReplaceError(msg)
            if storage._cdata not in hosts:
                hosts[storage._cdata] = _host_for(storage, device_index(tensor) or 0, copies)
        substituted = 0
        for tensor in found:
            host = hosts[tensor.untyped_storage()._cdata]
            substituted += host.tag.substitute
            _replace(tensor, host)
        left = [tensor for tensor in found if tensor.is_cuda]
    if left:
        raise CannotReplaceError(", ".join(str(type(tensor).__name__) for tensor in left[:3]))
    cells = {host.cell for host in hosts.values() if host.cell is not None}
    return Replaced(len(found), substituted, tuple(sorted(cells)))


def _host_for(old: torch.UntypedStorage, index: int, copies: HostCopies) -> _Host:
    copy = copies.get(old)
    lost = copy is None
    new = _zeros(old.nbytes()) if copy is None else copy.storage
    _KEPT.append(old)
    return _Host(new, Tag(index, lost), None if copy is None else copy.execution_count)


def _replace(tensor: torch.Tensor, host: _Host) -> None:
    new = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
        host.storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    tag(new, host.tag)
    if tensor.is_conj():
        new = new.conj()
    if tensor.is_neg():
        new = torch._neg_view(new)
    tensor.data = new


def _zeros(size: int) -> torch.UntypedStorage:
    if size < _LAZY_ZEROS:
        return torch.zeros(size, dtype=torch.uint8, device="cpu").untyped_storage()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
