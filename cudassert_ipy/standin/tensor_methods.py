"""Attributes and methods of ``torch.Tensor`` that tell or change the device.

They are set on the Python class, above the C++ base class, so that they hold in every thread and
for parameters as well. Each replaced name gets a function object of its own: torch._dynamo refuses
one object under two names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint

from cudassert_ipy.standin.legacy_types import plain_type
from cudassert_ipy.standin.pinned import is_pinned_storage, pin
from cudassert_ipy.standin.tags import Tag, tag_of
from cudassert_ipy.standin.transfer import move

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches

_BASE: Any = torch._C.TensorBase
_TORCH = str(Path(torch.__file__).parent)
_OF_SAVED_TENSORS = (torch.utils.checkpoint.__file__, torch.autograd.graph.__file__)
"""Run also from within functions, at any tensor that is saved, and note where tensors are."""


def install_tensor_methods(context: Context, patches: Patches) -> None:
    """Replace what tells or changes the device on ``torch.Tensor``."""
    for name, value in {**_queries(context), **_movers(context), **_readers(context)}.items():
        patches.set(torch.Tensor, name, value)


def _queries(context: Context) -> dict[str, Any]:
    thread = context.thread

    def seen(tensor: Tensor) -> Tag | None:
        found = tag_of(tensor)
        if found is None or found.device_index is None or not context.active:
            return None
        if thread.inside and _works_on_the_cpu(sys._getframe(2).f_code.co_filename):
            # A Python function of torch, which runs without our function mode: its factories would
            # ask the real CUDA. It works on the CPU, and its results inherit the tag.
            return None
        return found

    def device(self: Tensor) -> torch.device:
        found = seen(self)
        return _BASE.device.__get__(self) if found is None else _device(found)

    def is_cuda(self: Tensor) -> bool:
        return seen(self) is not None or _BASE.is_cuda.__get__(self)

    def is_cpu(self: Tensor) -> bool:
        return seen(self) is None and _BASE.is_cpu.__get__(self)

    def get_device(self: Tensor) -> int:
        return _device(found).index if (found := seen(self)) else int(_BASE.get_device(self))

    return {
        "device": property(device),
        "is_cuda": property(is_cuda),
        "is_cpu": property(is_cpu),
        "get_device": get_device,
    }


def _works_on_the_cpu(filename: str) -> bool:
    return filename.startswith(_TORCH) and filename not in _OF_SAVED_TENSORS


def _device(found: Tag) -> torch.device:
    return torch.device("cuda", found.device_index or 0)


def _movers(context: Context) -> dict[str, Any]:
    def to(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        device, rest, named = _parse_to(args, kwargs)
        if device is None or not context.active:
            return _BASE.to(self, *args, **kwargs)
        return transfer(self, device, rest, named)

    def transfer(self: Tensor, device: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
        index = context.index_of(device)
        if index is None and torch.device(device).type != "cpu":
            return _BASE.to(self, device, *rest, **named)
        found = tag_of(self)
        if index == (None if found is None else found.device_index):
            if not rest and not named.keys() - {"non_blocking"}:
                return self
            dtype = rest[0] if rest and isinstance(rest[0], torch.dtype) else None
            dtype = named.get("dtype", dtype) or self.dtype
            flags = [item for item in rest if isinstance(item, bool)]
            copy = named.get("copy", len(flags) > 1 and flags[1])
            options = {k: v for k, v in named.items() if k == "memory_format"}
            return _BASE.to(self, dtype, copy=copy, **options)
        dtype = named.get("dtype")
        non_blocking = named.get("non_blocking", False)
        for item in rest:
            if isinstance(item, torch.dtype):
                dtype = item
            elif isinstance(item, bool):
                non_blocking = item
                break
        pinned = index is None or is_pinned_storage(self)
        return move(
            context,
            self,
            index,
            dtype=dtype,
            non_blocking=non_blocking and pinned,
            memory_format=named.get("memory_format"),
        )

    def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if not context.active:
            return _BASE.cuda(self, device, non_blocking, **kwargs)
        target = "cuda" if device is None else device
        return transfer(self, target, (), {"non_blocking": non_blocking, **kwargs})

    def cpu(self: Tensor, **kwargs: Any) -> Any:
        if tag_of(self) is None or not context.active:
            return _BASE.cpu(self, **kwargs)
        return transfer(self, "cpu", (), kwargs)

    def pin_memory(self: Tensor, device: Any = None) -> Tensor:  # noqa: ARG001
        if is_pinned_storage(self):
            return self
        pinned = self.detach().clone()
        pin(pinned)
        return pinned

    def is_pinned(self: Tensor, device: Any = None) -> bool:  # noqa: ARG001
        return is_pinned_storage(self)

    def record_stream(self: Tensor, stream: Any) -> None:  # noqa: ARG001
        context.use()

    return {
        "to": to,
        "cuda": cuda,
        "cpu": cpu,
        "pin_memory": pin_memory,
        "is_pinned": is_pinned,
        "record_stream": record_stream,
    }


def _readers(context: Context) -> dict[str, Any]:
    original_repr: Any = torch.Tensor.__repr__
    original_format = torch.Tensor.__format__

    def read(tensor: Tensor) -> bool:
        """Wait for the device before values are read; returns whether it is a device tensor."""
        found = tag_of(tensor)
        if found is None or not context.active:
            return False
        if found.device_index is not None:
            context.initialized = True
            context.policy.synchronize()
        context.policy.copied_to_host(tensor)
        return found.device_index is not None

    def numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = tag_of(self)
        if found is not None and context.active:
            if found.device_index is not None:
                msg = (
                    f"can't convert {_device(found)} device type tensor to numpy. Use "
                    "Tensor.cpu() to copy the tensor to host memory first."
                )
                raise TypeError(msg)
            context.policy.copied_to_host(self)
        return _BASE.numpy(self, *args, **kwargs)

    def tolist(self: Tensor) -> Any:
        read(self)
        return _BASE.tolist(self)

    def __repr__(self: Tensor, *, tensor_contents: Any = None) -> str:  # noqa: N807
        thread = context.thread
        if not read(self):
            return str(original_repr(self, tensor_contents=tensor_contents))
        inside, thread.inside = thread.inside, False
        try:
            return str(torch._tensor_str._str(self, tensor_contents=tensor_contents))
        finally:
            thread.inside = inside

    def __format__(self: Tensor, specification: str) -> str:  # noqa: N807
        if tag_of(self) is None or not context.active:
            return str(original_format(self, specification))
        if self.dim() == 0 and type(self) is torch.Tensor:
            return format(self.item(), specification)
        return object.__format__(self, specification)

    def type_(self: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = tag_of(self)
        on_device = found is not None and found.device_index is not None and context.active
        if dtype is None:
            with torch._C.DisableTorchFunction():
                name: str = _BASE.type(self)
            return name.replace("torch.", "torch.cuda.", 1) if on_device else name
        plain = plain_type(dtype) if context.active else None
        if plain is not None:
            return self.to("cuda", plain.dtype)
        if on_device and not isinstance(dtype, torch.dtype):
            return _BASE.type(
                self.cpu(), dtype, *args, **kwargs
            )  # "torch.FloatTensor" is the CPU's
        return _BASE.type(self, dtype, *args, **kwargs)

    return {
        "numpy": numpy,
        "tolist": tolist,
        "__repr__": __repr__,
        "__format__": __format__,
        "type": type_,
    }


def _parse_to(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Split the arguments of ``Tensor.to`` into a device (None: none named) and the rest."""
    named = dict(kwargs)
    other = named.pop("other", None)
    device = named.pop("device", None)
    rest = args
    if args and isinstance(args[0], torch.Tensor):
        other, rest = args[0], args[1:]
    elif args and isinstance(args[0], str | torch.device | int) and not isinstance(args[0], bool):
        device, rest = args[0], args[1:]
    elif args and args[0] is None:
        rest = args[1:]
    if other is not None:
        named.setdefault("dtype", other.dtype)
        device = other.device
    return device, rest, named
