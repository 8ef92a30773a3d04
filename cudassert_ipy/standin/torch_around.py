"""Names around ``torch.cuda`` that are replaced: autograd, optimizers, threads, files, autocast."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.standin.context import index_of_any
from cudassert_ipy.standin.tags import tag_of_storage, tag_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches

CUDNN_VERSION = 91002
"""What ``torch.backends.cudnn.version()`` says where there is none: 9.10.2."""
_PACKAGE = __name__.partition(".")[0]
_SERIALIZATION_PRIORITY = 5
"""Before torch's own handlers for ``cuda`` (20), after none."""


def install_surroundings(context: Context, patches: Patches) -> None:
    """CuDNN and the grouping of tensors by device in optimizers."""
    patches.replace(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # noqa: ARG005
    if not torch.backends.cudnn.is_available():
        patches.replace(torch.backends.cudnn, "is_available", lambda: True)
        patches.replace(torch.backends.cudnn, "version", lambda: CUDNN_VERSION)
    patches.replace(torch.backends.cuda, "is_built", lambda: True)
    original_has = torch.overrides.has_torch_function

    def has_torch_function(arguments: Any) -> bool:
        # The fast paths of nn.TransformerEncoderLayer and nn.MultiheadAttention ask this. Our modes
        # are no reason to leave them: results would differ from the CPU's in the last bits.
        modes = torch.overrides._get_current_function_mode_stack()
        if any(type(mode).__module__.partition(".")[0] != _PACKAGE for mode in modes):
            return bool(original_has(arguments))
        kinds = {type(item) for item in arguments if item is not None}
        plain = (torch.Tensor, torch.nn.Parameter)
        return any(k not in plain and hasattr(k, "__torch_function__") for k in kinds)

    patches.replace(torch.overrides, "has_torch_function", has_torch_function)
    original_module = torch.get_device_module

    def get_device_module(device: Any = None) -> Any:
        if device is None or torch.device(device).type == "cuda":
            return torch.cuda
        return original_module(device)

    patches.replace(torch, "get_device_module", get_device_module)
    original_group = torch._C._group_tensors_by_device_and_dtype

    def group(tensor_lists: Any, with_indices: bool = False) -> Any:
        groups = original_group(tensor_lists, with_indices)
        if not context.active:
            return groups
        named = {}
        for (device, dtype), content in groups.items():
            index = index_of_any(tuple(content[0]))
            key = device if index is None else torch.device("cuda", index)
            named[key, dtype] = content
        return named

    patches.replace(torch._C, "_group_tensors_by_device_and_dtype", group)

    original_parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        """Understand ``Module.to(tensor)``."""
        device, *rest = original_parse(*args, **kwargs)
        index = index_of_any((*args, *kwargs.values()))
        return (device if index is None else torch.device("cuda", index), *rest)

    patches.replace(torch._C._nn, "_parse_to", parse_to)

    def scatter(tensor: Any, devices: Any, chunk_sizes: Any, dim: int, _streams: Any) -> list[Any]:
        """Deal a batch out to devices, for nn.DataParallel."""
        parts = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
        return [part.to(torch.device("cuda", d)) for part, d in zip(parts, devices, strict=False)]

    def broadcast(tensors: Any, devices: Any, _buffer_size: int) -> list[list[Any]]:
        return [[t.to(torch.device("cuda", device)) for t in tensors] for device in devices]

    def gather(tensors: Any, dim: int, destination: int | None) -> Any:
        index = context.current_index if destination is None else destination
        return torch.cat([t.to("cpu" if index < 0 else f"cuda:{index}") for t in tensors], dim)

    patches.set(torch._C, "_scatter", scatter)
    patches.set(torch._C, "_broadcast_coalesced", broadcast)
    patches.set(torch._C, "_gather", gather)
    patches.replace(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    patches.replace(torch.cuda.nccl, "is_available", lambda tensors: False)  # noqa: ARG005


def install_autograd(context: Context, patches: Patches, function_mode: Any) -> None:
    """``backward`` runs hooks and custom functions of the user: they need the function mode."""
    original = torch.autograd.graph._engine_run_backward

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        thread = context.thread
        before = (thread.call, thread.inside)
        thread.call, thread.inside = tuple(outputs), False
        try:
            with function_mode(context):
                return original(outputs, *args, **kwargs)
        finally:
            thread.call, thread.inside = before

    patches.replace(torch.autograd.graph, "_engine_run_backward", run)
    patches.replace(torch.autograd, "_engine_run_backward", run)


def install_threads(patches: Patches, enter_modes: Callable[[], Any]) -> None:
    """Modes belong to one thread: threads that start from now on enter them as well."""
    original = threading.Thread.start

    def start(self: threading.Thread) -> None:
        inner = self.run  # the method of a subclass as well

        def run() -> None:
            try:
                with enter_modes():
                    inner()
            finally:
                del self.run  # else thread and function keep each other alive

        self.run = run  # type: ignore[method-assign]
        original(self)

    patches.set(threading.Thread, "start", start)


def install_serialization(context: Context, patches: Patches) -> None:
    """``torch.save`` notes the device, ``torch.load`` and ``map_location`` go by it."""
    from torch import serialization

    def tagger(storage: Any) -> str | None:
        found = tag_of_storage(storage)
        if found is None or found.device_index is None:
            return None
        context.policy.synchronize()
        return f"cuda:{found.device_index}"

    def load(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        index = context.index_of(location)
        context.use()
        plain = getattr(storage, "_untyped_storage", storage)
        tag_storage(plain, None)
        context.place(_alias(plain), index, substitute=False)
        return storage

    entry = (_SERIALIZATION_PRIORITY, tagger, load)
    registry = [entry, *serialization._package_registry]
    patches.set(serialization, "_package_registry", registry)


def _alias(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)
