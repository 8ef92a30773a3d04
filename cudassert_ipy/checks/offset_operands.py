"""Operands that cut a tensor into parts: offsets, lengths, the indices of sparse tensors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from cudassert_ipy.checks.operand import Arguments, Operand, is_integral, size_along

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def bag_offsets(offsets: Tensor, length: int) -> Iterator[Operand]:
    """Yield where the bags of ``embedding_bag`` start; the CPU looks at the last one only."""
    if offsets.dim() == 1 and is_integral(offsets):
        asserts = ("embedding_bag_offsets",)
        yield Operand(
            *(offsets, "offsets", "offset", 0, length),
            requirement="0 <= offsets <= length of input",
            assertions=asserts,
        )
        yield _ordered(offsets, "offsets", asserts)


def pack_lengths(arguments: Arguments) -> Iterator[Operand]:
    """Yield the lengths of ``pack_padded_sequence``; torch reads past too short an input."""
    data, lengths = arguments["input"], arguments["lengths"]
    if data.dim() < 2 or lengths.dim() != 1 or not is_integral(lengths):
        return
    steps = data.shape[1 if arguments["batch_first"] else 0]
    yield Operand(
        *(lengths, "lengths", "count", 1, steps),
        requirement="1 <= lengths <= number of time steps of input",
    )


def segments(arguments: Arguments) -> Iterator[Operand]:
    """Yield lengths or offsets of ``segment_reduce`` (SegmentReduce.cu; also on the host)."""
    data, lengths, offsets = (arguments[name] for name in ("data", "lengths", "offsets"))
    size = size_along(data, arguments["axis"])
    if lengths is not None and is_integral(lengths):
        unsafe = arguments["unsafe"]
        yield Operand(
            *(lengths, "lengths", "count", 0, None),
            requirement="lengths >= 0",
            assertions=("segment_reduce",) if unsafe else (),
        )

        def bad() -> Tensor | None:
            ends = lengths.cumsum(-1)
            wrong: Tensor = ends > size
            if not unsafe:
                wrong = wrong | (ends[..., -1:] < size)
            return wrong

        yield Operand(
            *(lengths, "lengths", "count", None, None),
            requirement=f"the sum of lengths is the size of the reduced dimension ({size})",
            bad=bad,
        )
    if offsets is not None and is_integral(offsets):
        yield Operand(
            *(offsets, "offsets", "offset", 0, size),
            requirement="0 <= offsets <= size of the reduced dimension",
        )
        yield _ordered(offsets, "offsets", ())


def grouped_mm(arguments: Arguments) -> Iterator[Operand]:
    """Yield the group ends of ``grouped_mm`` (GroupMMCommon.cuh); the CPU checks nothing."""
    first, second, ends = arguments["self"], arguments["mat2"], arguments["offs"]
    if ends is None or not is_integral(ends) or not (first.dim() == 2 or second.dim() == 2):
        return
    if first.dim() == 3:
        cut = second.shape[1]
    else:
        cut = first.shape[0] if second.dim() == 3 else first.shape[1]
    yield Operand(
        *(ends, "offs", "offset", 0, cut),
        requirement="0 <= offs <= size of the dimension that is cut into groups",
        assertions=("grouped_mm_size", "grouped_mm_order"),
    )
    yield _ordered(ends, "offs", ("grouped_mm_order",))


def scaled_grouped_mm(arguments: Arguments) -> Iterator[Operand]:
    """Yield the group ends of ``scaled_grouped_mm``: the same, another kernel's text."""
    for operand in grouped_mm(arguments):
        asserts = ("scaled_grouped_mm_end", "grouped_mm_order")
        yield dataclasses.replace(operand, assertions=asserts)


def coo_indices(arguments: Arguments) -> Iterator[Operand]:
    """Yield the indices of a sparse COO tensor: row ``d`` within ``size[d]``.

    Torch checks them only with ``check_invariants``; without it kernels go out of bounds.
    """
    import torch

    indices, size = arguments["indices"], tuple(arguments["size"])
    sizes = size[: indices.shape[0]] if indices.dim() == 2 else ()
    if not sizes or not indices.numel() or not is_integral(indices):
        return
    if len(set(sizes)) == 1:
        yield Operand(
            *(indices, "indices", "index", 0, sizes[0] - 1),
            requirement="0 <= indices[d] < size[d]",
        )
        return

    def bad() -> Tensor | None:
        limits = indices.new_tensor(sizes)
        low, high = torch.aminmax(indices, dim=1)
        if not bool(((low < 0) | (high >= limits)).any()):
            return None
        mask: Tensor = (indices < 0) | (indices >= limits[:, None])
        return mask

    yield Operand(
        *(indices, "indices", "index", None, None),
        requirement=f"0 <= indices[d] < size[d], where size is {sizes}",
        bad=bad,
    )


def compressed_indices(arguments: Arguments) -> Iterator[Operand]:
    """Yield the indices of a sparse CSR, CSC, BSR or BSC tensor.

    The kernel asserts on them only with ``check_invariants`` (ValidateCompressedIndicesCommon.h).
    """
    import torch

    compressed, plain = arguments["compressed_indices"], arguments["plain_indices"]
    values, size, layout = arguments["values"], tuple(arguments["size"]), arguments["layout"]
    names = {
        torch.sparse_csr: ("csr", "crow_indices", "col_indices"),
        torch.sparse_csc: ("csc", "ccol_indices", "row_indices"),
        torch.sparse_bsr: ("bsr", "crow_indices", "col_indices"),
        torch.sparse_bsc: ("bsc", "ccol_indices", "row_indices"),
    }
    batch = plain.dim() - 1
    if layout not in names or len(size) < batch + 2 or compressed.dim() != plain.dim():
        return
    kind, compressed_name, plain_name = names[layout]
    by_row = kind in ("csr", "bsr")
    plain_size = size[batch + (1 if by_row else 0)]
    if kind in ("bsr", "bsc"):
        plain_size //= values.shape[batch + (2 if by_row else 1)] or 1
    count = plain.shape[-1]
    checked = torch.sparse.check_sparse_tensor_invariants.is_enabled()
    shared: dict[str, Any] = {
        "assertions": ("sparse_compressed",) if checked else (),
        "operation": f"torch.sparse_{kind}_tensor",
    }
    yield Operand(
        *(compressed, compressed_name, "offset", 0, count),
        requirement=f"0 <= {compressed_name} <= number of stored values",
        **shared,
    )
    yield Operand(
        *(compressed, compressed_name, "offset", None, None),
        requirement=f"{compressed_name} start with 0, end with the number of stored values, and "
        "never decrease",
        bad=lambda: _not_compressed(compressed, count),
        **shared,
    )
    yield Operand(
        *(plain, plain_name, "index", 0, plain_size - 1),
        requirement=f"0 <= {plain_name} < size of the dimension",
        **shared,
    )


def _ordered(offsets: Tensor, name: str, assertions: tuple[str, ...]) -> Operand:
    return Operand(
        *(offsets, name, "offset", None, None),
        requirement=f"{name} never decrease",
        assertions=assertions,
        bad=lambda: _decreasing(offsets),
    )


def _not_compressed(compressed: Tensor, count: int) -> Tensor | None:
    bad = _decreasing(compressed)
    ends = compressed.new_tensor((0, count))
    wrong = compressed[..., [0, -1]] != ends
    if bad is None and not bool(wrong.any()):
        return None
    bad = compressed.new_zeros(compressed.shape, dtype=wrong.dtype) if bad is None else bad
    bad[..., 0] |= wrong[..., 0]
    bad[..., -1] |= wrong[..., 1]
    return bad


def _decreasing(offsets: Tensor) -> Tensor | None:
    """Mark each value that is smaller than the one before it."""
    import torch

    falls = offsets[..., 1:] < offsets[..., :-1]
    if not bool(falls.any()):
        return None
    return torch.cat((torch.zeros_like(falls[..., :1]), falls), -1)
