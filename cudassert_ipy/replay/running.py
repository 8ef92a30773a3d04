"""The parent's side of a replay that runs: events, output, time-out, cancel, end."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import selectors
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cudassert_ipy import messages
from cudassert_ipy.model import Finding, Outcome, Replay, ReplayState, TensorRow
from cudassert_ipy.replay.crash import TAIL, describe_crash, without_stack
from cudassert_ipy.replay.protocol import (
    Called,
    Done,
    Event,
    EventDecoder,
    Found,
    Output,
    Remark,
    Row,
)

if TYPE_CHECKING:
    from cudassert_ipy.checks.call_data import CallData
    from cudassert_ipy.replay.process import Child

OUTPUT_LIMIT: Final = 64 * 1024
"""Characters of the cell's output that are kept; the rest is read and dropped."""
ROW_LIMIT: Final = 2_000
_GRACE = 2.0
"""Seconds after the time-out in which the child may end itself and tell."""
_TICK = 0.2
_CHUNK = 64 * 1024
_CHUNKS_AT_ONCE = 64

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How a replay ended.

    Attributes:
        replay: outcome, times and notes.
        finding: the first bad operand, whatever the cell did with the exception.
        tensors: the operands that were looked at, in the order of the operations.
        output: what the cell printed, cut to ``OUTPUT_LIMIT``.
        cell_seconds: how long the code itself ran, without what was set up before it.
        more: further bad operands, one for each place in the code.
        call: the call that the finding is about; None where it could not be told.

    """

    replay: Replay
    finding: Finding | None
    tensors: tuple[TensorRow, ...]
    output: str
    cell_seconds: float = 0.0
    more: tuple[Finding, ...] = ()
    call: CallData | None = None


class RunningReplay:
    """A replay in a child process. Use :meth:`wait`, or await :meth:`result`, or drive it yourself.

    To drive it: wait until :meth:`fileno` is readable (at most 0.2 s, since the end of a child that
    left processes behind is not an event), call :meth:`read_events`, until :attr:`outcome` is set.
    """

    def __init__(self, child: Child, state: ReplayState, timeout: float) -> None:
        self._child = child
        self._state: ReplayState = state
        self._timeout = timeout
        self._started = time.monotonic()
        self._decoder = EventDecoder(child.token)
        self._selector = selectors.DefaultSelector()
        self._listen()
        self._finding: Finding | None = None
        self._more: dict[object, Finding] = {}
        self._call: CallData | None = None
        self._remark: str | None = None
        self._rows: list[TensorRow] = []
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._output: list[str] = []
        self._output_room = OUTPUT_LIMIT
        self._tail = ""
        self._heard = False
        self._done: Done | None = None
        self._result: ReplayResult | None = None

    @property
    def outcome(self) -> ReplayResult | None:
        """The result; None while the child runs."""
        return self._result

    def fileno(self) -> int:
        """Return a descriptor that is readable when events wait. Stays open until the end."""
        return self._selector.fileno()

    def read_events(self) -> list[Event]:
        """Return the events since the last call, without blocking. Ends the replay when due."""
        if self._result is not None:
            return []
        events = self._drain()
        elapsed = time.monotonic() - self._started
        if self._done is not None:
            events += self._drain()  # what the cell printed before the last word
            self._finish(self._done)
        elif self._child.has_ended():
            events += self._drain()  # what it said between the first look and its end
            self._finish(self._done or self._crashed(elapsed))
        elif elapsed > self._timeout + _GRACE and not self._heard:
            # Who was heard just now may only have waited for a reader; it ends itself in time.
            note = messages.REPLAY_TIMED_OUT.format(seconds=self._timeout)
            self._finish(Done(outcome="timed_out", seconds=elapsed, note=note))
        return events

    def cancel(self) -> ReplayResult:
        """End the child and everything it started, now. Does nothing when the replay is over."""
        if self._result is None:
            self._drain()
            elapsed = time.monotonic() - self._started
            return self._finish(self._done or Done(outcome="cancelled", seconds=elapsed))
        return self._result

    def wait(self, on_event: OnEvent | None = None) -> ReplayResult:
        """Block until the end and return the result. ``KeyboardInterrupt`` cancels."""
        try:
            while self._result is None:
                self._selector.select(_TICK)
                _tell(on_event, self.read_events())
        except KeyboardInterrupt:
            return self.cancel()
        return self._result

    async def result(self, on_event: OnEvent | None = None) -> ReplayResult:
        """Return the result, without blocking the event loop. Cancelling the task cancels."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        descriptor = self.fileno()
        loop.add_reader(descriptor, readable.set)
        try:
            while self._result is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(readable.wait(), _TICK)
                readable.clear()
                _tell(on_event, self.read_events())
        finally:
            loop.remove_reader(descriptor)
            self.cancel()
        return self._result

    def _listen(self) -> None:
        for descriptor in (self._child.events, self._child.output):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def _drain(self) -> list[Event]:
        """Read what waits on both pipes; bounded, so that a flood cannot hold the caller."""
        events: list[Event] = []
        self._heard = False
        for key, _ in self._selector.select(0):
            for data in self._chunks(key.fd):
                if key.fd == self._child.output:
                    events += self._printed(data)
                else:
                    events += self._decoder.feed(data)
        for event in events:
            self._note(event)
        return events

    def _chunks(self, descriptor: int) -> Iterator[bytes]:
        for _ in range(_CHUNKS_AT_ONCE):
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(descriptor)
                return
            self._heard = True
            yield data

    def _printed(self, data: bytes) -> list[Output]:
        text = self._text.decode(data)
        self._tail = (self._tail + text)[-TAIL:]
        if self._output_room <= 0:
            return []
        text = text[: self._output_room]
        self._output_room -= len(text)
        if self._output_room == 0:
            text += messages.REPLAY_OUTPUT_CUT
        self._output.append(text)
        return [Output(text=text)] if text else []

    def _note(self, event: Event) -> None:
        match event:
            case Found(finding=finding):
                if self._finding is None:
                    self._finding = finding
                elif _place(finding) != _place(self._finding):
                    self._more.setdefault(_place(finding), finding)
            case Called(call=call):
                self._call = self._call or call
            case Remark(text=text):
                self._remark = self._remark or text
            case Row(row=row) if len(self._rows) < ROW_LIMIT:
                self._rows.append(row)
            case Done():
                self._done = self._done or event

    def _crashed(self, elapsed: float) -> Done:
        note = describe_crash(self._tail, self._child.how_it_ended)
        if self._finding is not None:
            note += f" {messages.REPLAY_FOUND_BEFORE}"
        return Done(outcome="crashed", seconds=elapsed, note=note)

    def _finish(self, done: Done) -> ReplayResult:
        self._child.end()
        self._selector.close()
        outcome: Outcome = done.outcome
        if self._finding is not None and outcome in ("clean", "crashed", "timed_out"):
            outcome = "raised"  # what it died of afterwards is in the note
        replay = Replay(
            where="cpu",
            state=self._state,
            outcome=outcome,
            exception=self._remark or done.exception,
            seconds=done.seconds,
            substituted=done.substituted,
            note=done.note,
            reasons=done.reasons,
        )
        output = "".join(self._output)
        if done.outcome == "crashed":
            output = without_stack(output)
        self._result = ReplayResult(
            replay,
            self._finding,
            tuple(self._rows),
            output,
            done.cell_seconds,
            tuple(self._more.values()),
            self._call,
        )
        return self._result


def _place(finding: Finding) -> object:
    """Return what findings of one operand at one place in the code have in common."""
    file = finding.frames[-1].file if finding.frames else ""
    where = (file, finding.line, finding.column, finding.end_column)
    return (*where, finding.aten, finding.operand, finding.expression)


def _tell(on_event: OnEvent | None, events: list[Event]) -> None:
    if on_event is not None:
        for event in events:
            on_event(event)
