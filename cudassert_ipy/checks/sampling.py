"""Which samples of its dataset a DataLoader puts into each batch.

The loader's own (batch) sampler is watched while one iteration begins: the k-th group of indices
that it yields is the k-th batch, also with shuffling and with workers, which fetch in order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch.utils.data as data

from cudassert_ipy import messages
from cudassert_ipy.checks.model_copy import kept_random_state
from cudassert_ipy.checks.paths import Path, as_tensor, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from cudassert_ipy.checks.plan import Bad

_MAX_GROUP = 1_024
"""A larger batch is not read again sample by sample."""
_MAX_READ = 2_000
_SAME_ORDER = ("torch.utils.data._utils.collate", "transformers.data.data_collator")


class Sampling:
    """Watches one iteration over a loader; ``reason`` says why indices are not known, or None."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._groups: deque[Any] = deque()
        self._watched: _Watched | None = None
        self._name = ""
        self._read = 0
        self.reason = _reason(loader)

    def begin(self) -> None:
        """Watch the sampler from now on."""
        if self.reason is not None:
            return
        # What DataLoader._index_sampler returns (torch 2.4 to 2.14); DataLoader.__setattr__ would
        # refuse a new sampler.
        self._name = "batch_sampler" if self._loader.batch_sampler is not None else "sampler"
        own = vars(self._loader)
        self._watched = _Watched(own[self._name], self._groups)
        own[self._name] = self._watched
        # Workers that stay alive between iterations belong to an iterator with its own reference.
        iterator = own.get("_iterator")
        if iterator is not None:
            iterator._index_sampler = self._watched

    def end(self) -> None:
        """Give the loader its sampler back; the running iteration goes on being watched."""
        if self._watched is None:
            return
        own = vars(self._loader)
        own[self._name] = self._watched.sampler
        iterator = own.get("_iterator")
        if iterator is not None and iterator._index_sampler is self._watched:
            iterator._index_sampler = self._watched.sampler
        self._watched = None

    def next_group(self) -> tuple[Any, ...] | None:
        """Return the dataset indices of the next batch; None where they are not known."""
        if self.reason is not None or not self._groups:
            return None
        group = self._groups.popleft()
        return tuple(group) if isinstance(group, list | tuple) else (group,)

    def samples_of(
        self, bad: Bad, rows: list[int], group: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], bool]:
        """Return the dataset indices of bad rows, and whether they are certain.

        Where a collate function may have moved samples, those of the batch are read again from
        the dataset, and the ones that hold the bad values are named; where this tells nothing, the
        indices of the whole batch are returned as possible ones.
        """
        if len(group) == 1:
            return group, True
        if rows and bad.row_count == len(group) and self._keeps_order():
            return tuple(group[row] for row in rows), True
        if not rows or len(group) > _MAX_GROUP or self._read + len(group) > _MAX_READ:
            return group, False
        self._read += len(group)
        holding = self._holding(bad, group)
        if holding and (bad.row_count != len(group) or len(holding) == len(rows)):
            return holding, len(holding) == 1 or len(holding) == len(rows)
        return group, False

    def _keeps_order(self) -> bool:
        collate = self._loader.collate_fn
        module = getattr(collate, "__module__", None) or type(collate).__module__
        return str(module) in _SAME_ORDER

    def _holding(self, bad: Bad, group: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the indices of those samples that hold a bad value where the batch has it."""
        values = set(bad.finding.bad_values)
        found = []
        with kept_random_state():
            for index in group:
                try:
                    sample = self._loader.dataset[index]
                    if _holds(sample, bad.path, values):
                        found.append(index)
                except Exception:
                    return ()
        return tuple(found)


class _Watched:
    """A sampler that also appends what it yields to a list."""

    def __init__(self, sampler: Any, groups: deque[Any]) -> None:
        self.sampler = sampler
        self._groups = groups

    def __iter__(self) -> Iterator[Any]:
        self._groups.clear()
        # At once, as the loader does: a sampler may draw random numbers here.
        return self._noted(iter(self.sampler))

    def _noted(self, groups: Iterator[Any]) -> Iterator[Any]:
        for group in groups:
            self._groups.append(group)
            yield group

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["sampler"], name)


def _reason(loader: Any) -> str | None:
    if not isinstance(loader, data.DataLoader):
        return messages.SCAN_NO_LOADER
    if isinstance(loader.dataset, data.IterableDataset):
        return messages.SCAN_ITERABLE
    if type(loader).__iter__ is not data.DataLoader.__iter__:
        return messages.SCAN_OWN_ITERATION.format(kind=type(loader).__name__)
    if loader.num_workers and not getattr(loader, "in_order", True):
        return messages.SCAN_NOT_IN_ORDER
    return None


def _holds(sample: Any, path: Path, values: set[Any]) -> bool:
    """Whether a sample holds one of the values, at the same key where it has the key."""
    part = sample
    try:
        for step in path[:1]:
            part = getattr(sample, str(step.key)) if step.is_attribute else sample[step.key]
    except (KeyError, IndexError, TypeError, AttributeError):
        part = sample
    whole = as_tensor(part)
    tensors = [whole] if whole is not None else [leaf.tensor for leaf in walk(part).found]
    return any(_has_one(tensor, values) for tensor in tensors)


def _has_one(tensor: Tensor, values: set[Any]) -> bool:
    return any(bool((tensor == value).any()) for value in values)
