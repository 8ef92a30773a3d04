"""Which element of which batch tensor a value came from, followed through views and copies.

Each storage that holds batch values has a shadow: one code per element, which says from which leaf
and position the element was copied, or that nobody knows. Views need no work: a view of the storage
is the same view of the shadow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

UNKNOWN = -1
_CHOSEN = 1 << 62
"""Set in the code of an element that a mask or an index chose: where it came from is known for
this batch, but for another one other elements may be chosen."""
_SHIFT = 44
"""A code is leaf number << 44 | position: 16 TB of bytes per leaf, half a million leaves."""

MAX_INTEGERS = 50_000_000
MAX_FLOATS = 2_000_000
"""Larger tensors are not followed: a shadow needs 8 bytes per element. Images are no operands."""


@dataclass(slots=True)
class _Shadow:
    kept: Tensor
    """Keeps the storage alive, so that its identity is not given to another one."""
    itemsize: int
    codes: Tensor


class Origins:
    """The shadows of one traced run."""

    def __init__(self) -> None:
        self._shadows: dict[int, _Shadow] = {}

    def add(self, number: int, tensor: Tensor) -> bool:
        """Follow a leaf, which must be contiguous and alone in its storage; whether it is done."""
        limit = MAX_FLOATS if tensor.is_floating_point() else MAX_INTEGERS
        storage = storage_of(tensor)
        if storage is None or tensor.numel() > limit or tensor.is_complex():
            return False
        codes = torch.arange(tensor.numel(), dtype=torch.int64) | (number << _SHIFT)
        self._shadows[storage] = _Shadow(tensor, tensor.dtype.itemsize, codes)
        return True

    def of(self, tensor: Any) -> Tensor | None:
        """Return the code of every element, in the shape of ``tensor``; None if none is known."""
        if not isinstance(tensor, torch.Tensor):
            return None
        storage = storage_of(tensor)
        shadow = None if storage is None else self._shadows.get(storage)
        if shadow is None or shadow.itemsize != tensor.dtype.itemsize:
            return None
        return torch.as_strided(
            shadow.codes, tensor.size(), tensor.stride(), tensor.storage_offset()
        )

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note what an operation that has just run copied or changed."""
        if not self._shadows:
            return
        name = func._schema.name
        if name in ("aten::masked_fill_", "aten::index_put_") and self._choose_in_place(name, args):
            return
        if func._schema.is_mutable:
            copied = _copied_codes(self, args) if name == "aten::copy_" else None
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._overwrite(value, copied)
            return
        mover = _MOVERS.get(name)
        if mover is None or not isinstance(result, torch.Tensor) or self.of(result) is not None:
            return
        codes = mover(self, args, kwargs, result)
        storage = storage_of(result)
        if codes is None or storage is None or codes.shape != result.shape:
            return
        itemsize = result.dtype.itemsize
        size = result.untyped_storage().nbytes() // itemsize
        if size > 2 * MAX_INTEGERS:
            return
        shadow = torch.full((size,), UNKNOWN, dtype=torch.int64)
        shadow.as_strided(result.size(), result.stride(), result.storage_offset()).copy_(codes)
        self._shadows[storage] = _Shadow(result, itemsize, shadow)

    def _choose_in_place(self, name: str, args: tuple[Any, ...]) -> bool:
        """Note that a mask or an index overwrote some elements; whether that could be done."""
        known = self.of(args[0])
        if known is None:
            return False
        kept = torch.where(known >= 0, known | _CHOSEN, known)
        if name == "aten::masked_fill_":
            kept = kept.masked_fill(args[1], UNKNOWN)
        else:
            kept = kept.index_put(tuple(args[1]), kept.new_tensor(UNKNOWN))
        known.copy_(kept)
        return True

    def _overwrite(self, tensor: Any, codes: Tensor | None) -> None:
        known = self.of(tensor)
        if known is None and codes is not None and storage_of(tensor) is not None:
            # A copy into fresh memory, such as a shifted copy of the labels.
            itemsize = tensor.dtype.itemsize
            size = tensor.untyped_storage().nbytes() // itemsize
            if size > 2 * MAX_INTEGERS:
                return
            fresh = torch.full((size,), UNKNOWN, dtype=torch.int64)
            storage = storage_of(tensor)
            if storage is not None:
                self._shadows[storage] = _Shadow(tensor, itemsize, fresh)
            known = self.of(tensor)
        if known is None:
            return
        if codes is None:
            known.fill_(UNKNOWN)
        else:
            known.copy_(codes)


def split(codes: Tensor, *, chosen: bool = False) -> dict[int, Tensor]:
    """Return the sorted, unique positions per leaf number; unknown elements are left out.

    Those that a mask or an index chose are left out too, unless ``chosen``.
    """
    known = codes[codes >= 0]
    known = known & ~_CHOSEN if chosen else known[known < _CHOSEN]
    known = torch.unique(known)
    leaves = torch.unique(known >> _SHIFT).tolist()
    mask = (1 << _SHIFT) - 1
    return {leaf: known[(known >> _SHIFT) == leaf] & mask for leaf in leaves}


def storage_of(tensor: Tensor) -> int | None:
    """Return the identity of the tensor's storage, valid while that lives; None without one."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return None  # sparse, nested and functorch tensors have no storage


def _keeps_values(source: Tensor, result: Tensor) -> bool:
    """Whether a cast from one dtype to the other cannot change an integer's value."""
    if source.dtype == result.dtype:
        return True
    integers = not (source.is_floating_point() or result.is_floating_point())
    wider = result.dtype.itemsize > source.dtype.itemsize
    return integers and wider and not source.is_complex() and not result.is_complex()


def _same(
    origins: Origins, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Tensor
) -> Tensor | None:
    codes = origins.of(args[0])
    return codes if codes is not None and _keeps_values(args[0], result) else None


def _joined(name: str) -> Callable[..., Tensor | None]:
    def join(
        origins: Origins, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> Tensor | None:
        if all(origins.of(part) is None for part in args[0]):
            return None
        codes = []
        for part in args[0]:
            known = origins.of(part)
            if known is None or not _keeps_values(part, result):
                known = torch.full(tuple(part.shape), UNKNOWN, dtype=torch.int64)
            codes.append(known)
        joined: Tensor = getattr(torch, name)(codes, *args[1:], **kwargs)
        return joined

    return join


def _moved(name: str) -> Callable[..., Tensor | None]:
    def move(
        origins: Origins, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Tensor
    ) -> Tensor | None:
        codes = origins.of(args[0])
        if codes is None:
            return None
        moved: Tensor = getattr(torch.ops.aten, name)(codes, *args[1:], **kwargs)
        return moved

    return move


def _padded(
    origins: Origins, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Tensor
) -> Tensor | None:
    codes = origins.of(args[0])
    if codes is None:
        return None
    padded: Tensor = torch.ops.aten.constant_pad_nd(codes, args[1], UNKNOWN)
    return padded


def _copied_codes(origins: Origins, args: tuple[Any, ...]) -> Tensor | None:
    target, source = args[0], args[1]
    codes = origins.of(source)
    if codes is None or not _keeps_values(source, target):
        return None
    return codes.expand(target.shape)


def _chosen(name: str) -> Callable[..., Tensor | None]:
    """Follow an operation that selects by a mask or an index, which may be other ones next time."""

    def choose(
        origins: Origins, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Tensor
    ) -> Tensor | None:
        codes = origins.of(args[0])
        if codes is None:
            return None
        if name == "masked_fill":
            args = (args[0], args[1], UNKNOWN)
        moved: Tensor = getattr(torch.ops.aten, name)(codes, *args[1:], **kwargs)
        return torch.where(moved >= 0, moved | _CHOSEN, moved)

    return choose


def _where(
    origins: Origins, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Tensor
) -> Tensor | None:
    if len(args) != 3 or all(origins.of(part) is None for part in args[1:]):
        return None
    codes: list[Tensor] = []
    for part in args[1:]:
        known = origins.of(part)
        if known is None or not _keeps_values(part, result):
            known = torch.tensor(UNKNOWN)
        codes.append(known)
    moved = torch.where(args[0], codes[0], codes[1])
    return torch.where(moved >= 0, moved | _CHOSEN, moved)


# Operations that move values and change none, first those that do it wherever the values stand.
_MOVERS: dict[str, Callable[..., Tensor | None]] = {
    "aten::clone": _same,
    "aten::_to_copy": _same,
    "aten::contiguous": _same,
    "aten::lift_fresh_copy": _same,
    "aten::cat": _joined("cat"),
    "aten::stack": _joined("stack"),
    "aten::constant_pad_nd": _padded,
    "aten::flip": _moved("flip"),
    "aten::repeat": _moved("repeat"),
    "aten::roll": _moved("roll"),
    "aten::index": _chosen("index"),
    "aten::index_select": _chosen("index_select"),
    "aten::gather": _chosen("gather"),
    "aten::masked_select": _chosen("masked_select"),
    "aten::masked_fill": _chosen("masked_fill"),
    "aten::where": _where,
}
