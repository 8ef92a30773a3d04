"""Which items of a dataset hold the offending values of a finding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from cudassert_ipy.replay.plain import no_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.model import Finding
    from cudassert_ipy.replay.batches import Batch

_MAX_DEPTH: Final = 4


def holder(finding: Finding, batches: Sequence[Batch]) -> tuple[Batch, list[int]] | None:
    """Return the batch that has the operand's values, and the row of each listed offender.

    As many values, the same minimum and maximum, each listed offender in its place. None where no
    batch has them: an operand that was computed of a batch proves nothing about its rows.

    Args:
        finding: with positions and values.
        batches: oldest first.

    """
    if not finding.bad_positions or len(finding.bad_positions) != len(finding.bad_values):
        return None
    for batch in reversed(batches):
        for tensor in batch.originals():
            rows = _rows_of(finding, tensor)
            if rows is not None:
                return batch, rows
    return None


def dataset_indices(
    finding: Finding, batches: Sequence[Batch], *, ask_dataset: bool = False
) -> tuple[int, ...]:
    """Return the dataset indices of the items that hold the offending values; () where unproven.

    Proven is: a batch has the operand's values (:func:`holder`), and row ``i`` of it is item ``i``
    of the sampler's. A ``collate_fn`` of the user's may have sorted the items; then the dataset
    itself is asked, which runs its code.

    Args:
        finding: with positions and values.
        batches: oldest first.
        ask_dataset: whether items may be taken from the dataset (in a child).

    """
    found = holder(finding, batches)
    if found is None:
        return ()
    batch, rows = found
    indices = batch.indices
    if indices is None or any(tensor.shape[0] != len(indices) for tensor in _alike(finding, batch)):
        return ()
    values = zip(rows, finding.bad_values, strict=True)
    if finding.shape[0] == len(indices):  # the rows also of offenders beyond the listed ones
        rows = sorted({*rows, *(row for row in finding.batch_rows if row < len(indices))})
    if not batch.keeps_order and not (
        ask_dataset and all(_item_holds(batch.dataset, indices[row], bad) for row, bad in values)
    ):
        return ()
    return tuple(dict.fromkeys(indices[row] for row in rows))


def _alike(finding: Finding, batch: Batch) -> list[torch.Tensor]:
    return [tensor for tensor in batch.originals() if _rows_of(finding, tensor) is not None]


def _rows_of(finding: Finding, tensor: torch.Tensor) -> list[int] | None:
    """Return the row of each offender if ``tensor`` is the operand; None if it is not."""
    size = math.prod(finding.shape)
    with no_modes(), torch.no_grad():
        if tensor.numel() != size or tensor.dim() == 0 or not size:
            return None
        flat = tensor.detach().reshape(-1)
        if not finding.nan_count:
            low, high = flat.min().item(), flat.max().item()
            if (low, high) != (finding.minimum, finding.maximum):
                return None
        rows = []
        for position, bad in zip(finding.bad_positions, finding.bad_values, strict=True):
            if len(position) != len(finding.shape):
                return None
            place = 0
            for index, length in zip(position, finding.shape, strict=True):
                place = place * length + index
            value = flat[place].item()
            if value != bad and not (value != value and bad != bad):
                return None
            rows.append(place // (size // tensor.shape[0]))
    return rows


def _item_holds(dataset: Any, index: int, value: Any) -> bool:
    try:
        return _holds(dataset[index], value, 0)
    except Exception:  # the user's own code, asked for a favor
        return False


def _holds(item: Any, value: Any, depth: int) -> bool:
    if isinstance(item, torch.Tensor):
        with no_modes():
            return bool((item == value).any())
    if isinstance(item, dict):
        return depth < _MAX_DEPTH and any(_holds(i, value, depth + 1) for i in item.values())
    if isinstance(item, list | tuple):
        return depth < _MAX_DEPTH and any(_holds(i, value, depth + 1) for i in item)
    if hasattr(item, "tolist"):  # an array or a scalar of NumPy
        return _holds(item.tolist(), value, depth + 1)
    return isinstance(item, int | float) and item == value
