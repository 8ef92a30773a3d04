"""How a user writes each operation of the operator table: function and order of arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Spelling:
    """One function of torch.

    Attributes:
        function: what is called; with a dot in front a method of the first argument.
        arguments: by the names of the operation's schema: ``name``, ``name>variable`` for what the
            variable is called, ``keyword=name`` for one that is passed by keyword.
        also: other functions with the same arguments.
        indexes: it is written ``x[index]``.

    """

    function: str
    arguments: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    indexes: bool = False


def _f(name: str, *arguments: str) -> Spelling:
    return Spelling(f"torch.nn.functional.{name}", arguments)


_SELF = "self>input"
_NLL = Spelling(
    "torch.nn.functional.cross_entropy",
    (_SELF, "target", "weight=weight", "ignore_index=ignore_index", "reduction=reduction"),
    also=("torch.nn.functional.nll_loss",),
)
_INDEXED = Spelling("", indexes=True)
_RENORM = _f(
    "embedding", "indices>input", "self>weight", "max_norm=max_norm", "norm_type=norm_type"
)
_BAG = _f(
    *("embedding_bag", "indices>input", "weight", "offsets", "mode=mode"),
    *("per_sample_weights=per_sample_weights", "include_last_offset=include_last_offset"),
)
_CTC = _f(
    *("ctc_loss", "log_probs", "targets", "input_lengths", "target_lengths"),
    *("blank=blank", "zero_infinity=zero_infinity"),
)


def _torch(name: str, *arguments: str) -> Spelling:
    return Spelling(f"torch.{name}", (_SELF, *arguments))


def _method(name: str, *arguments: str) -> Spelling:
    return Spelling(f".{name}", ("self>x", *arguments))


REDUCTIONS: Final = ("none", "mean", "sum")

_INDEX_ADD = _method("index_add_", "dim", "index", "source", "alpha=alpha")
_INDEX_REDUCE = _method(
    "index_reduce_", "dim", "index", "source", "reduce", "include_self=include_self"
)
_SCATTER = _torch("scatter", "dim", "index", "src=src", "value=value", "reduce=reduce")
_SCATTER_REDUCE = _torch(
    "scatter_reduce", "dim", "index", "src", "reduce", "include_self=include_self"
)
_REPEATED = Spelling("torch.repeat_interleave", ("repeats",))

SPELLINGS: Final[dict[str, Spelling]] = {
    "embedding": _f("embedding", "indices>input", "weight"),
    "embedding_renorm": _RENORM,
    "embedding_renorm_": _RENORM,
    "_embedding_bag": _BAG,
    "_embedding_bag_forward_only": _BAG,
    "index": _INDEXED,
    "_unsafe_index": _INDEXED,
    "index_put": _INDEXED,
    "index_put_": _INDEXED,
    "_index_put_impl": _INDEXED,
    "_index_put_impl_": _INDEXED,
    "_unsafe_index_put": _INDEXED,
    "index_select": _torch("index_select", "dim", "index"),
    "index_add": _INDEX_ADD,
    "index_add_": _INDEX_ADD,
    "index_reduce": _INDEX_REDUCE,
    "index_reduce_": _INDEX_REDUCE,
    "index_copy": _method("index_copy_", "dim", "index", "source"),
    "index_copy_": _method("index_copy_", "dim", "index", "source"),
    "index_fill": _method("index_fill_", "dim", "index", "value"),
    "index_fill_": _method("index_fill_", "dim", "index", "value"),
    "gather": _torch("gather", "dim", "index"),
    "scatter": _SCATTER,
    "scatter_": _SCATTER,
    "scatter_add": _torch("scatter_add", "dim", "index", "src"),
    "scatter_add_": _torch("scatter_add", "dim", "index", "src"),
    "scatter_reduce": _SCATTER_REDUCE,
    "scatter_reduce_": _SCATTER_REDUCE,
    "take": _torch("take", "index"),
    "put": _method("put_", "index", "source", "accumulate=accumulate"),
    "put_": _method("put_", "index", "source", "accumulate=accumulate"),
    "nll_loss_forward": _NLL,
    "nll_loss2d_forward": _NLL,
    "multi_margin_loss": _f(
        *("multi_margin_loss", _SELF, "target", "p=p", "margin=margin", "weight=weight"),
        "reduction=reduction",
    ),
    "multilabel_margin_loss_forward": _f(
        "multilabel_margin_loss", _SELF, "target", "reduction=reduction"
    ),
    "_ctc_loss": _CTC,
    "_cudnn_ctc_loss": _CTC,
    "searchsorted": Spelling(
        "torch.searchsorted",
        ("sorted_sequence", "self>values", "right=right", "side=side", "sorter=sorter"),
    ),
    "_pack_padded_sequence": Spelling(
        "torch.nn.utils.rnn.pack_padded_sequence", ("input", "lengths", "batch_first=batch_first")
    ),
    "segment_reduce": Spelling(
        "torch.segment_reduce",
        ("data", "reduce", "lengths=lengths", "offsets=offsets", "axis=axis", "unsafe=unsafe"),
    ),
    "_sparse_coo_tensor_with_dims_and_tensors": Spelling(
        "torch.sparse_coo_tensor", ("indices", "values", "size")
    ),
    "sparse_compressed_tensor": Spelling(
        "torch.sparse_compressed_tensor",
        ("compressed_indices", "plain_indices", "values", "size", "layout=layout"),
    ),
    "_sparse_compressed_tensor_unsafe": Spelling(
        "torch.sparse_compressed_tensor",
        ("compressed_indices", "plain_indices", "values", "size", "layout=layout"),
    ),
    "binary_cross_entropy": _f(
        "binary_cross_entropy", _SELF, "target", "weight=weight", "reduction=reduction"
    ),
    "bernoulli": _torch("bernoulli"),
    "bernoulli_": _method("bernoulli_", "p"),
    "multinomial": _torch("multinomial", "num_samples", "replacement=replacement"),
    "poisson": _torch("poisson"),
    "masked_scatter": _method("masked_scatter_", "mask", "source"),
    "masked_scatter_": _method("masked_scatter_", "mask", "source"),
    "repeat_interleave": _REPEATED,
    "bincount": _torch("bincount", "weights=weights", "minlength=minlength"),
    "_assert_async": _torch("_assert_async"),
    "_functional_assert_async": _torch("_assert_async"),
    "take_along_dim": _torch("take_along_dim", "indices", "dim=dim"),
    "one_hot": _f("one_hot", "self>tensor", "num_classes=num_classes"),
}
"""By the name of the operation (``aten::name.overload``)."""

UNSUITED: Final = frozenset(
    (
        *(
            "max_unpool2d",
            "max_unpool3d",
        ),  # the user gives a kernel size, from which the size comes
        *("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
    )
)
"""Operations that are written as such."""

SHRINKING: Final = frozenset(
    (
        *("embedding", "embedding_renorm", "embedding_renorm_", "index", "index_select", "take"),
        *("one_hot", "bincount", "bernoulli", "poisson", "_unsafe_index"),
    )
)
"""Operations that take each element of the operand by itself: the bad ones alone will do."""
