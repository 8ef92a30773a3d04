"""In the child: DataLoaders that give the batches that were kept of them, and nothing else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudassert_ipy.replay.batches import Batch, Loader


class AllSeen(BaseException):
    """The loader is asked for more than was kept. Not for an ``except`` of the user's."""


class Feed:
    """One loader that gives its kept batches again."""

    def __init__(self, loader: Loader, seen: list[Batch]) -> None:
        self.sampler = loader.sampler
        self.dataset = loader.batches[-1].dataset
        self._batches = tuple(batch for batch in loader.batches if batch.intact)
        self._seen = seen
        self._next = 0
        self._over = False

    def restart(self, *, once: bool) -> None:
        """Begin again, for a new iterator. ``once``: the loop itself goes by this loader."""
        if self._over and once:
            raise AllSeen
        self._next, self._over = 0, False

    def give(self) -> Any:
        """Return the next batch. Raises ``StopIteration`` at the end, then ``AllSeen``."""
        if self._over:
            raise AllSeen
        if self._next == len(self._batches):
            self._over = True
            raise StopIteration
        batch = self._batches[self._next]
        self._next += 1
        batch.restore()
        self._seen.append(batch)
        return batch.value


class _Given:
    """What ``iter(loader)`` returns while its loader is fed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __iter__(self) -> _Given:
        return self

    def __next__(self) -> Any:
        return self._feed.give()


class Feeding:
    """While entered, the loaders of ``feeds`` give what they are fed, and make no iterator.

    Args:
        feeds: the loader that the loop goes by first.
        by_dataset: a loader that is made anew is fed as the kept one of its dataset, and none of
            another dataset gives anything.

    """

    def __init__(self, feeds: list[Feed], *, by_dataset: bool = False) -> None:
        self._by_dataset = by_dataset
        self._feeds = {id(feed.sampler): feed for feed in feeds}
        self._own = feeds[0] if feeds else None
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        module = sys.modules.get("torch.utils.data.dataloader")
        if module is None or not self._feeds:
            return
        loader_type, iterator_type = module.DataLoader, module._BaseDataLoaderIter
        make, give = loader_type.__iter__, iterator_type.__next__

        def iterate(loader: Any) -> Any:
            feed = self._feed_of(loader)
            if feed is None:
                return make(loader)
            feed.restart(once=feed is self._own)
            return _Given(feed)

        def next_batch(iterator: Any) -> Any:
            feed = self._feeds.get(id(iterator._index_sampler))
            return give(iterator) if feed is None else feed.give()

        for kind, name, new in (
            (loader_type, "__iter__", iterate),
            (iterator_type, "__next__", next_batch),
        ):
            self._undo.append((kind, name, getattr(kind, name)))
            setattr(kind, name, new)

    def _feed_of(self, loader: Any) -> Feed | None:
        feed = self._feeds.get(id(loader._index_sampler))
        if feed is not None or not self._by_dataset:
            return feed
        feed = next((f for f in self._feeds.values() if f.dataset is loader.dataset), None)
        if feed is None:
            raise AllSeen
        return feed

    def __exit__(self, *_: object) -> None:
        while self._undo:
            kind, name, old = self._undo.pop()
            setattr(kind, name, old)
