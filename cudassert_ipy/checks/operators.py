"""The one table of operations with operands that a CUDA kernel can assert on, or go wrong with.

The guard, the replay and the simulator read it; an operation is found by one dictionary lookup on
its ``OpOverload``. Which user call reaches which overload, and in which state the operand is then
(negative indices not wrapped yet, ``ignore_index`` an argument), was observed with a
``TorchDispatchMode`` on torch 2.13 and 2.14.

Not in it: integer division by zero (no fault on CUDA), backward operations (their operands are
those of the forward), and operations whose kernels take any value. ``tests/unit`` has the list of
torch's other operations with an index argument, each with its reason.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudassert_ipy.checks import index_operands as index
from cudassert_ipy.checks import offset_operands as offset
from cudassert_ipy.checks import value_operands as value
from cudassert_ipy.checks.operand import Arguments, Operand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["Arguments", "Caller", "Operand", "Operator", "function_table", "lookup", "table"]


@dataclass(frozen=True, slots=True)
class Caller:
    """A Python function of torch that reaches an operation under another name."""

    name: str
    """The user's name for it, e.g. ``torch.distributions.Categorical.sample``."""
    function: str
    """Its module and name, as a frame shows them: ``torch.distributions.categorical.sample``."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operation whose operands must be checked."""

    name: str
    """The user's name, e.g. ``torch.nn.functional.embedding``."""
    aten: str
    operands: Callable[[Arguments], Iterable[Operand]]
    family: str
    """Which hints apply: ``embedding``, ``index`` (only ``x[...]``), ``target`` (with an
    ``ignore_index``), ``label`` or ``gather``."""
    also: tuple[Caller, ...] = ()
    """Other functions of the user's that reach it."""
    cpu_checks: bool = True
    """Whether CPU torch checks these operands; else running it on bad ones may end the process."""
    names: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()
    """Further names under which a torch function takes its first argument."""
    defaults: Mapping[str, Any] | None = None

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call by name."""
        given = {**(self.defaults or {}), **dict(zip(self.names, args, strict=False)), **kwargs}
        for name in self.other_names:
            if name in given:
                given[self.names[0]] = given[name]
        return given


def lookup(func: Any) -> Operator | None:
    """Return the row for an ``OpOverload``, or None for operations without operands to check."""
    return table().get(func)


@functools.cache
def table() -> dict[Any, Operator]:
    """Return all rows by ``OpOverload``; overloads that this torch does not have are left out."""
    return {
        func: Operator(
            name=entry.name,
            aten=f"aten::{packet}.{func._overloadname}",
            operands=entry.operands,
            family=entry.family,
            also=entry.also,
            cpu_checks=packet not in _CPU_TRUSTS,
            names=tuple(item.name for item in func._schema.arguments),
            defaults={
                item.name: item.default_value
                for item in func._schema.arguments
                if item.has_default_value()
            },
        )
        for entry in _ENTRIES
        for packet in entry.packets
        for func in _overloads(packet, entry.takes)
    }


@functools.cache
def function_table() -> dict[Any, Operator]:
    """Return the rows of torch functions that hide their operand from the operations they call.

    By the function that a ``TorchFunctionMode`` sees.
    """
    import torch

    take = Operator(
        name="torch.take_along_dim",
        aten="aten::take_along_dim",
        operands=index.take_along_dim,
        family="gather",
        names=("self", "indices", "dim"),
        other_names=("input",),
        defaults={"dim": None},
    )
    one_hot = Operator(
        name="torch.nn.functional.one_hot",
        aten="aten::one_hot",
        operands=index.one_hot,
        family="gather",
        names=("self", "num_classes"),
        other_names=("input",),
        defaults={"num_classes": -1},
    )
    return {
        torch.take_along_dim: take,
        torch.Tensor.take_along_dim: take,
        torch.nn.functional.one_hot: one_hot,
    }


def _overloads(packet: str, takes: tuple[str, ...]) -> Iterator[Any]:
    """Yield the overloads of ``aten::packet`` that take tensors of all these names."""
    import torch

    found = getattr(torch.ops.aten, packet, None)
    for overload in () if found is None else found.overloads():
        func = getattr(found, overload)
        tensors = {a.name for a in func._schema.arguments if "Tensor" in str(a.type)}
        if tensors.issuperset(takes) and "dimname" not in overload:
            yield func


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    family: str
    packets: tuple[str, ...]
    takes: tuple[str, ...]
    """Tensor arguments that an overload must have to count."""
    operands: Callable[[Arguments], Iterable[Operand]]
    also: tuple[Caller, ...] = ()


def _functional(*names: str) -> tuple[Caller, ...]:
    return tuple(Caller(f"torch.nn.functional.{n}", f"torch.nn.functional.{n}") for n in names)


# Their CPU kernels read or write where a bad operand says (torch 2.13): decreasing offsets, lengths
# beyond the sequence, labels beyond the alphabet, group ends, indices of sparse tensors.
_CPU_TRUSTS = frozenset(
    (
        *("_embedding_bag", "_embedding_bag_forward_only", "_ctc_loss", "_cudnn_ctc_loss"),
        *("_pack_padded_sequence", "_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
        *("segment_reduce", "_sparse_coo_tensor_with_dims_and_tensors"),
        *("sparse_compressed_tensor", "_sparse_compressed_tensor_unsafe", "_unsafe_index"),
        *("_unsafe_index_put",),
    )
)

_INDEX = ("self", "index")
_TARGET = ("self", "target")

_ENTRIES = (
    _Entry(
        *("torch.nn.functional.embedding", "embedding", ("embedding",)),
        *(("weight", "indices"), index.embedding),
    ),
    _Entry(
        *("torch.nn.functional.embedding", "embedding", ("embedding_renorm", "embedding_renorm_")),
        *(("self", "indices"), index.embedding_renorm),
    ),
    _Entry(
        "torch.nn.functional.embedding_bag",
        "embedding",
        ("_embedding_bag", "_embedding_bag_forward_only"),
        ("weight", "indices", "offsets"),
        index.embedding_bag,
    ),
    _Entry(
        *("x[index]", "index", ("index", "_unsafe_index")),
        *(("self", "indices"), index.advanced_index),
    ),
    _Entry(
        "x[index] = value",
        "index",
        ("index_put_", "_index_put_impl_", "index_put", "_index_put_impl", "_unsafe_index_put"),
        ("self", "indices"),
        index.advanced_index,
    ),
    _Entry("torch.index_select", "gather", ("index_select",), _INDEX, index.index_select),
    _Entry(
        *("torch.Tensor.index_add_", "gather", ("index_add_", "index_add")),
        *(_INDEX, index.index_write),
    ),
    _Entry(
        *("torch.Tensor.index_reduce_", "gather", ("index_reduce_", "index_reduce")),
        *(_INDEX, index.index_write),
    ),
    _Entry(
        *("torch.Tensor.index_copy_", "gather", ("index_copy_", "index_copy")),
        *(_INDEX, index.index_copy),
    ),
    _Entry(
        *("torch.Tensor.index_fill_", "gather", ("index_fill_", "index_fill")),
        *(_INDEX, index.index_fill),
    ),
    _Entry(
        *("torch.gather", "gather", ("gather",), _INDEX, index.gather),
        also=_functional("cross_entropy", "nll_loss"),  # under torch.vmap
    ),
    _Entry("torch.scatter", "gather", ("scatter", "scatter_"), _INDEX, index.gather),
    _Entry("torch.scatter_add", "gather", ("scatter_add", "scatter_add_"), _INDEX, index.gather),
    _Entry(
        *("torch.scatter_reduce", "gather", ("scatter_reduce", "scatter_reduce_")),
        *(_INDEX, index.gather),
    ),
    _Entry("torch.take", "gather", ("take",), _INDEX, index.take),
    _Entry("torch.Tensor.put_", "gather", ("put_", "put"), _INDEX, index.take),
    _Entry(
        *("torch.nn.functional.cross_entropy", "target", ("nll_loss_forward",)),
        *(_TARGET, index.nll_target, _functional("nll_loss")),
    ),
    _Entry(
        *("torch.nn.functional.cross_entropy", "target", ("nll_loss2d_forward",)),
        *(_TARGET, index.nll_target_2d, _functional("nll_loss")),
    ),
    _Entry(
        *("torch.nn.functional.multi_margin_loss", "label", ("multi_margin_loss",)),
        *(_TARGET, index.multi_margin_target),
    ),
    _Entry(
        "torch.nn.functional.multilabel_margin_loss",
        "label",
        ("multilabel_margin_loss_forward",),
        _TARGET,
        index.multilabel_margin_target,
    ),
    _Entry(
        *("torch.nn.functional.ctc_loss", "label", ("_ctc_loss", "_cudnn_ctc_loss")),
        *(("log_probs", "targets"), index.ctc),
    ),
    _Entry(
        *("torch.nn.functional.max_unpool2d", "gather", ("max_unpool2d",)),
        *(("self", "indices"), index.max_unpool, _functional("max_unpool1d")),
    ),
    _Entry(
        *("torch.nn.functional.max_unpool3d", "gather", ("max_unpool3d",)),
        *(("self", "indices"), index.max_unpool),
    ),
    _Entry("torch.searchsorted", "gather", ("searchsorted",), ("sorter",), index.sorter),
    _Entry(
        *("torch.nn.utils.rnn.pack_padded_sequence", "gather", ("_pack_padded_sequence",)),
        *(("input", "lengths"), offset.pack_lengths),
    ),
    _Entry(
        *("torch.segment_reduce", "gather", ("segment_reduce",)),
        *(("data", "lengths", "offsets"), offset.segments),
    ),
    _Entry(
        *("torch._grouped_mm", "gather", ("_grouped_mm",), ("self", "mat2", "offs")),
        *(offset.grouped_mm, _functional("grouped_mm")),
    ),
    _Entry(
        "torch._scaled_grouped_mm",
        "gather",
        ("_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
        ("self", "mat2", "offs"),
        offset.scaled_grouped_mm,
        _functional("scaled_grouped_mm"),
    ),
    _Entry(
        *("torch.sparse_coo_tensor", "gather", ("_sparse_coo_tensor_with_dims_and_tensors",)),
        *(("indices", "values"), offset.coo_indices),
    ),
    _Entry(
        "torch.sparse_compressed_tensor",
        "gather",
        ("sparse_compressed_tensor", "_sparse_compressed_tensor_unsafe"),
        ("compressed_indices", "plain_indices", "values"),
        offset.compressed_indices,
    ),
    _Entry(
        *("torch.nn.functional.binary_cross_entropy", "probability", ("binary_cross_entropy",)),
        *(_TARGET, value.bce),
    ),
    _Entry("torch.bernoulli", "probability", ("bernoulli",), ("self",), value.bernoulli),
    _Entry("torch.Tensor.bernoulli_", "probability", ("bernoulli_",), ("p",), value.bernoulli),
    _Entry(
        *("torch.multinomial", "probability", ("multinomial",), ("self",), value.multinomial),
        also=(
            Caller(
                "torch.distributions.Categorical.sample",
                "torch.distributions.categorical.sample",
            ),
        ),
    ),
    _Entry("torch.poisson", "probability", ("poisson",), ("self",), value.poisson),
    _Entry(
        *("torch.Tensor.masked_scatter_", "count", ("masked_scatter_", "masked_scatter")),
        *(("self", "mask", "source"), value.masked_scatter),
    ),
    _Entry("torch.repeat_interleave", "count", ("repeat_interleave",), ("repeats",), value.repeats),
    _Entry("torch.bincount", "gather", ("bincount",), ("self",), value.bincount),
    _Entry("torch._assert_async", "input", ("_assert_async",), ("self",), value.assert_async),
    _Entry(
        *("torch._assert_async", "input", ("_functional_assert_async",)),
        *(("self",), value.assert_async),
    ),
)
