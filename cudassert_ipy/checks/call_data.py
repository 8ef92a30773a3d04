"""One call of a checked operation as bounded plain data, to write it down as a script.

Small tensors with their values; of large ones only shape, dtype and the bad elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cudassert_ipy.model import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from cudassert_ipy.checks.operators import Operator
    from cudassert_ipy.model import Finding

LITERALS: Final = 64
"""Elements up to which a tensor's values are kept."""
WHOLE_NUMBERS: Final = 1000
"""Elements up to which the values of integer tensors are kept: offsets and lengths go together."""
_ITEMS: Final = 64
_TEXT: Final = 200
_PLAIN_DTYPES: Final = frozenset(
    (
        *("torch.float64", "torch.float32", "torch.float16", "torch.bfloat16", "torch.bool"),
        *("torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallData(Record):
    """One call of an operation of the table.

    ``arguments``: by the names of the operation's schema and in its order, without defaults. A
    tensor is ``{"tensor": shape, "dtype": "int64", "device": on the device?, "values": flat list or
    None, "bad": bad operand?, "sparse": bool}``, a dtype or layout ``{"torch": "torch.int64"}``;
    all else is a number, a text, a bool, None, or a list of such.
    """

    aten: str
    arguments: dict[str, Any]
    missing: tuple[str, ...] = ()
    """Arguments that could not be written down."""


def call_data(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: Any,
    finding: Finding,
    on_device: Callable[[Tensor], bool],
) -> CallData:
    """Return one call with a bad operand. Its tensors are read; none is changed.

    Args:
        operator: the row of the table.
        args: of the call.
        kwargs: of the call.
        finding: what is wrong with it.
        on_device: whether a tensor is on the (stand-in) device.

    """
    arguments = operator.arguments(args, kwargs or {})
    bad = _bad_operand(operator, arguments, finding)
    defaults = operator.defaults or {}
    told: dict[str, Any] = {}
    missing = []
    for name in (name for name in operator.names if name in arguments):
        value = arguments[name]
        if name in defaults and value is defaults[name]:
            continue
        data = _data(value, bad, on_device)
        if data is _UNTOLD:
            missing.append(str(name)[:_TEXT])
        elif not (name in defaults and _plain(value) and value == defaults[name]):
            told[str(name)] = data
    return CallData(aten=operator.aten, arguments=told, missing=tuple(missing[:_ITEMS]))


_UNTOLD: Final = object()


def _plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str, list, tuple)


def _bad_operand(operator: Operator, arguments: Any, finding: Finding) -> Tensor | None:
    """Return the tensor that the finding is about: the operand of that name with those values."""
    for operand in operator.operands(arguments):
        tensor = operand.tensor
        if operand.name != finding.operand or tensor.numel() != math.prod(finding.shape):
            continue
        if not finding.bad_positions:
            return tensor
        place = flat_index(finding.bad_positions[0], finding.shape)
        value, expected = tensor.detach().reshape(-1)[place].item(), finding.bad_values[0]
        if value == expected or (value != value and expected != expected):
            return tensor
    return None


def flat_index(position: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Return where an element stands when the dimensions are laid out in a row."""
    index = 0
    for place, size in zip(position, shape, strict=True):
        index = index * size + place
    return index


def _data(value: Any, bad: Any, on_device: Callable[[Tensor], bool]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value, bad, on_device)
    if isinstance(value, list | tuple):
        if len(value) > WHOLE_NUMBERS:
            return _UNTOLD
        items = [_data(item, bad, on_device) for item in value]
        return _UNTOLD if any(item is _UNTOLD for item in items) else items
    if isinstance(value, torch.dtype | torch.layout):
        return {"torch": str(value)}
    if value is None or isinstance(value, bool):
        return value
    if type(value) in (int, float):
        return value
    if isinstance(value, str):
        return value[:_TEXT]
    return _UNTOLD  # devices and generators are the script's own; symbolic sizes are nobody's


def _tensor(tensor: Tensor, bad: Any, on_device: Callable[[Tensor], bool]) -> Any:
    if tensor.is_nested:
        return _UNTOLD
    dtype = str(tensor.dtype)
    whole = dtype.startswith(("torch.int", "torch.uint"))
    limit = WHOLE_NUMBERS if whole else LITERALS
    sparse = tensor.is_sparse
    values = None
    if not sparse and tensor.numel() <= limit and dtype in _PLAIN_DTYPES and not tensor.is_meta:
        values = tensor.detach().reshape(-1).tolist()
    return {
        "tensor": list(tensor.shape),
        "dtype": dtype.removeprefix("torch."),
        "device": on_device(tensor),
        "values": values,
        "bad": tensor is bad,
        "sparse": sparse,
    }
