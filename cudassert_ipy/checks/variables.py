"""Values of the user's variables, by reading only: no code of the user's runs.

Only builtin containers and plain instance dictionaries are read: properties, ``__getattr__`` and
``__getitem__`` of user classes are never called.
"""

from __future__ import annotations

import ast
import collections
import itertools
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

MISSING = object()
"""In place of a value that is not there, or that only code of the user's could tell."""

_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_NO_BATCH = (type, types.ModuleType, types.FunctionType, types.MethodType, str, int, float)
_MAX_DEPTH = 3
_MAX_ITEMS = 100
_MAX_VALUES = 2_000


class Variables:
    """Values of expressions in a frame, by reading only."""

    def __init__(self, *scopes: Mapping[str, Any]) -> None:
        self._scopes = scopes

    def value(self, node: ast.expr) -> Any:
        """Return the value of a name, attribute or constant subscript; ``MISSING`` if unknown."""
        if isinstance(node, ast.Name):
            return next((s[node.id] for s in self._scopes if node.id in s), MISSING)
        if isinstance(node, ast.Attribute):
            return _attribute(self.value(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return _item(self.value(node.value), self._key(node.slice))
        return MISSING

    def _key(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._key(node.operand)
            return -inner if type(inner) is int else MISSING
        value = self.value(node) if isinstance(node, ast.Name) else MISSING
        return value if type(value) in (int, str) else MISSING


def _attribute(owner: Any, name: str) -> Any:
    if owner is MISSING:
        return MISSING
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, MISSING)
    own = _own(owner)
    for kind in type(owner).__mro__:
        descriptor = vars(kind).get(name, MISSING)
        if descriptor is not MISSING and kind.__module__.startswith("torch_geometric."):
            break  # its properties read the object's own table, and so does this function
        if isinstance(descriptor, types.MemberDescriptorType):
            return _read_descriptor(descriptor, owner)
        if type(descriptor).__name__ == "_tuplegetter" and isinstance(owner, tuple):
            return _read_descriptor(descriptor, owner)
        if descriptor is not MISSING and hasattr(type(descriptor), "__set__"):
            return MISSING
    if name in own:
        return own[name]
    for table in _MODULE_TABLES:
        entries: Any = own.get(table)
        if type(entries) in (dict, collections.OrderedDict) and name in entries:
            return entries[name]
    return _attributes(owner).get(name, MISSING)


def _read_descriptor(descriptor: Any, owner: Any) -> Any:
    try:
        return descriptor.__get__(owner, type(owner))
    except AttributeError:
        return MISSING


def _item(owner: Any, key: Any) -> Any:
    if key is MISSING or type(key) not in (int, str):
        return MISSING
    if isinstance(owner, collections.UserDict):
        owner = vars(owner).get("data", MISSING)
    elif "_store" in _own(owner):
        return _attributes(owner).get(key, MISSING)
    reader = next((kind for kind in (dict, list, tuple) if isinstance(owner, kind)), None)
    if reader is None or type(owner).__getitem__ is not reader.__getitem__:
        return MISSING
    try:
        return reader.__getitem__(owner, key)
    except (KeyError, IndexError, TypeError):
        return MISSING


def _attributes(owner: Any) -> dict[Any, Any]:
    """Return what ``owner.name`` looks up in a table of the object's own.

    ``transformers.BatchEncoding`` is a ``UserDict`` whose keys are attributes too. The attributes
    of ``torch_geometric.data.Data`` are in ``data._store._mapping`` (seen in 2.0 to 2.8).
    """
    own = _own(owner)
    if isinstance(owner, collections.UserDict):
        table = own.get("data")
    else:
        table = _own(own.get("_store")).get("_mapping", own)
    return table if type(table) is dict else {}


def _own(owner: Any) -> dict[Any, Any]:
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def tensors_inside(text: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a value and in the containers in it, with the expression for each.

    The outermost come first; at most ``_MAX_VALUES`` values are looked at.

    Args:
        text: the expression for ``value`` itself.
        value: anything; modules are not looked into, their tensors are no batch.

    """
    import torch

    waiting = collections.deque([(text, value, 0)])
    for _ in range(_MAX_VALUES):
        if not waiting:
            return
        name, item, depth = waiting.popleft()
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            yield name, item
        elif depth <= _MAX_DEPTH and not issubclass(kind, (torch.nn.Module, *_NO_BATCH)):
            waiting.extend((inner, found, depth + 1) for inner, found in _entries(name, item))


def _entries(text: str, value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, collections.UserDict):
        value = _own(value).get("data")
        kind = type(value)
    if issubclass(kind, dict):
        items = itertools.islice(dict.items(value), _MAX_ITEMS)
        return [(f"{text}[{_key(k)}]", v) for k, v in items if _is_plain(k)]
    if issubclass(kind, list | tuple):
        names = vars(kind).get("_fields", ())
        reader = list if issubclass(kind, list) else tuple
        entries = []
        for number, item in enumerate(itertools.islice(reader.__iter__(value), _MAX_ITEMS)):
            is_named = type(names) is tuple and number < len(names)
            entries.append((f"{text}.{names[number]}" if is_named else f"{text}[{number}]", item))
        return entries
    table = itertools.islice(_attributes(value).items(), _MAX_ITEMS)
    return [(f"{text}.{k}", v) for k, v in table if type(k) is str and k.isidentifier()]


def _is_plain(key: Any) -> bool:
    """Whether a key is a literal; those of ``edge_index_dict`` of torch_geometric are tuples."""
    return type(key) in (int, str) or (type(key) is tuple and all(map(_is_plain, key)))


def _key(key: int | str | tuple[Any, ...]) -> str:
    """Return a key as people write it: in double quotes where that needs no escape."""
    plain = isinstance(key, str) and key.isprintable() and not set(key) & {'"', "\\"}
    return f'"{key}"' if plain else repr(key)
