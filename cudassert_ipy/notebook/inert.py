"""Which variables are only written to by what is put into them."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INERT: Final = (list, dict, set, deque, int, float, complex, str)
_MAX_FUNCTIONS: Final = 200


class Inert:
    """Names whose ``append`` and ``+=`` run no code of the user's: containers, numbers, tensors.

    Not those that a function of the notebook reads and that ``source`` calls, directly or through
    others: what was put into them may come back that way.

    Args:
        names: the namespace in which the code runs; by reference.
        source: names that the code uses.

    """

    def __init__(self, names: Mapping[str, Any], source: set[str]) -> None:
        self._names = names
        self._read = _read_by_functions(names, source)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        first, *attributes = name.split(".")
        if first in self._read:
            return False
        value = self._names.get(first)
        for attribute in attributes:
            value = inspect.getattr_static(value, attribute, None)  # runs no property
        return type(value) in _INERT or _is_plain_tensor(value)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _is_plain_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Tensor


def _read_by_functions(names: Mapping[str, Any], source: set[str]) -> set[str]:
    """Return the names in the functions that ``source`` leads to; at most 200 functions."""
    waiting = [names[name] for name in source if name in names]
    seen: set[int] = set()
    read: set[str] = set()
    while waiting and len(seen) < _MAX_FUNCTIONS:
        value = waiting.pop()
        if not isinstance(value, FunctionType) or id(value) in seen:
            continue
        if value.__globals__ is not names and value.__module__ != "__main__":
            continue  # of a library: it cannot know the notebook's names
        seen.add(id(value))
        found = _names_of(value.__code__)
        waiting += [names[name] for name in found - read if name in names]
        read |= found
    return read


def _names_of(code: CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*map(_names_of, inner))
