"""Which tensor of the user's holds bad values that a library changed on the way to its operation.

A library shifts labels, adds self-loops to edges and cuts batches into parts: the operand is then
no tensor that the user knows. Two things are certain enough to name one all the same: it shares the
operand's memory, or it has the bad values between the same neighbors.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from cudassert_ipy.checks.operand import counts_up, is_integral
from cudassert_ipy.model import MAX_POSITIONS, Holder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

_MAX_VALUES: Final = 16_000_000
_MAX_CANDIDATES: Final = 50
_MAX_PLACES: Final = 64
"""Places of one bad value that are compared."""
_NEIGHBORS: Final = 8
_SAME_RUN: Final = 3
"""Equal values in a row, the bad one among them, that are taken for a copy."""

_ODD = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError)


def find_holder(
    operand: Tensor, positions: Sequence[tuple[int, ...]], given: Iterable[tuple[str, Tensor]]
) -> Holder | None:
    """Return the tensor of ``given`` that holds the operand's bad values; None if not certain.

    Args:
        operand: as the operation had it.
        positions: of its bad values, one index per dimension.
        given: tensors that the user's call was given, with the expression for each.

    """
    if not positions:
        return None
    candidates = [*itertools.islice(given, _MAX_CANDIDATES)]
    for name, tensor in candidates:
        found = _in_same_memory(operand, positions, tensor)
        if found:
            return _holder(name, tensor, found)
    copies: dict[str, tuple[Tensor, str, list[int]]] = {}
    for name, tensor in candidates:
        found = _in_a_copy(operand, positions, tensor)
        if found and not any(other is tensor for other, _, _ in copies.values()):
            copies[name] = (tensor, name, found)
    if len(copies) != 1:
        return None  # two tensors with the same values: either may be the one
    ((tensor, name, found),) = copies.values()
    return _holder(name, tensor, found)


def _holder(name: str, tensor: Tensor, flat: list[int]) -> Holder:
    shape = tuple(tensor.shape)
    places = dict.fromkeys(_unravel(place, shape) for place in flat)
    return Holder(
        expression=name,
        shape=shape,
        dtype=str(tensor.dtype).removeprefix("torch."),
        positions=tuple(itertools.islice(places, MAX_POSITIONS)),
    )


def _in_same_memory(
    operand: Tensor, positions: Sequence[tuple[int, ...]], tensor: Tensor
) -> list[int] | None:
    """Return the flat places of the bad values in a tensor of which the operand is a view."""
    try:
        if tensor.untyped_storage()._cdata != operand.untyped_storage()._cdata:
            return None
        if tensor.dtype != operand.dtype or not tensor.is_contiguous():
            return None
        strides = operand.stride()
        places = []
        for position in positions:
            steps = sum(i * stride for i, stride in zip(position, strides, strict=True))
            places.append(int(operand.storage_offset() + steps - tensor.storage_offset()))
        return places if all(0 <= place < tensor.numel() for place in places) else None
    except _ODD:
        return None  # sparse, nested and functorch tensors have no storage


def _in_a_copy(
    operand: Tensor, positions: Sequence[tuple[int, ...]], tensor: Tensor
) -> list[int] | None:
    """Return the flat places of the bad values in a tensor that has them in the same order."""
    try:
        if not (is_integral(operand) and is_integral(tensor)) or counts_up(operand):
            return None  # positions are no copy of what happens to count up as well
        size = min(operand.numel(), tensor.numel())
        if not size or max(operand.numel(), tensor.numel()) > _MAX_VALUES:
            return None
        # A short operand must be there as a whole, and more than a value or two say nothing.
        needed = min(_SAME_RUN, operand.numel())
        if needed < _SAME_RUN and operand.numel() != tensor.numel():
            return None
        left, right = operand.detach().reshape(-1).cpu(), tensor.detach().reshape(-1).cpu()
        shape = tuple(operand.shape)
        places: list[int] = []
        for position in positions:
            place = _ravel(position, shape)
            match = _same_run(left, place, right, needed)
            if match is None:
                return None
            places.append(match)
        return places
    except _ODD:
        return None


def _same_run(left: Tensor, place: int, right: Tensor, needed: int) -> int | None:
    """Return where ``right`` has the value with the most equal neighbors; None if too few."""
    import torch

    best, best_length = None, needed - 1
    low = max(place - _NEIGHBORS, 0)
    window = left[low : place + _NEIGHBORS + 1].tolist()
    middle = place - low
    for found in torch.nonzero(right == window[middle]).flatten()[:_MAX_PLACES].tolist():
        start = max(found - _NEIGHBORS, 0)
        other = right[start : found + _NEIGHBORS + 1].tolist()
        center = found - start
        before = zip(window[:middle][::-1], other[:center][::-1], strict=False)
        after = zip(window[middle + 1 :], other[center + 1 :], strict=False)
        length = 1 + _equal(before) + _equal(after)
        if length > best_length:
            best, best_length = found, length
    return best


def _equal(pairs: Iterable[tuple[int, int]]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _ravel(position: Sequence[int], shape: Sequence[int]) -> int:
    place = 0
    for index, length in zip(position, shape, strict=True):
        place = place * length + index
    return place


def _unravel(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    position = []
    for length in reversed(shape):
        position.append(place % length)
        place //= length
    return tuple(reversed(position))
