"""Operands that select places: indices and targets.

What torch itself refuses before any kernel (wrong dtypes, missing or empty dimensions) has no
operand here: its own error says more. Nor has a call whose result is empty: it runs no kernel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from cudassert_ipy.checks.offset_operands import bag_offsets
from cudassert_ipy.checks.operand import Arguments, Operand, is_integral, size_along

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def embedding(arguments: Arguments) -> Iterator[Operand]:
    """Yield the ids of an embedding: rows of ``weight`` (Indexing.cu)."""
    weight, indices = arguments["weight"], arguments["indices"]
    yield from _rows(weight, indices, ("embedding",))


def embedding_renorm(arguments: Arguments) -> Iterator[Operand]:
    """Yield the ids that ``max_norm`` looks up first (Embedding.cu; it asserts since 2.13)."""
    weight, indices = arguments["self"], arguments["indices"]
    yield from _rows(weight, indices, ("embedding_renorm", "embedding"))


def embedding_bag(arguments: Arguments) -> Iterator[Operand]:
    """Yield ids and offsets of an embedding bag (EmbeddingBag.cu); no check of offsets on CPU."""
    weight, indices, offsets = (arguments[name] for name in ("weight", "indices", "offsets"))
    yield from _rows(weight, indices, ("embedding_bag", "embedding_bag_2_8", "embedding_bag_2_1"))
    yield from bag_offsets(offsets, indices.numel())


def _rows(weight: Tensor, indices: Tensor, assertions: tuple[str, ...]) -> Iterator[Operand]:
    if weight.dim() and is_integral(indices) and 0 not in weight.shape[1:]:
        requirement = "0 <= input < num_embeddings"
        yield Operand(
            *(indices, "input", "index", 0, weight.shape[0] - 1),
            requirement=requirement,
            assertions=assertions,
        )


def index_select(arguments: Arguments) -> Iterator[Operand]:
    """Yield the index of ``index_select``; of a sparse tensor negative ones count from the end."""
    source, index = arguments["self"], arguments["index"]
    if source.is_sparse:
        size = size_along(source, arguments["dim"])
        yield from _wrapped(index, size, ("index_select_sparse",))
    else:
        yield from _along(arguments, ("embedding",))


def index_write(arguments: Arguments) -> Iterator[Operand]:
    """Yield the index of ``index_add`` and ``index_reduce`` (Indexing.cu)."""
    yield from _along(arguments, ("index_add",))


def index_copy(arguments: Arguments) -> Iterator[Operand]:
    """Yield the index of ``index_copy`` (IndexKernel.cu)."""
    yield from _along(arguments, ("index_copy",))


def index_fill(arguments: Arguments) -> Iterator[Operand]:
    """Yield the index of ``index_fill``, which may count from the end (IndexKernel.cu)."""
    target, index = arguments["self"], arguments["index"]
    if target.numel():
        yield from _wrapped(index, size_along(target, arguments["dim"]), ("index_fill",))


def _along(arguments: Arguments, assertions: tuple[str, ...]) -> Iterator[Operand]:
    """Yield an index that selects whole slices of a dimension."""
    source = arguments["self"]
    dimension = arguments["dim"] % max(source.dim(), 1)
    others = [size for n, size in enumerate(source.shape) if n != dimension]
    if 0 not in others:
        yield from _inside(arguments["index"], size_along(source, arguments["dim"]), assertions)


def gather(arguments: Arguments) -> Iterator[Operand]:
    """Yield the index of ``gather`` and the ``scatter`` family (ScatterGatherKernel.cu)."""
    size = size_along(arguments["self"], arguments["dim"])
    yield from _inside(arguments["index"], size, ("scatter_gather", "scatter_gather_1_5"))


def take(arguments: Arguments) -> Iterator[Operand]:
    """Yield the index of ``take`` and ``put_``: into all elements (IndexKernel.cu)."""
    yield from _wrapped(arguments["index"], arguments["self"].numel(), ("take_put",))


def take_along_dim(arguments: Arguments) -> Iterator[Operand]:
    """Yield the index of ``take_along_dim(input, indices, dim)`` as the user gave it.

    Torch takes it modulo the size on every device (``take_along_dim`` of
    ATen/native/TensorAdvancedIndexing.cpp): a wrong index is a wrong value, and never an error.
    Without ``dim`` the gather of the flattened tensor has the check.
    """
    source, index, dimension = (arguments[name] for name in ("self", "indices", "dim"))
    if dimension is not None:
        yield from _wrapped(index, size_along(source, dimension), (), name="indices")


def one_hot(arguments: Arguments) -> Iterator[Operand]:
    """Yield the class numbers of ``one_hot``: on CUDA its scatter asserts, not its host code."""
    classes = arguments["num_classes"]
    if is_integral(arguments["self"]) and (classes > 0 or classes == -1):
        yield Operand(
            *(arguments["self"], "tensor", "index", 0, None if classes == -1 else classes - 1),
            requirement="0 <= tensor" if classes == -1 else "0 <= tensor < num_classes",
            assertions=("scatter_gather", "scatter_gather_1_5"),
        )


def _inside(index: Tensor, size: int, assertions: tuple[str, ...]) -> Iterator[Operand]:
    if is_integral(index):
        yield Operand(
            *(index, "index", "index", 0, size - 1),
            requirement="0 <= index < size of the indexed dimension",
            assertions=assertions,
        )


def _wrapped(
    index: Tensor, size: int, assertions: tuple[str, ...], name: str = "index"
) -> Iterator[Operand]:
    if is_integral(index) and size:
        yield Operand(
            *(index, name, "index", -size, size - 1),
            requirement=f"-size <= {name} < size of the indexed dimension",
            assertions=assertions,
        )


def advanced_index(arguments: Arguments) -> Iterator[Operand]:
    """Yield the indices of ``x[a, b]``; masks take as many dimensions as they have."""
    import torch

    operands = []
    sizes = list(arguments["self"].shape)
    dimension = 0
    for position, index in enumerate(arguments["indices"]):
        if index is None:
            dimension += 1
            continue
        is_mask = index.dtype in (torch.bool, torch.uint8)
        last = dimension + (index.dim() if is_mask else 1)
        if last > len(sizes) or not (is_mask or is_integral(index)):
            return
        if not is_mask:
            size = sizes[dimension]
            if size == 0:
                return
            operands += [
                Operand(
                    *(index, "index", "index", -size, size - 1),
                    requirement="-size <= index < size of the indexed dimension",
                    position=position,
                    assertions=("index", "index_before_2_1"),
                )
            ]
        sizes[dimension:last] = [index.numel()] * (last - dimension)
        dimension = last
    if 0 not in sizes:  # a result without elements needs no kernel: any index will do
        yield from operands


def nll_target(arguments: Arguments) -> Iterator[Operand]:
    """Yield the classes of ``nll_loss`` for (N, C) or (C) scores (Loss.cu)."""
    yield from _target(arguments, "nll_loss")


def nll_target_2d(arguments: Arguments) -> Iterator[Operand]:
    """Yield the classes of ``nll_loss`` for (N, C, d1, ...) scores (NLLLoss2d.cu)."""
    yield from _target(arguments, "nll_loss2d")


def _target(arguments: Arguments, key: str) -> Iterator[Operand]:
    import torch

    scores, target = arguments["self"], arguments["target"]
    if not scores.dim() or not is_integral(target):
        return
    classes = scores.shape[0] if scores.dim() == 1 else scores.shape[1]
    ignore_index = arguments["ignore_index"]
    unsigned = "_unsigned" if target.dtype is torch.uint8 and key == "nll_loss" else ""
    reduced = "" if arguments["reduction"] else "_no_reduce"
    yield Operand(
        *(target, "target", "target", 0, classes - 1),
        special=() if 0 <= ignore_index < classes else (ignore_index,),
        requirement="0 <= target < number of classes, or target == ignore_index",
        assertions=(f"{key}{unsigned}{reduced}",),
    )


def multi_margin_target(arguments: Arguments) -> Iterator[Operand]:
    """Yield the classes of ``multi_margin_loss`` (MultiMarginLoss.cu)."""
    scores, target = arguments["self"], arguments["target"]
    if scores.dim() and is_integral(target):
        yield Operand(
            *(target, "target", "target", 0, scores.shape[-1] - 1),
            requirement="0 <= target < number of classes",
            assertions=("multi_margin_loss",),
        )


def multilabel_margin_target(arguments: Arguments) -> Iterator[Operand]:
    """Yield the classes of ``multilabel_margin_loss``: those before the first negative one.

    The kernel (MultiLabelMarginCriterion.cu) checks nothing and reads out of bounds.
    """
    scores, target = arguments["self"], arguments["target"]
    if not scores.dim() or not is_integral(target):
        return
    classes = scores.shape[-1]

    def bad() -> Tensor:
        listed = (target >= 0).cumprod(-1).bool() if target.dim() else target >= 0
        wrong: Tensor = listed & (target >= classes)
        return wrong

    yield Operand(
        *(target, "target", "target", 0, classes - 1),
        special=(-1,),
        requirement="0 <= target < number of classes, up to the first -1 of each row",
        bad=bad,
    )


def ctc(arguments: Arguments) -> Iterator[Operand]:
    """Yield targets and lengths of ``ctc_loss``; what stands behind a target's length is padding.

    No CUDA release up to 2.15 checks the targets (LossCTC.cu), nor does the CPU.
    """
    import torch

    scores, targets = arguments["log_probs"], arguments["targets"]
    input_lengths, target_lengths = arguments["input_lengths"], arguments["target_lengths"]
    if scores.dim() not in (2, 3) or not is_integral(targets):
        return
    labels = scores.shape[-1]

    def bad() -> Tensor:
        # Made from `targets`: a stand-in device has no factories for its name.
        lengths = target_lengths
        if not isinstance(lengths, torch.Tensor):
            lengths = targets.new_tensor(lengths)
        places = torch.ones_like(targets).cumsum(-1) - 1
        ends: Any = int(lengths.sum())
        if targets.dim() > 1:
            ends = torch.zeros_like(targets[:, 0]).copy_(lengths.reshape(-1))[:, None]
        wrong: Tensor = ((targets < 0) | (targets >= labels)) & (places < ends)
        return wrong

    yield Operand(
        *(targets, "targets", "target", 0, labels - 1),
        requirement="0 <= targets < number of labels (the last dimension of log_probs)",
        assertions=("ctc_loss",),
        bad=bad if targets.dim() else None,
    )
    for name, given, longest, of in (
        ("input_lengths", input_lengths, scores.shape[0], "log_probs"),
        ("target_lengths", target_lengths, targets.shape[-1] if targets.dim() else 1, "targets"),
    ):
        if isinstance(given, torch.Tensor) and is_integral(given):
            yield Operand(
                *(given, name, "count", 0, longest),
                requirement=f"0 <= {name} <= length of {of}",
            )


def max_unpool(arguments: Arguments) -> Iterator[Operand]:
    """Yield the indices of ``max_unpool1d`` to ``3d``: into one plane or volume."""
    indices, output_size = arguments["indices"], arguments["output_size"]
    flat = len(output_size) == 2
    if is_integral(indices):
        yield Operand(
            *(indices, "indices", "index", 0, math.prod(output_size) - 1),
            requirement="0 <= indices < number of places in the output plane"
            if flat
            else "0 <= indices < number of places in the output volume",
            assertions=("max_unpool" if flat else "max_unpool3d",),
        )


def sorter(arguments: Arguments) -> Iterator[Operand]:
    """Yield the sorter of ``searchsorted``; torch checks it on the host (BucketizationUtils.h)."""
    sorted_sequence, order = arguments["sorted_sequence"], arguments["sorter"]
    if order is not None and sorted_sequence.dim() and is_integral(order):
        yield Operand(
            *(order, "sorter", "index", 0, sorted_sequence.shape[-1] - 1),
            requirement="0 <= sorter < size of the last dimension of sorted_sequence",
        )
