"""Host copies of what lives on the device, taken while it can still be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudassert_ipy import messages
from cudassert_ipy.replay.find import Heap, reachable_tensors
from cudassert_ipy.standin import simulator
from cudassert_ipy.standin.device import is_device_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INTEGER_BUDGET: Final = 64 * 2**20
FLOAT_BUDGET: Final = 256 * 2**20


@dataclass(frozen=True, slots=True)
class HostCopy:
    """The bytes of one device storage, as of the end of one cell.

    Attributes:
        storage: pageable host memory; views of the device storage become views of this one.
        execution_count: the cell after which it was copied; None before the first.
        pinned: it is a copy of page-locked host memory, which a child may not be able to read.

    """

    storage: torch.UntypedStorage
    execution_count: int | None
    pinned: bool
    _versions: frozenset[int] | None
    # Holds the address of the storage (not its memory), so that no other storage can take it.
    _alive: StorageWeakRef


@dataclass(slots=True)
class _Group:
    """The tensors that share one storage."""

    storage: torch.UntypedStorage
    pinned: bool
    floating: bool = True
    versions: set[int] = field(default_factory=set)
    countable: bool = True


class HostCopies:
    """Copies of device storages, by storage, so that views go on sharing memory.

    A storage is copied again only when the version counter of a tensor on it moved (writes through
    ``.data`` or a raw pointer do not move it). A copy that the last update could not confirm is
    dropped: a value is either the one of the cell it names, or it is not there.

    Args:
        budget: bytes of integer and boolean storages that :meth:`update` keeps, smallest first.

    """

    def __init__(self, budget: int = INTEGER_BUDGET) -> None:
        self.budget = budget
        self._copies: dict[int, HostCopy] = {}

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(copy.storage.nbytes() for copy in self._copies.values())

    def clear(self) -> None:
        """Forget every copy."""
        self._copies.clear()

    def get(self, storage: torch.UntypedStorage) -> HostCopy | None:
        """Return the copy of ``storage``, or None. Also in a forked child."""
        copy = self._copies.get(storage._cdata)
        return None if copy is None or copy._alive.expired() else copy

    def pinned_among(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the CPU tensors whose memory the driver had page-locked when it was copied."""
        if not any(copy.pinned for copy in self._copies.values()):
            return []
        found = []
        for tensor in tensors:
            storage = storage_of(tensor)
            copy = None if storage is None else self.get(storage)
            if copy is not None and copy.pinned:
                found.append(tensor)
        return found

    def update(self, namespace: Mapping[str, Any], execution_count: int | None) -> None:
        """Copy the integer and boolean device tensors that ``namespace`` leads to.

        Call after each good cell, when the device has finished, never after it died. Raises what
        torch raises when the device cannot be read; the copies are then those of before.
        """
        self._take(reachable_tensors(namespace), execution_count, floats=None)

    def take_all(
        self,
        namespace: Mapping[str, Any],
        float_budget: int = FLOAT_BUDGET,
        execution_count: int | None = None,
    ) -> None:
        """Copy every device tensor of the process, for a checkpoint, where it changed since.

        Integers and booleans whatever their size; floats up to ``float_budget`` bytes, those that
        ``namespace`` leads to first. Page-locked CPU memory likewise: in a child the driver's
        mapping of it may be missing. Raises as :meth:`update` does.
        """
        near = reachable_tensors(namespace)
        seen = set(map(id, near))
        far = (tensor for tensor in Heap().tensors() if id(tensor) not in seen)
        self._take([*near, *far], execution_count, floats=float_budget)

    def _take(
        self, tensors: Iterable[torch.Tensor], execution_count: int | None, *, floats: int | None
    ) -> None:
        """Replace the copies. ``floats``: bytes for floats, None to keep only unchanged ones."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            groups = _by_storage(tensors)
            if groups and simulator.context() == "dead":
                # A real device refuses the copy; the memory of a simulated one would still answer.
                raise RuntimeError(messages.REPLAY_DEVICE_DEAD)
            integer_budget = self.budget if floats is None else None
            taken: dict[int, HostCopy] = {}
            order = sorted(groups.items(), key=_smallest_integers_first)
            spent = {False: 0, True: 0}
            for key, group in order:
                copy = self._unchanged(group)
                budget = floats if group.floating else integer_budget
                if group.floating and floats is None:
                    if copy is not None:
                        taken[key] = copy
                    continue
                size = group.storage.nbytes()
                if budget is not None and spent[group.floating] + size > budget:
                    continue
                spent[group.floating] += size
                taken[key] = copy or _copy(group, execution_count)
        self._copies = taken

    def _unchanged(self, group: _Group) -> HostCopy | None:
        copy = self.get(group.storage)
        if copy is None or not group.countable or copy._versions is None:
            return None
        same = copy._versions == group.versions
        return copy if same and copy.storage.nbytes() == group.storage.nbytes() else None


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the strided tensors that hold the memory of ``tensor``.

    For a sparse COO tensor its indices and values; itself for any other.
    """
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the memory of ``tensor``; None for layouts without one (CSR)."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _smallest_integers_first(item: tuple[int, _Group]) -> tuple[bool, int]:
    # Floats keep the order in which they were found: parameters before optimizer state.
    group = item[1]
    return group.floating, 0 if group.floating else group.storage.nbytes()


def _by_storage(tensors: Iterable[torch.Tensor]) -> dict[int, _Group]:
    """Group the tensors whose memory a child cannot read by that memory."""
    groups: dict[int, _Group] = {}
    driver = _driver_is_used()
    for tensor in tensors:
        pinned = driver and not is_device_tensor(tensor) and _is_pinned(tensor)
        if not pinned and not is_device_tensor(tensor):
            continue
        parts = parts_of(tensor)
        for part in parts:
            storage = storage_of(part)
            if storage is None:
                continue
            group = groups.setdefault(storage._cdata, _Group(storage, pinned))
            if not (part.dtype.is_floating_point or part.dtype.is_complex):
                group.floating = False
            if part.is_inference() or len(parts) > 1:  # has no version counter, or one of its own
                group.countable = False
            else:
                group.versions.add(part._version)
    return groups


def _driver_is_used() -> bool:
    """Whether this process has a real CUDA context, without which nothing can be page-locked."""
    return not simulator.is_on() and torch.cuda.is_initialized()


def _is_pinned(tensor: torch.Tensor) -> bool:
    try:
        return bool(torch._C.TensorBase.is_pinned(tensor))
    except (RuntimeError, NotImplementedError):  # a layout that has no such thing
        return False


def _copy(group: _Group, execution_count: int | None) -> HostCopy:
    host = torch.UntypedStorage(group.storage.nbytes(), device="cpu")
    host.copy_(group.storage)
    versions = frozenset(group.versions) if group.countable else None
    return HostCopy(host, execution_count, group.pinned, versions, StorageWeakRef(group.storage))
