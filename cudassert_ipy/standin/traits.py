"""What the stand-in needs to know of an ATen operator, read once from its schema and tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.checks.operators import lookup

if TYPE_CHECKING:
    from cudassert_ipy.checks.operators import Operator


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of one ``OpOverload``."""

    operator: Operator | None
    """Its row in the operator table."""
    is_view: bool
    """It only makes a new view: no kernel runs."""
    is_random: bool
    synchronizes: bool
    """The host needs a value or a size that the device computes."""
    mixes_devices: bool
    """CPU operands beside device operands are allowed."""
    overwrites: bool
    """It replaces all values of its first argument."""
    takes_tensors: bool
    factory_size: int | None
    """Position of the size in the arguments of a factory."""
    device_position: int | None
    """Position of a device among the arguments that are not keyword-only."""
    host_result: int | None
    """Position of a result that is always on the CPU."""
    written: tuple[int, ...]
    """Positions of the arguments that it writes to and returns."""


# Their results have data-dependent shapes, or are Python values (aten/src/ATen/native/cuda).
_SYNCHRONIZING = frozenset(
    (
        *("_local_scalar_dense", "is_nonzero", "equal", "_is_all_true", "_is_any_true"),
        *("nonzero", "nonzero_numpy", "argwhere", "masked_select", "bincount"),
        *("unique_dim", "unique_consecutive", "unique_dim_consecutive", "_unique", "_unique2"),
        *("repeat_interleave", "_to_dense", "_coalesce", "_linalg_check_errors"),
    )
)
# These take index, length or scalar tensors from the CPU (aten/src/ATen/native).
_MIXING = frozenset(
    (
        *("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"),
        *("_unsafe_index_put", "copy_", "_to_copy", "copy", "_copy_from", "set_", "lift_fresh"),
        *("_pack_padded_sequence", "_pack_padded_sequence_backward", "_ctc_loss", "resize_"),
        *("_nested_view_from_jagged", "_nested_view_from_jagged_copy"),
        *("lstm", "gru", "rnn_tanh", "rnn_relu", "_thnn_fused_lstm_cell"),
    )
)
_OVERWRITING = frozenset(
    (
        *("copy_", "fill_", "zero_", "random_", "uniform_", "normal_", "bernoulli_"),
        *("exponential_", "geometric_", "cauchy_", "log_normal_"),
    )
)
_FACTORIES = ("empty", "zeros", "ones", "full", "rand", "new_", "_efficientzerotensor")

_cache: dict[Any, Traits] = {}


def traits_of(func: Any) -> Traits:
    """Return the traits of an ``OpOverload``."""
    found = _cache.get(func)
    if found is None:
        found = _cache[func] = _read(func)
    return found


def _read(func: Any) -> Traits:
    schema = func._schema
    name = schema.name.partition("::")[2]
    takes_tensors = any("Tensor" in str(item.type) for item in schema.arguments)
    written = tuple(
        position
        for position, item in enumerate(schema.arguments)
        if item.alias_info is not None and item.alias_info.is_write
    )
    aliasing = any(
        item.alias_info is not None and not item.alias_info.is_write for item in schema.returns
    )
    return Traits(
        operator=lookup(func),
        is_view=(aliasing and not written) or name in ("detach", "alias", "lift_fresh", "set_"),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        synchronizes=name in _SYNCHRONIZING,
        mixes_devices=name in _MIXING or name.startswith(("_foreach", "_fused", "_amp_foreach")),
        overwrites=name in _OVERWRITING,
        takes_tensors=takes_tensors,
        factory_size=_size_position(schema) if name.startswith(_FACTORIES) else None,
        device_position=_device_position(schema),
        host_result=1 if name == "_pack_padded_sequence" else None,
        written=written,
    )


def _device_position(schema: Any) -> int | None:
    for position, item in enumerate(schema.arguments):
        if item.name == "device" and not item.kwarg_only:
            return position
    return None


def _size_position(schema: Any) -> int | None:
    names = [item.name for item in schema.arguments]
    return names.index("size") if "size" in names else None
