"""In the child: run the body of a loop in place of the cell, its loader giving the last batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.replay.batch_rows import dataset_indices, holder
from cudassert_ipy.replay.feeding import AllSeen, Feed, Feeding
from cudassert_ipy.replay.loop_body import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cudassert_ipy.model import Finding
    from cudassert_ipy.replay.batches import Batch, Loader
    from cudassert_ipy.replay.loop_body import LoopBody

_SHOWN_ITEMS = 6
_TEXT_LIMIT = 80


class NothingRanError(RuntimeError):
    """The loop was over at once: its body did not run."""


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
        feeds = [Feed(loader, self._seen) for loader in body.loaders]
        try:
            with Feeding(feeds):
                exec(body.code, body.variables)  # noqa: S102 - the user's own cell, in the child
        except AllSeen:
            pass
        if not self._runs or (body.batches and not self._own_seen()):
            raise NothingRanError(messages.LOOP_DID_NOT_RUN)

    def _count(self) -> None:
        """Count a round; stop where the rounds go by something else than what is fed."""
        if self._runs and self._body.batches and not self._own_seen():
            raise AllSeen
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


class FedCell:
    """Runs a whole cell with loaders that give only their last batches.

    For loops that cannot be cut out: of a library, with ``return`` in them, in a comprehension.

    Args:
        run: runs the cell.
        loaders: of the failed run, the last used one first.

    """

    def __init__(self, run: Callable[[str], None], loaders: Sequence[Loader]) -> None:
        self._run = run
        self._loaders = loaders
        self._seen: list[Batch] = []
        self._notes: list[str] = []

    def __call__(self, source: str) -> None:
        """Run the cell. Raises what it raises, and ``NothingRanError`` if it took no batch."""
        feeds = [Feed(loader, self._seen) for loader in self._loaders]
        try:
            with Feeding(feeds, by_dataset=True):
                self._run(source)
        except AllSeen:
            pass
        if not self._seen:
            raise NothingRanError(messages.LOOP_DID_NOT_RUN)

    def found(self, finding: Finding) -> Finding:
        """Return the finding with the dataset items, if proven."""
        if not self._notes:
            match = holder(finding, self._seen)
            self._notes = [messages.LOOP_FED_CELL]
            if match is not None:
                batch = match[0]
                self._notes.append(messages.LOOP_FED_BATCH.format(number=batch.number))
                self._notes += filter(None, [_items(batch.indices)])
        items = dataset_indices(finding, self._seen, ask_dataset=True)
        return replace(finding, dataset_indices=items)

    def notes(self) -> list[str]:
        """Return that the cell ran with the last batches only, and in which it was found."""
        return self._notes


def _items(indices: tuple[int, ...] | None) -> str | None:
    if indices is None:
        return None
    shown = ", ".join(map(str, indices[:_SHOWN_ITEMS]))
    if len(indices) > _SHOWN_ITEMS:
        shown += f", … {indices[-1]}"
    return messages.LOOP_BATCH_ITEMS.format(items=shown)
