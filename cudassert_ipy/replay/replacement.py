"""In the child: every device tensor becomes an ordinary CPU tensor, and stays the same object."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from cudassert_ipy.replay.state import HostCopies, parts_of, storage_of
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
    tag: Tag | None
    cell: int | None


def replace_device_tensors(tensors: Iterable[torch.Tensor], copies: HostCopies) -> Replaced:
    """Give each device tensor among ``tensors`` host memory, tagged as living on the device.

    The memory is the copy that ``copies`` has of the tensor's storage, else zeros with the
    substitute bit. ``tensor.data = …`` keeps the Python object and its C++ body, so optimizers,
    closures, generators, ``.grad``, hooks and weak references follow, and tensors that shared a
    storage share the new one (measured on real CUDA tensors of torch 2.14; ``swap_tensors`` refuses
    tensors that autograd saved). CPU tensors whose memory the driver had page-locked get their copy
    as well, and stay CPU tensors.

    Only for a forked child with no mode active: the process can never use its device again. The
    old storages are kept for ever.

    Raises:
        CannotReplaceError: a device tensor whose memory cannot be replaced (CSR and its like, whose
            C++ body keeps its parts through ``.data = …``; a wrapper subclass, whose body has a
            device and no memory), or one that is still on the device afterwards: it would abort the
            process at the first use.

    """
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        everything = list(tensors)
        found = [tensor for tensor in everything if is_device_tensor(tensor)]
        pinned = copies.pinned_among(everything)
        hosts: dict[int, _Host] = {}
        substituted = 0
        for tensor in found:
            index = device_index(tensor) or 0
            lost = [_host_of(part, index, copies, hosts) for part in parts_of(tensor)]
            substituted += any(lost)
        for tensor in pinned:
            _host_of(tensor, None, copies, hosts)
        for tensor in (*found, *pinned):
            # An inference tensor has no version counter: given an ordinary body, it would say that
            # it is an ordinary tensor, and raise wherever autograd asks for its version.
            with torch.inference_mode(tensor.is_inference()):
                tensor.data = _on_host(tensor, hosts)
        left = [tensor for tensor in found if tensor.is_cuda]
    if left:
        raise CannotReplaceError(", ".join(str(type(tensor).__name__) for tensor in left[:3]))
    cells = {host.cell for host in hosts.values() if host.cell is not None}
    return Replaced(len(found), substituted, tuple(sorted(cells)))


def _host_of(
    part: torch.Tensor, index: int | None, copies: HostCopies, hosts: dict[int, _Host]
) -> bool:
    """Find the host memory for the storage of ``part``; return whether its values are lost."""
    old = storage_of(part)
    if old is None or hasattr(type(part), "__tensor_flatten__"):
        msg = f"{type(part).__name__} {part.layout} {tuple(part.shape)}"
        raise CannotReplaceError(msg)
    host = hosts.get(old._cdata)
    if host is None:
        copy = copies.get(old)
        new = _zeros(old.nbytes()) if copy is None else copy.storage
        mark = None if index is None else Tag(index, copy is None)
        host = _Host(new, mark, None if copy is None else copy.execution_count)
        hosts[old._cdata] = host
        _KEPT.append(old)
    return host.tag is not None and host.tag.substitute


def _on_host(tensor: torch.Tensor, hosts: dict[int, _Host]) -> torch.Tensor:
    """Return a tensor like ``tensor`` on the host memory of its storages."""
    parts = [_part_on_host(part, hosts) for part in parts_of(tensor)]
    if tensor.layout is torch.sparse_coo:
        indices, values = parts
        new = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False)
        return new._coalesced_(tensor.is_coalesced())
    return parts[0]


def _part_on_host(part: torch.Tensor, hosts: dict[int, _Host]) -> torch.Tensor:
    host = hosts[part.untyped_storage()._cdata]
    new = torch.empty(0, dtype=part.dtype, device="cpu").set_(
        host.storage, part.storage_offset(), part.size(), part.stride()
    )
    tag(new, host.tag)
    if part.is_conj():
        new = new.conj()
    if part.is_neg():
        new = torch._neg_view(new)
    return new


def _zeros(size: int) -> torch.UntypedStorage:
    if size < _LAZY_ZEROS:
        return torch.zeros(size, dtype=torch.uint8, device="cpu").untyped_storage()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
