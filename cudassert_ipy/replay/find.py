"""Finding tensors in this process without running any user code."""

from __future__ import annotations

import gc
import itertools
import sys
from collections import deque
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_OBJECT_LIMIT: Final = 20_000
"""Objects a walk from the namespace looks at; some 20 ms where there are so many."""
_ITEM_LIMIT: Final = 2_000
"""Items of one list, tuple, dict or set that it looks at."""
_ATOMS: Final = (
    *(str, bytes, bytearray, int, float, complex, bool, type(None)),
    *(type, ModuleType, CodeType, FrameType, BuiltinFunctionType),
)
# Machinery that refers to everything: following it would walk the whole process.
_FOREIGN: Final = frozenset(
    [
        "IPython",
        "ipykernel",
        "traitlets",
        "zmq",
        "tornado",
        "asyncio",
        "_asyncio",
        "concurrent",
        "threading",
        "logging",
        "weakref",
        "_weakref",
        "comm",
        "ipywidgets",
        "cudassert_ipy",
    ]
)


class Heap:
    """Every object of this process that the garbage collector knows, looked through once.

    With ``thaw``, objects that ``gc.freeze()`` hid are included and the whole process is frozen
    afterwards: for the child, where no old object may be collected any more.
    """

    def __init__(self, *, thaw: bool = False) -> None:
        if thaw:
            gc.disable()
            gc.unfreeze()
        self._objects = gc.get_objects()
        if thaw:
            gc.freeze()
            gc.enable()
        # By address: a metaclass may define `__eq__` without `__hash__`, or do anything in them.
        self._kinds = {id(kind): kind for kind in map(type, self._objects)}

    def instances(self, base: type) -> list[Any]:
        """Return the instances of ``base``.

        By ``issubclass(type(o), …)`` and not ``isinstance``, which asks lazy proxies for
        ``__class__`` and so runs their code.
        """
        wanted = {key for key, kind in self._kinds.items() if issubclass(kind, base)}
        return [item for item in self._objects if id(type(item)) in wanted] if wanted else []

    def tensors(self) -> list[torch.Tensor]:
        """Return every tensor that Python can reach."""
        scripts = self.instances(torch.jit.ScriptModule)
        return with_hidden(itertools.chain(self.instances(torch.Tensor), _script_tensors(scripts)))


def reachable_tensors(namespace: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that ``namespace`` leads to, nearest first.

    Follows containers, modules, optimizers, closures, generators and objects of any class by the
    garbage collector's own knowledge of what refers to what, so no property and no ``__getattr__``
    of the user runs. Bounded: at most ``_OBJECT_LIMIT`` objects.
    """
    found: list[torch.Tensor] = []
    scripts: list[torch.jit.ScriptModule] = []
    module_globals = {id(vars(module)) for module in _modules()}
    seen = set(module_globals)
    level: list[Any] = list(namespace.values())
    while level and len(seen) - len(module_globals) < _OBJECT_LIMIT:
        following: list[Any] = []
        for item in level:
            kind = type(item)
            if issubclass(kind, _ATOMS) or id(item) in seen:
                continue
            seen.add(id(item))
            if issubclass(kind, torch.Tensor):
                found.append(item)
            elif issubclass(kind, torch.jit.ScriptModule):
                scripts.append(item)
            if not _is_foreign(kind):
                following.extend(_referents(item, kind))
        level = following
    return with_hidden(itertools.chain(found, _script_tensors(scripts)))


def with_hidden(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return ``tensors`` plus the ones only C++ holds: ``.grad`` of leaves and bases of views."""
    queue = deque(tensors)
    found: dict[int, torch.Tensor] = {}
    # Attribute access of tensors runs function modes and `__torch_function__` of subclasses.
    with torch._C.DisableTorchFunction():
        while queue:
            tensor = queue.popleft()
            if id(tensor) in found:
                continue
            found[id(tensor)] = tensor
            grad = tensor.grad if tensor.is_leaf else None
            queue.extend(other for other in (grad, tensor._base) if other is not None)
    return list(found.values())


def _referents(item: Any, kind: type) -> Iterable[Any]:
    if any(kind is plain for plain in (list, tuple, set, frozenset)):
        return itertools.islice(item, _ITEM_LIMIT)
    if kind is dict:
        return itertools.islice(item.values(), _ITEM_LIMIT)
    return gc.get_referents(item)


_MODULE_OF: Any = type.__dict__["__module__"]


def _is_foreign(kind: type) -> bool:
    module = _MODULE_OF.__get__(kind)  # past a metaclass of the user's
    return isinstance(module, str) and module.partition(".")[0] in _FOREIGN


def _modules() -> list[ModuleType]:
    return [module for module in list(sys.modules.values()) if type(module) is ModuleType]


def _script_tensors(modules: Iterable[torch.jit.ScriptModule]) -> Iterator[torch.Tensor]:
    """Yield what TorchScript modules hold in C++, where the garbage collector cannot look."""
    for module in modules:
        # A script module that is half made (its own __init__ raised) has no C++ side.
        if "_c" in vars(module):
            yield from module.parameters()
            yield from module.buffers()
