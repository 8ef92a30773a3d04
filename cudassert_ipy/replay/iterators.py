"""DataLoader iterators of before the fork, whose worker processes belong to the parent.

Taking a batch from one in the child would take it from the parent, which then waits for ever.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.replay.find import Heap

_KEPT: Final[list[Any]] = []


class NeedsParentError(RuntimeError):
    """The replayed cell used something that belongs to the parent process."""


def forbid_worker_iterators(heap: Heap, used: Callable[[str], None]) -> int:
    """Make every iterator with workers raise :class:`NeedsParentError`; return how many there are.

    ``used`` is told the reason when the cell takes from one, whether or not it catches the error. A
    loader that keeps its workers (``persistent_workers``) starts new ones instead. The iterators
    are kept for ever: their destructors would end the parent's workers.
    """
    # Both classes have had these names and attributes from torch 1.2 to 2.14.
    module = sys.modules.get("torch.utils.data.dataloader")
    iterator_type = getattr(module, "_MultiProcessingDataLoaderIter", None)
    loader_type = getattr(module, "DataLoader", None)
    if iterator_type is None or loader_type is None:
        return 0

    def refuse(*_: Any, **__: Any) -> NoReturn:
        used(messages.REPLAY_WORKER_ITERATOR)
        raise NeedsParentError(messages.REPLAY_WORKER_ITERATOR)

    iterators = heap.instances(iterator_type)
    for iterator in iterators:
        # `_BaseDataLoaderIter.__next__` looks it up on the instance.
        iterator._next_data = refuse
    for loader in heap.instances(loader_type):
        if getattr(loader, "_iterator", None) is not None:
            loader._iterator = None
    _KEPT.extend(iterators)
    return len(iterators)
