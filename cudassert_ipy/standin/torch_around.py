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

_SERIALIZATION_PRIORITY = 5
"""Before torch's own handlers for ``cuda`` (20), after none."""


def install_surroundings(context: Context, patches: Patches, function_mode: Any) -> None:
    """Autocast, cuDNN and the grouping of tensors by device in optimizers."""
    original_init = torch.amp.autocast_mode.autocast.__init__

    def autocast_init(
        self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda" and context.active:
            device_type = "cpu"
            dtype = torch.float16 if dtype is None else dtype
        original_init(self, device_type, dtype, *args, **kwargs)

    patches.set(torch.amp.autocast_mode.autocast, "__init__", autocast_init)
    patches.replace(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # noqa: ARG005
    patches.replace(torch.backends.cuda, "is_built", lambda: True)
    original_has = torch.overrides.has_torch_function

    def has_torch_function(arguments: Any) -> bool:
        # The fast paths of nn.TransformerEncoderLayer and nn.MultiheadAttention ask this. Our mode
        # is no reason to leave them: results would differ from the CPU's in the last bits.
        modes = torch.overrides._get_current_function_mode_stack()
        if any(not isinstance(mode, function_mode) for mode in modes):
            return bool(original_has(arguments))
        kinds = {type(item) for item in arguments if item is not None}
        plain = (torch.Tensor, torch.nn.Parameter)
        return any(k not in plain and hasattr(k, "__torch_function__") for k in kinds)

    patches.replace(torch.overrides, "has_torch_function", has_torch_function)
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

    patches.set(torch._C, "_scatter", scatter)


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
    original = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with enter_modes():
            original(self)

    patches.set(threading.Thread, "run", run)


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
