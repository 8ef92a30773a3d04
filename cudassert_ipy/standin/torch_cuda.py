"""The table of names in ``torch.cuda``, ``torch.accelerator`` and around that are replaced.

Names that this version of torch does not have are left out. Every name gets a function object of
its own: torch._dynamo refuses one object under two names, and plain ``Adam.step`` loads it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages
from cudassert_ipy.standin.context import index_of_any
from cudassert_ipy.standin.streams import generator_class, stream_classes
from cudassert_ipy.standin.tags import tag_of_storage, tag_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches

CAPABILITY = (9, 0)
_SERIALIZATION_PRIORITY = 5
"""Before torch's own handlers for ``cuda`` (20), after none."""


def install_torch_cuda(
    context: Context, patches: Patches, enter_modes: Callable[[], Any], function_mode: Any
) -> None:
    """Replace the names; ``enter_modes`` gives a context manager for new threads."""
    for name, value in _cuda(context).items():
        patches.replace(torch.cuda, name, value)
    _install_streams(context, patches)
    for name, value in _accelerator(context).items():
        if hasattr(torch, "accelerator"):
            patches.replace(torch.accelerator, name, value)
    _install_memory(context, patches)
    _install_random(context, patches)
    _install_surroundings(context, patches, function_mode)
    _install_autograd(context, patches, function_mode)
    _install_threads(patches, enter_modes)
    _install_serialization(context, patches)


def _cuda(context: Context) -> dict[str, Any]:
    def ordinal(device: Any) -> int:
        if device is None:
            return context.current_index
        index = context.index_of(device)
        if index is None:
            msg = f"Expected a cuda device, but got: {device}"
            raise ValueError(msg)
        return index

    def set_device(device: Any) -> None:
        index = ordinal(device)
        context.use()
        context.current_index = index

    def synchronize(device: Any = None) -> None:
        ordinal(device)
        context.initialized = True
        context.policy.synchronize()

    def get_device_name(device: Any = None) -> str:
        ordinal(device)
        return messages.SIMULATED_NAME

    def get_device_properties(device: Any = None) -> Any:
        return DeviceProperties(ordinal(device), _total(context))

    class device:  # noqa: N801
        """Context manager that changes the current device."""

        def __init__(self, device: Any) -> None:
            self.idx = ordinal(device) if not isinstance(device, int) or device >= 0 else -1

        def __enter__(self) -> None:
            self.prev_idx = context.current_index
            if self.idx >= 0:
                context.current_index = self.idx

        def __exit__(self, *exception: object) -> None:
            context.current_index = self.prev_idx

    def init() -> None:
        context.initialized = True

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: context.initialized,
        "_is_in_bad_fork": lambda: False,
        "init": init,
        "_lazy_init": _own(init),
        "_lazy_call": lambda callable, **_: callable(),  # noqa: A006
        "device_count": lambda: context.policy.device_count,
        "current_device": lambda: context.current_index,
        "set_device": set_device,
        "synchronize": synchronize,
        "get_device_name": get_device_name,
        "get_device_properties": get_device_properties,
        "get_device_capability": lambda device=None: (ordinal(device), CAPABILITY)[1],
        "device": device,
        "can_device_access_peer": lambda device, peer: ordinal(device) != ordinal(peer),
        "is_bf16_supported": lambda including_emulation=True: True,  # noqa: ARG005
        "is_tf32_supported": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "get_arch_list": lambda: ["sm_90"],
        "ipc_collect": lambda: None,
        "set_sync_debug_mode": lambda debug_mode: None,  # noqa: ARG005
        "get_sync_debug_mode": lambda: 0,
    }


def _install_streams(context: Context, patches: Patches) -> None:
    stream_kind, event_kind = stream_classes(context)
    names = {
        "Stream": stream_kind,
        "Event": event_kind,
        "stream": lambda stream: stream,
        "set_stream": lambda stream: None,  # noqa: ARG005
        "current_stream": lambda device=None: stream_kind(device),
        "default_stream": lambda device=None: stream_kind(device),
    }
    for name, value in names.items():
        patches.replace(torch.cuda, name, value)
    for name in ("Stream", "Event"):
        patches.replace(torch.cuda.streams, name, names[name])
    if hasattr(torch, "accelerator"):
        patches.replace(
            torch.accelerator, "current_stream", lambda device=None: stream_kind(device)
        )
        patches.replace(torch.accelerator, "set_stream", lambda stream: None)  # noqa: ARG005


def _accelerator(context: Context) -> dict[str, Any]:
    def synchronize(device: Any = None) -> None:  # noqa: ARG001
        context.initialized = True
        context.policy.synchronize()

    def set_device_index(device: Any) -> None:
        context.current_index = context.index_of(device) or 0

    return {
        "is_available": lambda: True,
        "device_count": lambda: context.policy.device_count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),  # noqa: ARG005
        "current_device_index": lambda: context.current_index,
        "current_device_idx": lambda: context.current_index,
        "set_device_index": set_device_index,
        "set_device_idx": _own(set_device_index),
        "synchronize": synchronize,
    }


def _install_memory(context: Context, patches: Patches) -> None:
    def used(device: Any = None) -> int:  # noqa: ARG001
        return getattr(context.policy, "used_bytes", 0)

    def peak(device: Any = None) -> int:  # noqa: ARG001
        return getattr(context.policy, "peak_bytes", 0)

    def mem_get_info(device: Any = None) -> tuple[int, int]:  # noqa: ARG001
        context.use()
        return _total(context) - used(), _total(context)

    def empty_cache() -> None:
        if context.initialized:
            context.policy.unreadable()

    def reset(device: Any = None) -> None:  # noqa: ARG001
        if hasattr(context.policy, "peak_bytes"):
            context.policy.peak_bytes = used()

    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:  # noqa: ARG001
        return f"{messages.SIMULATED_NAME}: {used()} of {_total(context)} bytes"

    def stats(device: Any = None) -> dict[str, int]:  # noqa: ARG001
        return {"allocated_bytes.all.current": used(), "allocated_bytes.all.peak": peak()}

    cuda: dict[str, Callable[..., Any]] = {
        "memory_allocated": used,
        "memory_reserved": used,
        "memory_cached": used,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "max_memory_cached": peak,
        "mem_get_info": mem_get_info,
        "empty_cache": empty_cache,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_accumulated_memory_stats": reset,
        "memory_summary": memory_summary,
        "memory_stats": stats,
        "device_memory_used": used,
    }
    for name, function in cuda.items():
        replacement = _own(function)
        patches.replace(torch.cuda, name, replacement)
        patches.replace(torch.cuda.memory, name, replacement)
    for name, function in {**cuda, "get_memory_info": mem_get_info}.items():
        if hasattr(torch, "accelerator") and name in vars(torch.accelerator):
            patches.replace(torch.accelerator, name, _own(function))


def _install_random(context: Context, patches: Patches) -> None:
    """Draw from the CPU's default generator, so that seeding works as on the CPU."""
    get_state, set_state = torch.get_rng_state, torch.set_rng_state
    generator = torch.default_generator

    def manual_seed(seed: int) -> None:
        generator.manual_seed(int(seed))

    def get_rng_state(device: Any = "cuda") -> Any:  # noqa: ARG001
        context.use()
        return get_state()

    def set_rng_state(new_state: Any, device: Any = "cuda") -> None:  # noqa: ARG001
        context.use()
        set_state(new_state)

    names = {
        "manual_seed": manual_seed,
        "manual_seed_all": _own(manual_seed),
        "seed": lambda: generator.seed() and None,
        "seed_all": lambda: generator.seed() and None,
        "initial_seed": _own(generator.initial_seed),
        "get_rng_state": get_rng_state,
        "get_rng_state_all": lambda: [get_rng_state() for _ in range(context.policy.device_count)],
        "set_rng_state": set_rng_state,
        "set_rng_state_all": lambda new_states: set_rng_state(next(iter(new_states))),
    }
    for name, value in names.items():
        patches.replace(torch.cuda, name, value)
        patches.replace(torch.cuda.random, name, value)
    patches.set(torch, "Generator", generator_class(context))


def _install_surroundings(context: Context, patches: Patches, function_mode: Any) -> None:
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


def _install_autograd(context: Context, patches: Patches, function_mode: Any) -> None:
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


def _install_threads(patches: Patches, enter_modes: Callable[[], Any]) -> None:
    """Modes belong to one thread: threads that start from now on enter them as well."""
    original = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with enter_modes():
            original(self)

    patches.set(threading.Thread, "run", run)


def _install_serialization(context: Context, patches: Patches) -> None:
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


def _total(context: Context) -> int:
    return getattr(context.policy, "total_bytes", 16 * 2**30)


class DeviceProperties:
    """What ``torch.cuda.get_device_properties`` returns."""

    def __init__(self, index: int, total: int) -> None:
        self.name = messages.SIMULATED_NAME
        self.major, self.minor = CAPABILITY
        self.total_memory = total
        self.multi_processor_count = 1
        self.max_threads_per_multi_processor = 2048
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 48 * 1024
        self.L2_cache_size = 0
        self.is_integrated = self.is_multi_gpu_board = 0
        self.gcnArchName = ""
        self.uuid = f"simulated-{index}"

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count=1)"
        )


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function object of its own for one more name."""
    return lambda *args, **kwargs: function(*args, **kwargs)  # noqa: PLW0108  not the same object
