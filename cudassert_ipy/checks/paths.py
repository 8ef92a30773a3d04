"""The tensors inside a batch, and the key paths that name them.

A batch is any nesting of tensors, numpy arrays, numbers, lists, tuples, named tuples, mappings
(a transformers ``BatchEncoding`` is one), dataclasses and plain objects with attributes (a
torch_geometric ``Data``). Everything here is bounded: a batch may be deep, cyclic or huge, and its
attributes may fail.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.report.clean import clean_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a path: an item (``["ids"]``, ``[1]``) or an attribute (``.ids``)."""

    key: str | int
    is_attribute: bool = False


Path: TypeAlias = tuple[Step, ...]

EVERY = "*"
"""In a key path: every item of a list or mapping, as in ``targets[*].labels``."""

# What an attribute may be that is no data. Not "callable": torch_geometric's Data can be called.
_CODE = (
    type
    | types.FunctionType
    | types.MethodType
    | types.BuiltinFunctionType
    | types.MethodWrapperType
    | types.ModuleType
)
MAX_LEAVES = 2_000
MAX_DEPTH = 12
_MAX_CHILDREN = 2_000
_MAX_NUMBERS = 50_000_000
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_PART = re.compile(r"\.?([A-Za-z_]\w*)|\[(-?\d+|\*|\"[^\"]*\"|'[^']*')\]")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a batch; an array, a number or a list of numbers is made into one."""

    path: Path
    tensor: Tensor


@dataclass(slots=True)
class Leaves:
    """The tensors of a batch, and what of it could not be read."""

    found: list[Leaf] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    is_cut: bool = False
    """Whether the batch was too large or too deep to be read whole."""


def path_text(path: Path) -> str:
    """Return a path as one would type it: ``batch["ids"][0].x``."""
    parts = ["batch"]
    for step in path:
        if step.is_attribute:
            parts.append(f".{step.key}")
        else:
            key = f'"{step.key}"' if isinstance(step.key, str) else str(step.key)
            parts.append(f"[{key}]")
    return clean_line("".join(parts), 120)


def walk(batch: Any, start: Path = ()) -> Leaves:
    """Return all tensors below ``batch``, in order; each only once per path."""
    leaves = Leaves()
    _walk(batch, start, leaves, ())
    return leaves


def find(batch: Any, key: Any) -> list[tuple[Path, Any]]:
    """Return what ``key`` names in ``batch``; several things where it has a ``*``.

    ``key`` is a key of the batch itself, a position, a path such as ``"inputs.ids"``,
    ``"targets[*].labels"``, ``'["a"][0]'``, or a tuple of steps. Raises ``CudassertError``, which
    lists what the batch has, where nothing is found.
    """
    if isinstance(key, str | int) and isinstance(batch, Mapping) and _contains(batch, key):
        return [((Step(key),), _read(batch, Step(key)))]
    steps = key if isinstance(key, tuple) else _parse(key)
    nodes: list[tuple[Path, Any]] = [((), batch)]
    for wanted in steps:
        following: list[tuple[Path, Any]] = []
        for path, node in nodes:
            if wanted == EVERY and not (isinstance(node, Mapping) and _contains(node, EVERY)):
                following += [((*path, step), value) for step, value in _items(node)]
            else:
                step = _step(node, wanted)
                if step is None:
                    raise CudassertError(_not_found(batch, key))
                following.append(((*path, step), _read(node, step)))
        nodes = following[:MAX_LEAVES]
    return nodes


def read(batch: Any, path: Path) -> Any:
    """Return what stands at ``path``; raises ``CudassertError`` where there is nothing."""
    node = batch
    for step in path:
        known = _step(node, step.key)
        if known is None:
            raise CudassertError(_not_found(batch, path_text(path)))
        node = _read(node, known)
    return node


def as_tensor(value: Any) -> Tensor | None:
    """Return a tensor, numpy array, number or list of numbers as a tensor; None for the rest.

    A nested tensor gives its values. Arrays share their memory where torch can.
    """
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return value.values() if value.layout is not torch.strided else None
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        if value.dtype.kind not in "biufc":
            return None
        array = numpy.asarray(value)
        if not array.flags.writeable or any(stride < 0 for stride in array.strides):
            array = array.copy()
        try:
            # Not native byte order, or a dtype that torch does not have (longdouble).
            return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
        except TypeError:
            return None
    if isinstance(value, bool | int | float):
        return _numbers(value)
    if isinstance(value, list | tuple) and value and _is_number_list(value):
        return _numbers(value)
    return None


def _numbers(value: Any) -> Tensor | None:
    import torch

    try:
        return torch.as_tensor(value)
    except (RuntimeError, OverflowError, ValueError, TypeError):
        return None  # an integer beyond 64 bits, or rows of unequal length


def _is_number_list(value: Any) -> bool:
    """Whether a list holds only numbers, or only lists of numbers of one length."""
    first = value[0]
    if isinstance(first, list | tuple):
        same = all(isinstance(v, list | tuple) and len(v) == len(first) for v in value)
        return bool(same and first and all(_is_flat(v) for v in value))
    return len(value) <= _MAX_NUMBERS and _is_flat(value)


def _is_flat(value: Any) -> bool:
    return all(isinstance(v, int | float) for v in value)


def _walk(value: Any, path: Path, leaves: Leaves, parents: tuple[int, ...]) -> None:
    if len(leaves.found) >= MAX_LEAVES:
        leaves.is_cut = True
        return
    tensor = as_tensor(value)
    if tensor is not None:
        leaves.found.append(Leaf(path, tensor))
        return
    if id(value) in parents:
        return  # a cycle: what it holds is being read already
    if len(parents) >= MAX_DEPTH:
        leaves.is_cut = leaves.is_cut or _is_container(value)
        return
    for count, step in enumerate(_steps(value)):
        if count >= _MAX_CHILDREN:
            leaves.is_cut = True
            return
        try:
            child = _read(value, step)
        except CudassertError:
            if len(leaves.unread) < 20:
                leaves.unread.append(path_text((*path, step)))
            continue
        _walk(child, (*path, step), leaves, (*parents, id(value)))


def _is_container(value: Any) -> bool:
    return next(iter(_steps(value)), None) is not None


def _items(node: Any) -> Iterator[tuple[Step, Any]]:
    for count, step in enumerate(_steps(node)):
        if count >= _MAX_CHILDREN:
            return
        yield step, _read(node, step)


def _steps(value: Any) -> Iterator[Step]:
    """Yield the steps to the parts of a container; nothing for anything else."""
    if isinstance(value, Mapping):
        try:
            for key in value:
                if isinstance(key, str | int):
                    yield Step(key)
        except Exception:
            return
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from (Step(name, is_attribute=True) for name in getattr(value, "_fields", ()))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | range):
        yield from (Step(n) for n in range(len(value)))
    elif _has_attributes(value):
        yield from (Step(name, is_attribute=True) for name in _attributes(value))


def _has_attributes(value: Any) -> bool:
    import torch

    return (
        hasattr(type(value), "__dict__")
        and isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, _CODE | torch.nn.Module)
        and type(value).__module__ != "builtins"
    )


def _attributes(value: Any) -> list[str]:
    """Return the names of the data attributes: dataclass fields, ``keys()``, or the instance's."""
    if dataclasses.is_dataclass(value):
        return [item.name for item in dataclasses.fields(value)]
    keys = getattr(type(value), "keys", None)  # torch_geometric: a method, before 2.4 a property
    if keys is not None:
        try:
            names = value.keys() if callable(keys) else value.keys
            return [name for name in names if isinstance(name, str) and name.isidentifier()]
        except Exception:
            return []
    return [name for name in vars(value) if not name.startswith("_")]


def _step(node: Any, key: Any) -> Step | None:
    """Return the step from ``node`` to its part ``key``, or None where it has none."""
    if isinstance(key, bool) or not isinstance(key, str | int):
        return None
    if isinstance(node, Mapping) and _contains(node, key):
        return Step(key)
    if isinstance(key, int):
        is_list = isinstance(node, Sequence) and not isinstance(node, str | bytes)
        return Step(key) if is_list and -len(node) <= key < len(node) else None
    if key.isidentifier():
        try:
            found = getattr(node, key, None)
        except Exception as error:  # a user's property may raise anything
            raise CudassertError(_unreadable(Step(key, is_attribute=True), error)) from error
        if found is not None and not isinstance(found, _CODE):
            return Step(key, is_attribute=True)
    return None


def _read(node: Any, step: Step) -> Any:
    try:
        return getattr(node, str(step.key)) if step.is_attribute else node[step.key]
    except Exception as error:  # a lazily loading mapping or property may raise anything
        raise CudassertError(_unreadable(step, error)) from error


def _contains(mapping: Any, key: str | int) -> bool:
    try:
        return key in mapping
    except Exception as error:  # a user's mapping may raise anything
        raise CudassertError(_unreadable(Step(key), error)) from error


def _parse(key: Any) -> list[str | int]:
    if isinstance(key, int) and not isinstance(key, bool):
        return [key]
    if not isinstance(key, str):
        raise CudassertError(messages.RULE_KEY.format(key=clean_line(repr(key), 80)))
    steps: list[str | int] = []
    place = 0
    while place < len(key):
        match = _PART.match(key, place)
        if match is None:
            return [key]  # a key with odd characters, of a mapping further in or of none
        name, bracket = match.groups()
        if name is not None:
            steps.append(name)
        elif bracket[0] in "\"'":
            steps.append(bracket[1:-1])
        else:
            steps.append(EVERY if bracket == EVERY else int(bracket))
        place = match.end()
    return steps


def _unreadable(step: Step, error: Exception) -> str:
    what = clean_line(f"{type(error).__name__}: {error}", 200)
    return messages.BATCH_UNREADABLE.format(part=path_text((step,)), error=what)


def _not_found(batch: Any, key: Any) -> str:
    names = [path_text(leaf.path) for leaf in walk(batch).found[:12]]
    template = messages.RULE_NOT_FOUND if names else messages.RULE_NOTHING
    text = template.format(key=clean_line(repr(key), 80), names=", ".join(names))
    if isinstance(key, str) and _NUMBER.fullmatch(key) and _step(batch, int(key)) is not None:
        text += messages.RULE_NUMBER.format(number=int(key), key=repr(key))
    return text
