"""Install and remove the stand-in device: CPU tensors that programs see as CUDA tensors."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cudassert_ipy.standin.context import Context
from cudassert_ipy.standin.modes import StandinDispatchMode, StandinFunctionMode
from cudassert_ipy.standin.patches import Patches
from cudassert_ipy.standin.tags import tag_of
from cudassert_ipy.standin.tensor_methods import install_tensor_methods
from cudassert_ipy.standin.torch_cuda import install_torch_cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from cudassert_ipy.standin.policy import Policy

_BASE: Any = torch._C.TensorBase


def is_device_tensor(tensor: Tensor) -> bool:
    """Whether a tensor is on a CUDA device, real or stand-in."""
    return device_index(tensor) is not None


def device_index(tensor: Tensor) -> int | None:
    """Return the index of a tensor's CUDA device, real or stand-in; None for other tensors."""
    with torch._C.DisableTorchFunction():
        if _BASE.is_cuda.__get__(tensor):
            return int(_BASE.get_device(tensor))
    found = tag_of(tensor)
    return None if found is None else found.device_index


class StandinDevice:
    """A CUDA device that is not there; ``policy`` decides what happens on it.

    Covers the thread that installs it and threads that start afterwards. A context manager, or
    :meth:`install` and :meth:`remove`; one at a time. Tags of tensors outlive it.
    """

    _installed: StandinDevice | None = None

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.context = Context(policy)
        self._patches = Patches()
        self._modes: tuple[Any, ...] = ()

    def install(self) -> None:
        """Start. Raises ``RuntimeError`` if a stand-in device is installed already."""
        if StandinDevice._installed is not None:
            msg = "a stand-in device is installed already"
            raise RuntimeError(msg)
        StandinDevice._installed = self
        self.context.active = True
        try:
            install_tensor_methods(self.context, self._patches)
            install_torch_cuda(self.context, self._patches, self._entered, StandinFunctionMode)
            self._modes = (StandinFunctionMode(self.context), StandinDispatchMode(self.context))
            for mode in self._modes:
                mode.__enter__()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Undo everything; does nothing if it is not installed."""
        if StandinDevice._installed is not self:
            return
        StandinDevice._installed = None
        self.context.active = False
        for mode in reversed(self._modes):
            _leave(mode)
        self._modes = ()
        self._patches.remove()

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        with StandinFunctionMode(self.context), StandinDispatchMode(self.context):
            yield


def _leave(mode: Any) -> None:
    """Take one mode off this thread's stack, whatever was pushed above it since.

    The push and pop functions are private; seen in torch 2.6 to 2.14.
    """
    if isinstance(mode, TorchFunctionMode):
        from torch import overrides

        count, pop, push = (
            torch._C._len_torch_function_stack,
            overrides._pop_mode,
            overrides._push_mode,
        )
    else:
        from torch.utils import _python_dispatch

        assert isinstance(mode, TorchDispatchMode)  # noqa: S101  the only other kind
        count = torch._C._len_torch_dispatch_stack
        pop, push = _python_dispatch._pop_mode, _python_dispatch._push_mode
    above = []
    while count():
        top = pop()
        if top is mode:
            push(mode)
            mode.__exit__(None, None, None)
            break
        above.append(top)
    for other in reversed(above):
        push(other)
