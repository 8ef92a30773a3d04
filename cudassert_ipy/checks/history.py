"""Where the values of an operand came from: the operations of a run that made or changed them.

Each storage carries the short chain of operations that made its values, as an attribute of its
Python object, which torch keeps alive exactly as long as the storage itself (seen in torch 2.6 to
2.14). So nothing has to be forgotten: what is kept grows with the tensors that the program keeps,
by at most ``DEPTH`` shared steps each, and not with the operations that it runs.

Whole numbers are followed all the way, with their range at each step. Of a floating-point tensor
only the last operation is kept, without its range: that is looked at when it becomes integers.
"""

from __future__ import annotations

import dis
import functools
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from cudassert_ipy.checks import birth
from cudassert_ipy.checks.frames import is_shell_file, is_user_file, span_of
from cudassert_ipy.checks.statistics import Statistics, summarize
from cudassert_ipy.model import Origin

if TYPE_CHECKING:
    from types import CodeType

    from torch import Tensor

    from cudassert_ipy.checks.operand import Operand

DEPTH: Final = 6
"""Operations that a chain goes back."""
MAX_VALUES: Final = 1_000_000
"""Larger tensors are not looked at on the way: a pass over a million takes a millisecond."""

_RESULTS = 4
_ATTRIBUTE = "_cudassert_made"
_LOADER = "_next_data"
"""``_BaseDataLoaderIter._next_data`` of torch/utils/data/dataloader.py, seen in torch 2.4 to 2.14:
what runs inside it and not in user code makes a batch. Without it only that word is missing."""
_COPIES = frozenset(("clone", "_to_copy", "contiguous", "_pin_memory", "alias", "detach"))
_FILLS = frozenset(("copy_", "fill_", "zero_", "random_"))
"""They leave nothing of what their first argument held."""
_NO_EXPRESSION = frozenset(("STORE_SUBSCR", "STORE_SLICE", "FOR_ITER"))
"""Instructions whose source is a part of the statement that does not say what was done."""

_ODD = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, LookupError)
_storage_of = torch._C.TensorBase.untyped_storage


@dataclass(slots=True, eq=False)  # not frozen: that makes it slow to make
class Summary:
    """What a tensor was when an operation ran."""

    dtype: torch.dtype
    size: int
    statistics: Statistics | None
    """None where it was not looked at."""


@dataclass(slots=True, eq=False)
class Step:
    """One operation on the way."""

    code: CodeType
    instruction: int
    line: int
    is_batch: bool
    func: Any
    shape: tuple[int, ...]
    result: Summary
    given: Summary | None
    bounds: tuple[int, int] | None
    """What its result can be, by its own arguments; None where they do not say."""
    number: int | None
    """The whole number that it calculates with."""
    alone: bool
    """Whether no other tensor than the one it was given has a say in the result."""

    def same_place(self, other: Step) -> bool:
        """Whether both come from the same piece of source."""
        return self.code is other.code and self.instruction == other.instruction


class History:
    """Follows the operations of one run.

    Attributes:
        low_precision: floating-point types of less than four bytes that were computed in.

    """

    def __init__(self) -> None:
        self.low_precision: set[str] = set()

    def before(self, func: Any, args: tuple[Any, ...]) -> Summary | None:
        """Return what an operation that changes its first argument is about to change."""
        if not _kind_of(func).in_place or not args or not isinstance(args[0], torch.Tensor):
            return None
        return None if args[0].dtype.is_floating_point else _summary(args[0])

    def note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        before: Summary | None,
    ) -> None:
        """Note the results of an operation that has just run.

        Args:
            func: an ``OpOverload``.
            args: its positional arguments.
            kwargs: its keyword arguments.
            out: what it returned.
            before: what :meth:`before` returned.

        """
        try:  # noqa: SIM105  this is on the path of every operation
            self._note(func, args, kwargs, out, before)
        except _ODD:
            # Fake, batched, nested and foreign tensors, symbolic sizes: they are not followed.
            pass

    def _note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        before: Summary | None,
    ) -> None:
        kind = _kind_of(func)
        if kind.is_view:
            return
        place = None
        for result in out[:_RESULTS] if type(out) in (tuple, list) else (out,):
            if not isinstance(result, torch.Tensor):
                continue
            dtype = result.dtype
            if dtype.is_complex or dtype is torch.bool:
                continue
            if dtype.is_floating_point and dtype.itemsize < 4:
                self.low_precision.add(_name(dtype))
            source = None
            if kind.copies or not dtype.is_floating_point:
                source = _source(args, result)
                if kind.copies and source is not None and source.dtype == dtype:
                    _set_chain(result, _chain_of(source))
                    continue
            place = place or _user_place()
            if place is None:
                return
            if dtype.is_floating_point:
                made = _of_floats(dtype)
                _set_chain(result, (Step(*place, func, (), made, None, None, None, False),))
                continue
            past, given = _came_from(kind, result, source, before)
            step = Step(
                *place,
                func,
                tuple(result.shape),
                _summary(result),
                given,
                birth.bounds_of(kind.name, func, args),
                birth.number_of(args, kwargs),
                kind.in_place or sum(isinstance(value, torch.Tensor) for value in args) == 1,
            )
            if past and past[-1].same_place(step):  # a loop, or a library's own operations
                if not past[-1].result.dtype.is_floating_point:
                    step = replace(step, given=past[-1].given, number=None)
                past = past[:-1]
            _set_chain(result, (*past[1 - DEPTH :], step))

    def of(self, operand: Operand) -> tuple[Origin, ...]:
        """Return the operations that made the operand's values, the last one last.

        Those of the running call itself (its own conversions) are left out. Must be called below
        the user's frames.
        """
        here = _user_place()
        chain = _chain_of(operand.tensor)
        return tuple(
            _origin(step, operand)
            for step in chain
            if here is None or (step.code, step.instruction) != here[:2]
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    is_view: bool
    in_place: bool
    copies: bool


_kinds: dict[Any, _Kind] = {}


def _kind_of(func: Any) -> _Kind:
    found = _kinds.get(func)
    if found is None:
        found = _kinds[func] = _read(func)
    return found


def _read(func: Any) -> _Kind:
    schema = func._schema
    name = schema.name.partition("::")[2]
    alias = [item.alias_info for item in schema.arguments]
    in_place = bool(alias) and alias[0] is not None and alias[0].is_write
    returned = [item.alias_info for item in schema.returns]
    is_view = any(item is not None and not item.is_write for item in returned)
    return _Kind(name, is_view and name != "lift_fresh", in_place, name in _COPIES)


def _source(args: tuple[Any, ...], result: Tensor) -> Tensor | None:
    """Return the argument whose values the result has most to do with: never a mask."""
    found = None
    for value in args:
        for item in value[:8] if type(value) in (list, tuple) else (value,):
            if not isinstance(item, torch.Tensor) or item.dtype is torch.bool:
                continue
            is_known = bool(_chain_of(item)) and item.numel() == result.numel()
            if found is None or (is_known and not _chain_of(found)):
                found = item
    return found


def _came_from(
    kind: _Kind, result: Tensor, source: Tensor | None, before: Summary | None
) -> tuple[tuple[Step, ...], Summary | None]:
    """Return the steps before this one, and what it was given."""
    if kind.name in _FILLS and _covers(result):
        return (), None
    if kind.in_place:
        return _chain_of(result), before
    if source is None or kind.name == "lift_fresh":
        return (), None
    if source.dtype.is_floating_point and not kind.copies:
        return (), _summary(source)  # argmax, bucketize: positions are not made of the values
    past = _chain_of(source)
    last = past[-1].result if past else None
    if last is not None and last.statistics is not None and last.size == source.numel():
        return past, last
    return past, _summary(source)


def _covers(tensor: Tensor) -> bool:
    storage = _storage(tensor)
    return storage is not None and storage.nbytes() == tensor.numel() * tensor.element_size()


def _storage(tensor: Tensor) -> Any:
    try:
        return _storage_of(tensor)
    except (RuntimeError, NotImplementedError):
        return None  # sparse, nested and functorch tensors: not followed


def _chain_of(tensor: Tensor | None) -> tuple[Step, ...]:
    storage = None if tensor is None else _storage(tensor)
    found: tuple[Step, ...] = () if storage is None else getattr(storage, _ATTRIBUTE, ())
    return found


def _set_chain(tensor: Tensor, chain: tuple[Step, ...]) -> None:
    storage = _storage(tensor)
    if storage is not None and (chain or hasattr(storage, _ATTRIBUTE)):
        setattr(storage, _ATTRIBUTE, chain)


@functools.cache
def _of_floats(dtype: torch.dtype) -> Summary:
    return Summary(dtype, 0, None)


def _summary(tensor: Tensor) -> Summary:
    size = tensor.numel()
    looked_at = 0 < size <= MAX_VALUES and not tensor.is_meta
    return Summary(tensor.dtype, size, summarize(tensor) if looked_at else None)


@functools.lru_cache(maxsize=4096)
def _reads(filename: str) -> bool | None:
    """Whether a file is the user's; None for the shell, beyond which is what started it."""
    return None if is_shell_file(filename) else is_user_file(filename)


def _user_place() -> tuple[CodeType, int, int, bool] | None:
    """Return code, instruction, line of the innermost user frame, and whether a loader is below."""
    frame = sys._getframe(1)
    is_batch = False
    while frame is not None:
        code = frame.f_code
        is_user = _reads(code.co_filename)
        if is_user:
            return code, frame.f_lasti, frame.f_lineno, is_batch
        if is_user is None:
            return None
        if code.co_name == _LOADER:
            is_batch = True
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _origin(step: Step, operand: Operand) -> Origin:
    span = span_of(step.code, step.instruction, step.line)
    expression = None
    if span.column is not None and dis.opname[step.code.co_code[step.instruction]] not in (
        _NO_EXPRESSION
    ):
        expression = span.source[span.column : span.end_column].strip() or None
    made, given = step.result, step.given
    result = made.statistics or Statistics()
    source = (given and given.statistics) or Statistics()
    return Origin(
        operation=_called(step.func),
        expression=expression,
        line=span.line,
        source=span.source,
        function=step.code.co_qualname,
        file=step.code.co_filename,
        dtype=_name(made.dtype),
        shape=step.shape,
        minimum=result.minimum,
        maximum=result.maximum,
        nan_count=result.nan_count,
        given_dtype=_name(given.dtype) if given is not None else "",
        given_minimum=source.minimum,
        given_maximum=source.maximum,
        given_nan_count=source.nan_count,
        note=birth.what_it_did(step, operand),
    )


def _called(func: Any) -> str:
    """Return the user's name for an operation."""
    name = func._schema.name.partition("::")[2]
    plain = {"_to_copy": "to", "lift_fresh": "tensor"}.get(name, name)
    if not plain.endswith("_") and hasattr(torch, plain):
        return f"torch.{plain}"
    return f"torch.Tensor.{plain}" if hasattr(torch.Tensor, plain) else plain


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
