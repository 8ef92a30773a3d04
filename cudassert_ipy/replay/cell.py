"""In the child: rebuild the device state on the CPU, run the cell there, and judge how it went."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from cudassert_ipy import messages
from cudassert_ipy.checks.call_data import call_data
from cudassert_ipy.checks.frames import user_frames
from cudassert_ipy.checks.operators import Operator, function_table, table
from cudassert_ipy.errors import OperandError
from cudassert_ipy.replay import backward, memory
from cudassert_ipy.replay.find import Heap
from cudassert_ipy.replay.graphs import forbid_old_graphs
from cudassert_ipy.replay.iterators import forbid_worker_iterators
from cudassert_ipy.replay.locks import renew_file_locks
from cudassert_ipy.replay.modes import ActiveModes
from cudassert_ipy.replay.protocol import Called, Done, Found, Progress, Remark, Row
from cudassert_ipy.replay.reasons import left_open
from cudassert_ipy.replay.replacement import CannotReplaceError, Replaced, replace_device_tensors
from cudassert_ipy.standin import simulator
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import MAX_FINDINGS, Collector, ReplayPolicy
from cudassert_ipy.standin.tags import tag_of
from cudassert_ipy.standin.third_party import custom_cuda

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding, Outcome
    from cudassert_ipy.replay.state import HostCopies

Send = Callable[[Progress | Found | Called | Row | Remark | Done], None]

_TEXT_LIMIT: Final = 2_000
_NO_BACKWARD = "Unable to handle autograd's threading in combination with fork"
"""From ``torch/csrc/autograd/engine.cpp`` (torch 2.6 to 2.14)."""


class CellReplay:
    """One replay of one cell, in the child.

    Args:
        copies: host copies of device storages.
        execute: runs the source of a cell and lets its exception through.
        send: tells the parent; findings are sent at once, so that they survive a crash.
        device_count: devices that the cell sees.
        memory_limit: bytes that the cell may take.

    """

    def __init__(
        self,
        copies: HostCopies,
        execute: Callable[[str], None],
        send: Send,
        *,
        device_count: int,
        memory_limit: int,
    ) -> None:
        self._copies = copies
        self._device_count = device_count
        self._memory_limit = memory_limit
        self._execute = execute
        self._send = send
        self._finding: Finding | None = None
        self._remark: str | None = None
        self._asked = False
        self._needed: list[str] = []
        self._outer_frames = 0
        self._told: set[object] = set()

    def run(self, source: str, started: float) -> Done:
        """Run ``source`` and return the last word; ``started``: ``time.monotonic()`` of then."""
        simulator.off()
        modes = ActiveModes()
        heap = Heap(thaw=True)
        renew_file_locks(heap)
        forbid_worker_iterators(heap, self._needed.append)
        torch.set_num_threads(1)  # a pool's threads did not survive the fork: it would hang
        try:
            tensors = heap.tensors()
            replaced = replace_device_tensors(tensors, self._copies)
        except CannotReplaceError as error:
            note = messages.REPLAY_CANNOT_REPLACE.format(detail=error)
            return Done(outcome="inconclusive", note=note)
        walks = not backward.torch_engine_works() and backward.can_walk()
        if replaced.tensors or walks:
            forbid_old_graphs(tensors, self._needed.append)
        del heap, tensors
        memory.limit_child(self._memory_limit)
        collector = Collector()
        policy = _Policy(collector, self._record, self._tell_call, self._device_count)
        failure = None
        own = backward.own_backward(self._needed.append) if walks else contextlib.nullcontext()
        device = StandinDevice(policy)
        device.context.history = collector.history
        with own, device, modes.user_modes():
            self._outer_frames = sum(1 for _ in user_frames())
            begun = time.monotonic()
            try:
                self._execute(source)
            except BaseException as error:
                failure = error
        now = time.monotonic()
        seconds, cell_seconds = now - started, now - begun
        if self._finding is None and collector.findings:
            # A check above the dispatcher (take_along_dim, one_hot) does not come by `launch`.
            self._finding = self._placed(collector.findings[0])
            self._send(Found(finding=self._finding))
        for row in collector.rows:
            self._send(Row(row=row))
        outcome, notes = self._judge(failure, collector)
        remarks = collector.remarks
        if outcome == "raised":  # of the others, the finding does not depend
            remarks = [text for text in remarks if text == messages.STANDIN_ZERO_DIVISION]
        reasons: tuple[str, ...] = ()
        if outcome == "clean":
            reasons = left_open(collector, device.context)
        return Done(
            outcome=outcome,
            exception=self._exception(failure),
            seconds=seconds,
            cell_seconds=cell_seconds,
            substituted=replaced.substituted,
            note=" ".join([*notes, *remarks, *self._where(), *_as_of(replaced)]) or None,
            reasons=reasons,
        )

    def _record(self, finding: Finding, func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        """Tell a finding at once; for the first, tell also what CPU torch says to it."""
        place = (finding.frames, finding.column, finding.operand, finding.expression)
        if place in self._told or len(self._told) >= MAX_FINDINGS:
            return  # a loop whose `except` lets it go on
        self._told.add(place)
        finding = backward.name_node(finding)
        inner = sum(1 for _ in user_frames()) - self._outer_frames
        frames = finding.frames[-inner:] if inner > 0 else finding.frames
        finding = self._placed(replace(finding, frames=frames))
        self._send(Found(finding=finding))
        if self._finding is None:
            self._finding = finding
            self._asked = func is not None
            self._remark = _what_cpu_says(func, args, kwargs)
            if self._remark is not None:
                self._send(Remark(text=self._remark))

    def _tell_call(
        self, finding: Finding, operator: Operator, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        """Tell the call of the first finding, before anything can change its tensors."""
        if self._finding is not None:
            return
        try:
            call = call_data(operator, args, kwargs, finding, _is_on_device)
        except (RuntimeError, TypeError, ValueError, LookupError, NotImplementedError):
            return  # odd tensors (batched, foreign): the finding stands, without a script
        self._send(Called(call=call))

    def _placed(self, finding: Finding) -> Finding:
        """Let who executes add what only it knows: dataset items, frames around a loop."""
        found: Callable[[Finding], Finding] | None = getattr(self._execute, "found", None)
        return finding if found is None else found(finding)

    def _where(self) -> list[str]:
        notes: Callable[[], list[str]] | None = getattr(self._execute, "notes", None)
        return [] if notes is None else notes()

    def _judge(
        self, failure: BaseException | None, collector: Collector
    ) -> tuple[Outcome, list[str]]:
        if self._finding is not None:
            silent = messages.REPLAY_CPU_SILENT if self._asked else messages.REPLAY_CPU_NOT_ASKED
            return "raised", [] if self._remark else [silent]
        if self._needed:
            return "inconclusive", self._needed[:1]
        notes = collector.gaps[:1]
        if not notes and failure is not None and not isinstance(failure, SystemExit):
            notes.append(_why_it_stopped(failure))
        if collector.substitute_index_passed:
            notes.append(messages.REPLAY_SUBSTITUTE_PASSED)
        elif collector.substitute_integer_read:
            notes.append(messages.REPLAY_SUBSTITUTE_READ)
        if notes:
            return "inconclusive", notes
        return "clean", [] if failure is None else [messages.REPLAY_EXITED]

    def _exception(self, failure: BaseException | None) -> str | None:
        if self._remark is not None:
            return self._remark
        if failure is None or isinstance(failure, OperandError | SystemExit):
            return None
        return _text_of(failure)


class _Policy(ReplayPolicy):
    """The replay's policy, which tells each finding where it is made."""

    def __init__(
        self,
        collector: Collector,
        record: Callable[[Finding, Any, tuple[Any, ...], Any], None],
        tell_call: Callable[[Finding, Operator, tuple[Any, ...], Any], None],
        device_count: int,
    ) -> None:
        super().__init__(collector, device_count=device_count)
        self._record = record
        self._tell_call = tell_call

    def found(
        self, findings: list[Finding], operator: Operator, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        self._tell_call(findings[0], operator, args, kwargs)
        ask = _checked_on_cpu(operator)
        for finding in findings:
            if self.collector.substitute_integer_read:
                finding = replace(finding, certainty="depends_on_substitutes")  # noqa: PLW2901
            self._record(finding, ask, args, kwargs)


def _is_on_device(tensor: torch.Tensor) -> bool:
    found = tag_of(tensor)
    return found is not None and found.device_index is not None


def _checked_on_cpu(operator: Operator | None) -> Any:
    """Return what to call to hear what CPU torch says; None where its kernel checks nothing."""
    if operator is None or not operator.cpu_checks:
        return None
    rows = {**table(), **function_table()}
    return next((func for func, row in rows.items() if row is operator), None)


def _what_cpu_says(func: Any, args: tuple[Any, ...], kwargs: Any) -> str | None:
    """Run the bad operation on CPU torch and return its message; None where it says nothing.

    Only operations whose CPU kernels check their operands come here (``Operator.cpu_checks``): they
    do not crash. The child's tensors may be changed by it: nobody looks at them after an exception.
    """
    if func is None:
        return None
    try:
        func(*args, **(kwargs or {}))
    except Exception as error:
        return _text_of(error)
    return None


def _why_it_stopped(failure: BaseException) -> str:
    if isinstance(failure, MemoryError) or "can't allocate memory" in _text_of(failure):
        return messages.REPLAY_NO_MEMORY
    for error in _chain(failure):
        needs_device = custom_cuda(error)
        if needs_device is not None:
            return needs_device
        if isinstance(error, OSError) and error.errno in (errno.EBADF, errno.ENOTSOCK):
            return messages.REPLAY_NEEDS_SHARED
        if _NO_BACKWARD in _text_of(error):
            return messages.REPLAY_NO_BACKWARD
    return messages.REPLAY_EXCEPTION


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}"[:_TEXT_LIMIT]


def _as_of(replaced: Replaced) -> list[str]:
    if not replaced.cells:
        return []
    return [messages.values_of_cells(replaced.cells)]
