"""State of one installed stand-in device, shared by its modes, methods and replaced names."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.standin.cuda_errors import INVALID_ORDINAL, accelerator_error
from cudassert_ipy.standin.tags import Tag, storage_of, tag_of, tag_of_storage, tag_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from cudassert_ipy.checks.history import History
    from cudassert_ipy.standin.policy import Policy


class Context:
    """Policy, current device and thread state of a stand-in device."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.active = False
        """Off after removal: modes that other threads still hold then do nothing."""
        self.initialized = False
        """What ``torch.cuda.is_initialized()`` says: whether the device was used yet."""
        self.drew_random = False
        """Whether the random generator of the device was used."""
        self.used_substitutes = False
        """Whether an operation was given substitute values, before random ones became some."""
        self.history: History | None = None
        """Follows where values come from, where somebody wants to know."""
        self._thread = _ThreadState()

    @property
    def current_index(self) -> int:
        """The thread's current device."""
        return self._thread.index

    @current_index.setter
    def current_index(self, index: int) -> None:
        self._thread.index = index

    @property
    def thread(self) -> _ThreadState:
        """State of the calling thread."""
        return self._thread

    def index_of(self, device: Any) -> int | None:
        """Return the stand-in index that ``device`` names; None for CPU and other devices.

        Raises ``torch.AcceleratorError`` for an index that does not exist, as CUDA does.
        """
        if isinstance(device, int) and not isinstance(device, bool):
            index = device
        else:
            named = device if isinstance(device, torch.device) else torch.device(device)
            if named.type != "cuda":
                return None
            index = self.current_index if named.index is None else named.index
        if not 0 <= index < self.policy.device_count:
            raise accelerator_error(INVALID_ORDINAL)
        return index

    def use(self) -> None:
        """Note that the device is used; raises if it cannot be used any more."""
        self.initialized = True
        self.policy.unreadable()

    def place(self, tensor: Tensor, index: int | None, *, substitute: bool) -> None:
        """Put a fresh result on a device (or, with index None, on the CPU)."""
        storage = storage_of(tensor)
        if storage is None:
            return
        old = tag_of_storage(storage)
        new = interned(index, substitute=substitute)
        if old is not new:
            tag_storage(storage, new)
            if index is not None and (old is None or old.device_index is None):
                self.policy.allocated(storage)


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int | None, Any] = {}
        """The current stream of a device, where it is not the default one."""

    index = 0
    call: tuple[Any, ...] = ()
    """Arguments of the torch function that is running: its inner factories follow them."""
    forced: int | None = None
    """Device of the factory that is running."""
    capturing = False
    """Whether a CUDA graph is being captured."""
    inside = False
    """Whether a torch function is running, for which torch takes our function mode away."""


@functools.cache
def interned(index: int | None, *, substitute: bool) -> Tag | None:
    """Return the one tag for these values; None for an ordinary CPU tensor."""
    return None if index is None and not substitute else Tag(index, substitute)


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in their lists, one level deep, as ATen takes them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (list, tuple):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield item


def index_of_any(values: tuple[Any, ...]) -> int | None:
    """Return the device of the first stand-in tensor among arguments, or None."""
    for tensor in tensors_in(*values):
        found = tag_of(tensor)
        if found is not None and found.device_index is not None:
            return found.device_index
    return None
