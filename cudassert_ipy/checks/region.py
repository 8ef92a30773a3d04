"""The part of a tensor that a model used: one range per dimension, also for other sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.model import Finding


@dataclass(frozen=True, slots=True)
class Range:
    """The positions ``start, start + step, ...`` below ``stop`` of a dimension of size ``size``."""

    start: int
    stop: int
    step: int
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole dimension."""
        return self.start == 0 and self.stop == self.size and self.step == 1

    def for_size(self, size: int) -> slice | None:
        """Return the range in a dimension of another size; None where that cannot be known.

        ``x[1:]`` and ``x[-n:]`` are the same for one size. For another one only positions that
        are in both readings are meant: a position too few misses a bad value, a position too
        many would accuse a good one.
        """
        if self.is_whole:
            return slice(0, size)
        if size == self.size:
            return slice(self.start, self.stop, self.step)
        if self.step != 1:
            return None
        shift = size - self.size
        start = 0 if self.start == 0 else max(self.start, self.start + shift)
        stop = size if self.stop == self.size else min(self.stop, self.stop + shift)
        return slice(start, max(start, min(stop, size)))


@dataclass(frozen=True, slots=True)
class Region:
    """A box of positions in a tensor of the same number of dimensions."""

    ranges: tuple[Range, ...]

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the part of ``tensor`` as a view, or None where it cannot be known."""
        slices = self._slices(tensor)
        return None if slices is None else tensor[slices]

    def place(self, finding: Finding, tensor: Tensor) -> Finding:
        """Return a finding about the part with the positions and the shape of ``tensor``."""
        slices = self._slices(tensor)
        if slices is None:
            return finding
        positions = tuple(
            tuple(s.start + n * (s.step or 1) for s, n in zip(slices, position, strict=True))
            for position in finding.bad_positions
        )
        rows = tuple(self.rows(list(finding.batch_rows), tensor))
        shape = tuple(tensor.shape)
        return replace(finding, bad_positions=positions, batch_rows=rows, shape=shape)

    def rows(self, rows: list[int], tensor: Tensor) -> list[int]:
        """Return the rows of ``tensor`` that these rows of the part are."""
        slices = self._slices(tensor)
        if slices is None:
            return rows
        return [slices[0].start + row * (slices[0].step or 1) for row in rows]

    def _slices(self, tensor: Tensor) -> tuple[slice, ...] | None:
        if tensor.dim() != len(self.ranges):
            return None
        slices = [r.for_size(size) for r, size in zip(self.ranges, tensor.shape, strict=True)]
        if any(item is None for item in slices):
            return None
        return tuple(item for item in slices if item is not None)


def region_of(positions: Tensor, shape: tuple[int, ...]) -> Region | None:
    """Return the box with exactly these flat ``positions`` (sorted, unique); None if it is none."""
    import torch

    ranges = []
    product = 1
    for coordinates, size in zip(torch.unravel_index(positions, shape), shape, strict=True):
        values = torch.unique(coordinates)
        first, last, count = int(values[0]), int(values[-1]), values.numel()
        step = 1 if count == 1 else int(values[1]) - first
        if count > 1 and first + (count - 1) * step != last:
            return None
        if count > 2 and not bool((values.diff() == step).all()):
            return None
        ranges.append(Range(first, last + 1, step, size))
        product *= count
    return Region(tuple(ranges)) if product == positions.numel() else None
