"""What a cell's variables held when it started, as far as that is small enough to keep.

A replay after a failure starts from what the failed cell left. A cell that changed its own inputs
(``labels -= 1``, ``queue.pop(0)``, ``step += 1``) would then be replayed on other values than it
died of. So small values are noted before each cell, put back in the child, and what has changed
and cannot be put back is named.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCALARS: Final = (int, float, complex, bool, str, bytes, type(None))
_CONTAINERS: Final = (list, dict, set, deque)
_MAX_NAMES: Final = 1_000
_MAX_ITEMS: Final = 1_000
_MAX_TEXT: Final = 100_000
_MAX_BYTES: Final = 1 << 20
"""Largest tensor or array that is copied; larger ones are only watched for changes."""


@dataclass(slots=True)
class _Entry:
    """One variable at the start of a cell.

    Attributes:
        identity: of the object that was bound.
        mark: what tells that the object was changed in place: a version, a length, or None.
        copy: what brings its value back; None where only the mark is kept.

    """

    identity: int
    mark: Any
    copy: Any = None
    kept: bool = False


class HostState:
    """The variables of a namespace at one moment; taking one is a matter of microseconds.

    Kept are scalars, small containers of scalars, and integer and boolean CPU tensors and NumPy
    arrays up to a megabyte, also one level inside a container. Nothing that the cell could replace
    is kept alive: large objects and whatever lives on a device are only watched.
    """

    def __init__(self, entries: dict[str, _Entry]) -> None:
        self._entries = entries

    @classmethod
    def take(cls, namespace: Mapping[str, Any], previous: HostState | None = None) -> HostState:
        """Return the state of ``namespace`` now. Runs no user code and raises nothing.

        ``previous``: an earlier state, whose copies of unchanged tensors are used again.
        """
        before = previous._entries if previous is not None else {}
        entries = {}
        with _no_modes():
            for name, value in list(namespace.items())[:_MAX_NAMES]:
                if not name.startswith("_"):
                    entries[name] = _note(value, before.get(name))
        return cls(entries)

    def restore(self, namespace: dict[str, Any]) -> None:
        """In a child: bind and fill the variables as they were; what is not known stays.

        What the cell made new stays as well: it will be made again.
        """
        with _no_modes():
            for name, entry in self._entries.items():
                if entry.kept and _changed(namespace.get(name, self), entry):
                    _put_back(namespace, name, entry)

    def lost(self, namespace: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the variables that were changed since and cannot be put back."""
        with _no_modes():
            return tuple(
                name
                for name, entry in self._entries.items()
                if not entry.kept and _changed(namespace.get(name, self), entry)
            )


def _note(value: Any, before: _Entry | None) -> _Entry:
    kind = type(value)
    if kind in _SCALARS:
        small = not isinstance(value, str | bytes) or len(value) <= _MAX_TEXT
        return _Entry(id(value), None, value if small else None, kept=small)
    if _is_tensor(kind):
        return _note_tensor(value, before)
    if _is_array(kind):
        if value.dtype.kind in "iub" and value.nbytes <= _MAX_BYTES:
            return _Entry(id(value), None, value.copy(), kept=True)
        return _Entry(id(value), None)
    if kind in _CONTAINERS:
        return _note_container(value)
    return _Entry(id(value), None)


def _note_tensor(value: Any, before: _Entry | None) -> _Entry:
    version = None if value.is_inference() else value._version
    entry = _Entry(id(value), version)
    if before is not None and before.kept and version is not None:
        same = (before.identity, before.mark) == (entry.identity, version)
        if same and before.copy.shape == value.shape:
            return before
    if not _is_on_device(value) and _is_small_integer(value):
        entry.copy, entry.kept = value.detach().clone(), True
    return entry


def _note_container(value: Any) -> _Entry:
    entry = _Entry(id(value), len(value))
    if len(value) > _MAX_ITEMS:
        return entry
    items = value.values() if type(value) is dict else value
    if all(type(item) in _SCALARS for item in items):
        entry.copy, entry.kept = value.copy(), True
        return entry
    # The members may be tensors: their marks, so that a change in place is seen.
    entry.mark = _member_marks(value)
    return entry


def _member_marks(value: Any) -> tuple[Any, ...]:
    items = value.values() if type(value) is dict else value
    return (
        len(value),
        *(
            (id(item), item._version)
            for item in items
            if _is_tensor(type(item)) and not item.is_inference()
        ),
    )


def _changed(value: Any, entry: _Entry) -> bool:
    kind = type(value)
    if kind in _SCALARS and entry.kept:
        return not (type(entry.copy) is kind and value == entry.copy)
    if id(value) != entry.identity:
        return True
    if _is_tensor(kind):
        return not value.is_inference() and value._version != entry.mark
    if kind in _CONTAINERS:
        if entry.kept:
            return bool(value != entry.copy)
        return len(value) > _MAX_ITEMS or _member_marks(value) != entry.mark
    if _is_array(kind) and entry.kept:
        return not (value.shape == entry.copy.shape and bool((value == entry.copy).all()))
    return False


def _put_back(namespace: dict[str, Any], name: str, entry: _Entry) -> None:
    value: Any = namespace.get(name)
    copy = entry.copy
    if id(value) != entry.identity or type(value) is not type(copy):
        namespace[name] = copy
        return
    if isinstance(value, list | deque | set | dict):
        value.clear()
        (value.update if isinstance(value, set | dict) else value.extend)(copy)
    elif _is_array(type(value)) and value.shape == copy.shape and value.flags.writeable:
        value[...] = copy
    elif _is_tensor(type(value)) and value.shape == copy.shape:
        value.data.copy_(copy)
    else:
        namespace[name] = copy


def _is_tensor(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and kind in (torch.Tensor, torch.nn.Parameter)


def _is_array(kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is numpy.ndarray


def _is_on_device(tensor: Any) -> bool:
    from cudassert_ipy.standin.device import is_device_tensor

    return is_device_tensor(tensor)


def _is_small_integer(tensor: Any) -> bool:
    integer = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    strided = str(tensor.layout) == "torch.strided"
    return integer and strided and tensor.numel() * tensor.element_size() <= _MAX_BYTES


def _no_modes() -> Any:
    """Return a context in which tensors are plain, whatever simulator or guard is on."""
    import contextlib

    torch = sys.modules.get("torch")
    stack = contextlib.ExitStack()
    if torch is not None:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch._C._DisableTorchDispatch())
    return stack
