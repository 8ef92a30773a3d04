"""The last host batches of every DataLoader loop of a cell, with the dataset items in them.

While a cell runs, the last few batches of each loader are kept by reference, so that a replay can
start with them instead of with the whole cell, and so that a row of a batch can be named as
``dataset[4711]``. Two methods of a private class of torch are wrapped for that; where they are
missing nothing is kept.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from cudassert_ipy.checks.frames import user_frames
from cudassert_ipy.replay.batch_rows import dataset_indices
from cudassert_ipy.replay.plain import no_modes
from cudassert_ipy.standin.device import is_device_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from cudassert_ipy.model import Finding

KEPT: Final = 4
"""Batches kept of each loader."""
_MAX_LOADERS = 8
_MAX_SITES = 6
_MAX_PARTS = 200
_MAX_DEPTH = 4
_MAX_INDICES = 20_000
_DRAWN = "_cudassert_drawn"
"""Attribute of an iterator: what its sampler drew and it has not given yet, by task."""
_COPY_BYTES = 1 << 20
"""Integers of one batch that are copied: the cell may change them in place (``labels -= 1``)."""

Site = tuple["CodeType", int]
"""A user's code object and the line in it that asked for a batch."""


@dataclass(slots=True)
class _Leaf:
    """One tensor of a batch as the loader gave it; ``copy`` only of small integers."""

    tensor: torch.Tensor
    version: int | None
    copy: torch.Tensor | None

    @property
    def changed(self) -> bool:
        return self.version != _version(self.tensor)

    @property
    def original(self) -> torch.Tensor | None:
        """The tensor with the values it came with; None where those are gone."""
        return self.copy if self.copy is not None else None if self.changed else self.tensor


class Batch:
    """What a loader gave once, held by reference.

    Containers may be changed by the cell afterwards (``batch["x"] = batch["x"].cuda()``), so what
    they held is noted too; :meth:`restore` puts it back, in a child.

    Attributes:
        value: what the loop was given.
        number: which batch of its epoch this is, counted from 0.
        serial: order among the batches of all loaders.
        sites: where the user's code asked for it, innermost frame first.
        sampler: what draws the indices of its loader; the same object in every iterator.
        dataset: of its loader.
        keeps_order: whether row ``i`` is made of index ``i``, for certain.

    """

    def __init__(
        self,
        value: Any,
        iterator: Any,
        *,
        serial: int,
        raw_indices: Any,
        sites: tuple[Site, ...],
    ) -> None:
        self.value = value
        self.number = iterator._num_yielded - 1
        self.sampler = iterator._index_sampler
        self.dataset = iterator._dataset
        self.keeps_order = _keeps_order(iterator)
        self.serial = serial
        self.sites = sites
        self._raw_indices = raw_indices
        self._containers: list[tuple[Any, Any]] = []
        self._leaves: list[_Leaf] = []
        self._room = _COPY_BYTES
        with no_modes():
            self._note(value, 0)

    @property
    def indices(self) -> tuple[int, ...] | None:
        """Dataset indices, one for each item, in the order of the sampler; None where unknown."""
        raw = self._raw_indices
        if not isinstance(raw, list | tuple) or not 0 < len(raw) <= _MAX_INDICES:
            return None
        try:
            return tuple(operator.index(item) for item in raw)
        except TypeError:  # a sampler may draw anything: names, pairs
            return None

    @property
    def intact(self) -> bool:
        """Whether a replay can be given what the loop was given."""
        return all(leaf.original is not None for leaf in self._leaves)

    def originals(self) -> Iterator[torch.Tensor]:
        """Yield the host tensors with the values they came with."""
        return (leaf.original for leaf in self._leaves if leaf.original is not None)

    def restore(self) -> None:
        """Undo what the cell did to the batch. Only for a child: it changes the user's objects."""
        with no_modes(), torch.no_grad():
            for container, content in self._containers:
                container.clear()
                (container.update if isinstance(container, dict) else container.extend)(content)
            for leaf in self._leaves:
                if leaf.copy is not None and leaf.changed and leaf.tensor.shape == leaf.copy.shape:
                    leaf.tensor.copy_(leaf.copy)

    def _note(self, value: Any, depth: int) -> None:
        """Note tensors and containers; of user classes, only what stands in their ``__dict__``."""
        kind = type(value)
        if depth > _MAX_DEPTH or len(self._leaves) + len(self._containers) >= _MAX_PARTS:
            return
        if issubclass(kind, torch.Tensor):
            self._note_tensor(value)
        elif issubclass(kind, dict):
            self._note_dict(value, depth)
        elif issubclass(kind, list):
            content = list.copy(value)
            self._containers.append((value, content))
            for item in islice(content, _MAX_PARTS):
                self._note(item, depth + 1)
        elif issubclass(kind, tuple):
            for item in islice(tuple.__iter__(value), _MAX_PARTS):
                self._note(item, depth + 1)
        elif not issubclass(kind, type | ModuleType):
            try:
                state = object.__getattribute__(value, "__dict__")
            except AttributeError:
                return
            if type(state) is dict:
                self._note_dict(state, depth)

    def _note_dict(self, value: dict[Any, Any], depth: int) -> None:
        content = dict.copy(value)
        self._containers.append((value, content))
        for item in islice(content.values(), _MAX_PARTS):
            self._note(item, depth + 1)

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        if is_device_tensor(tensor) or tensor.layout is not torch.strided:
            return
        copy = None
        size = tensor.numel() * tensor.element_size()
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and size <= self._room:
            self._room -= size
            copy = tensor.detach().clone()
        self._leaves.append(_Leaf(tensor, _version(tensor), copy))


@dataclass(eq=False, slots=True)
class Loader:
    """One loader of the running cell: its last batches.

    Attributes:
        sampler: what draws the indices.
        batches: the last ``KEPT``.
        total: batches given in this cell.
        ended: whether the last iterator came to its end.

    """

    sampler: Any
    batches: deque[Batch] = field(default_factory=lambda: deque(maxlen=KEPT))
    total: int = 0
    ended: bool = False


class BatchLog:
    """The loaders of the running cell. One of them serves a process: :data:`LOG`."""

    def __init__(self) -> None:
        self.active = False
        self._loaders: dict[int, Loader] = {}
        self._serial = 0
        self._remove: Callable[[], None] | None = None

    def begin(self) -> None:
        """Start with nothing: a cell begins. Installs the wrappers where torch is loaded."""
        self._loaders = {}
        self.active = self._remove is not None or self._install()

    def end(self) -> tuple[Loader, ...]:
        """Return the loaders of the cell that ends, the last used one first, and forget them."""
        self.active = False
        loaders, self._loaders = self._loaders, {}
        used = [loader for loader in loaders.values() if loader.batches]
        return tuple(sorted(used, key=lambda loader: -loader.batches[-1].serial))

    def remove(self) -> None:
        """Give torch its own methods back."""
        self.end()
        if self._remove is not None:
            self._remove()
            self._remove = None

    def name_rows(self, finding: Finding, *, ask_dataset: bool = False) -> tuple[int, ...]:
        """Return the dataset items of a finding made while the cell runs.

        See :func:`dataset_indices`.
        """
        batches = (batch for loader in self._loaders.values() for batch in loader.batches)
        return dataset_indices(finding, _in_order(batches), ask_dataset=ask_dataset)

    def drew(self, iterator: Any, index: Any) -> None:
        """Note that the sampler of ``iterator`` gave ``index``."""
        # `_send_idx`: of `_MultiProcessingDataLoaderIter` (1.2 to 2.14); the other has one task.
        state = vars(iterator)
        drawn = state.get(_DRAWN)
        if drawn is None:
            drawn = state[_DRAWN] = {}
        kind = type(index)
        drawn[state.get("_send_idx", 0)] = tuple(index) if kind is list or kind is tuple else None

    def gave(self, iterator: Any, value: Any) -> None:
        """Note that ``iterator`` gave the batch ``value`` to the cell."""
        raw = self._drawn_for(iterator)
        sampler = iterator._index_sampler
        loader = self._loaders.get(id(sampler))
        if loader is None:
            if len(self._loaders) >= _MAX_LOADERS:
                return
            loader = self._loaders[id(sampler)] = Loader(sampler)
        loader.total += 1
        loader.ended = False
        self._serial += 1
        sites = tuple(
            (frame.f_code, frame.f_lineno)
            for frame in islice(user_frames(sys._getframe(2)), _MAX_SITES)
        )
        loader.batches.append(
            Batch(value, iterator, serial=self._serial, raw_indices=raw, sites=sites)
        )

    def passed(self, iterator: Any) -> None:
        """Forget what was drawn for a batch given between cells, to a thread of the user's."""
        if _DRAWN in vars(iterator):
            self._drawn_for(iterator)

    def ended(self, iterator: Any) -> None:
        """Note that ``iterator`` has no more batches."""
        loader = self._loaders.get(id(iterator._index_sampler))
        if loader is not None:
            loader.ended = True

    def _drawn_for(self, iterator: Any) -> Any:
        """Return what the sampler drew for the batch that was just given; None where unknown."""
        drawn = vars(iterator).get(_DRAWN) or {}
        if not hasattr(iterator, "_rcvd_idx"):
            raw = drawn.pop(0, None)
        else:
            raw = drawn.pop(iterator._rcvd_idx - 1, None)
            # Out of order (`in_order=False`, from 2.6 on) nothing tells which task was answered.
            if not getattr(iterator, "_in_order", True):
                raw = None
        # An IterableDataset draws nothing; without automatic batching an index is no item.
        known = iterator._dataset_kind == 0 and iterator._auto_collation
        return raw if known else None

    def _install(self) -> bool:
        # Both have had these names, and the iterators the attributes read above, from 1.2 to 2.14.
        module = sys.modules.get("torch.utils.data.dataloader")
        kind = getattr(module, "_BaseDataLoaderIter", None)
        give: Any = getattr(kind, "__next__", None)
        draw: Any = getattr(kind, "_next_index", None)
        if kind is None or not callable(give) or not callable(draw):
            return False
        own = {"__next__": give, "_next_index": draw}
        log = self

        @functools.wraps(give)
        def next_batch(iterator: Any) -> Any:
            __tracebackhide__ = True  # IPython leaves the frame out of the user's traceback
            try:
                value = give(iterator)
            except StopIteration:
                if log.active:
                    log._safely(log.ended, iterator)
                raise
            if log.active:
                log._safely(log.gave, iterator, value)
            else:
                log._safely(log.passed, iterator)
            return value

        @functools.wraps(draw)
        def next_index(iterator: Any) -> Any:
            __tracebackhide__ = True
            index = draw(iterator)
            log._safely(log.drew, iterator, index)
            return index

        wrappers = {"__next__": next_batch, "_next_index": next_index}
        for name, wrapper in wrappers.items():
            setattr(kind, name, wrapper)

        def remove() -> None:
            for name, wrapper in wrappers.items():
                if kind.__dict__.get(name) is wrapper:  # else somebody wrapped it after us
                    setattr(kind, name, own[name])

        self._remove = remove
        return True

    def _safely(self, note: Callable[..., None], *args: Any) -> None:
        try:
            note(*args)
        except Exception:  # the user's loop must not suffer from a note of ours
            self.active = False
            self._loaders = {}


LOG: Final = BatchLog()


def _in_order(batches: Iterator[Batch]) -> list[Batch]:
    return sorted(batches, key=lambda batch: batch.serial)


def _keeps_order(iterator: Any) -> bool:
    from torch.utils.data import default_collate

    return iterator._collate_fn is default_collate


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
