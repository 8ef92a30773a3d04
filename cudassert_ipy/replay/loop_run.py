"""In the child: run the body of a loop in place of the cell, its loader giving the last batches."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.replay.batch_rows import dataset_indices, holder
from cudassert_ipy.replay.loop_body import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cudassert_ipy.model import Finding
    from cudassert_ipy.replay.batches import Batch, Loader
    from cudassert_ipy.replay.loop_body import LoopBody

_SHOWN_ITEMS = 6
_TEXT_LIMIT = 80


class NothingRanError(RuntimeError):
    """The loop was over at once: its body did not run."""


class _AllSeen(BaseException):
    """The loader is asked for more than was kept. Not for an ``except`` of the user's."""


class BodyRun:
    """Runs a :class:`LoopBody`; called in the child as what runs a cell.

    Args:
        body: what to run.
        around: runs a function as the shell would run a cell.
        show_values: whether notes may hold values of variables.

    """

    def __init__(
        self,
        body: LoopBody,
        around: Callable[[Callable[[], None]], None],
        *,
        show_values: bool = True,
    ) -> None:
        self._show_values = show_values
        self._body = body
        self._around = around
        self._runs = 0
        self._seen: list[Batch] = []
        self._notes: list[str] = []

    def __call__(self, _source: str) -> None:
        """Run the body. Raises what it raises, and ``NothingRanError``."""
        self._around(self._run)

    def found(self, finding: Finding) -> Finding:
        """Return the finding with the frames around the loop and the dataset items, if proven."""
        if not self._notes:
            self._notes = [self._place_of(finding)]
        body = self._body
        frames = finding.frames
        items = dataset_indices(finding, self._seen, ask_dataset=True)
        return replace(finding, frames=(*body.outer, *frames), dataset_indices=items)

    def notes(self) -> list[str]:
        """Return in which run of the body the first finding was made."""
        return self._notes

    def _run(self) -> None:
        body = self._body
        body.variables.update(body.bindings)
        body.variables[STEP] = self._count
        feeds = [_Feed(loader, self._seen) for loader in body.loaders]
        try:
            with _Feeding(feeds):
                exec(body.code, body.variables)  # noqa: S102 - the user's own cell, in the child
        except _AllSeen:
            pass
        if not self._runs or (body.batches and not self._own_seen()):
            raise NothingRanError(messages.LOOP_DID_NOT_RUN)

    def _count(self) -> None:
        """Count a round; stop where the rounds go by something else than what is fed."""
        if self._runs and self._body.batches and not self._own_seen():
            raise _AllSeen
        self._runs += 1

    def _own_seen(self) -> list[Batch]:
        batches = self._body.batches
        return [batch for batch in self._seen if batch.sampler is batches[0].sampler]

    def _place_of(self, finding: Finding) -> str:
        body = self._body
        if not body.batches:
            values = ", ".join(self._values_of_targets())
            if not values:
                return messages.LOOP_FOUND_ONCE.format(loop=body.header)
            return messages.LOOP_FOUND_AT.format(loop=body.header, values=values)
        match = holder(finding, self._seen)
        own = self._own_seen()
        if match is not None:
            batch = match[0]
        elif not own:
            return messages.LOOP_FOUND_ELSEWHERE.format(loop=body.header)
        elif len(own) == self._runs:  # one batch each time round: it is the last one given
            batch = own[-1]
        else:
            first, last = body.batches[0].number, body.batches[-1].number
            return messages.LOOP_FOUND_AMONG.format(first=first, last=last, loop=body.header)
        said = messages.LOOP_FOUND_BATCH.format(number=batch.number, loop=body.header)
        made_of = _items(batch.indices)
        return said if made_of is None else f"{said} {made_of}"

    def _values_of_targets(self) -> Iterator[str]:
        for name in self._body.targets if self._show_values else ():
            value = self._body.variables.get(name)
            if type(value) in (int, float, str, bool):
                yield f"{name} = {value!r}"[:_TEXT_LIMIT]


def _items(indices: tuple[int, ...] | None) -> str | None:
    if indices is None:
        return None
    shown = ", ".join(map(str, indices[:_SHOWN_ITEMS]))
    if len(indices) > _SHOWN_ITEMS:
        shown += f", … {indices[-1]}"
    return messages.LOOP_BATCH_ITEMS.format(items=shown)


class _Feed:
    """One loader that gives its kept batches again."""

    def __init__(self, loader: Loader, seen: list[Batch]) -> None:
        self.sampler = loader.sampler
        self._batches = tuple(batch for batch in loader.batches if batch.intact)
        self._seen = seen
        self._next = 0
        self._over = False

    def restart(self, *, once: bool) -> None:
        """Begin again, for a new iterator. ``once``: the loop itself goes by this loader."""
        if self._over and once:
            raise _AllSeen
        self._next, self._over = 0, False

    def give(self) -> Any:
        """Return the next batch. Raises ``StopIteration`` at the end, then ``_AllSeen``."""
        if self._over:
            raise _AllSeen
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

    def __init__(self, feed: _Feed) -> None:
        self._feed = feed

    def __iter__(self) -> _Given:
        return self

    def __next__(self) -> Any:
        return self._feed.give()


class _Feeding:
    """While entered, the loaders of ``feeds`` give what they are fed, and make no iterator."""

    def __init__(self, feeds: list[_Feed]) -> None:
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
            feed = self._feeds.get(id(loader._index_sampler))
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

    def __exit__(self, *_: object) -> None:
        while self._undo:
            kind, name, old = self._undo.pop()
            setattr(kind, name, old)
