"""The table of names in ``torch.cuda``, ``torch.accelerator`` and around that are replaced.

Names that this version of torch does not have are left out. Every name gets a function object of
its own: torch._dynamo refuses one object under two names, and plain ``Adam.step`` loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages
from cudassert_ipy.standin.streams import generator_class, stream_classes
from cudassert_ipy.standin.torch_around import (
    install_autograd,
    install_serialization,
    install_surroundings,
    install_threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches

CAPABILITY = (9, 0)


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
    install_surroundings(context, patches, function_mode)
    install_autograd(context, patches, function_mode)
    install_threads(patches, enter_modes)
    install_serialization(context, patches)


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
    # nn.DataParallel makes and keeps its own streams.
    data_parallel = torch.nn.parallel._functions
    patches.replace(data_parallel, "_get_stream", _own(stream_kind))
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

    class device_index:  # noqa: N801
        """Context manager that changes the current device; None changes nothing."""

        def __init__(self, device: int | None) -> None:
            self.idx = device

        def __enter__(self) -> None:
            self.prev_idx = context.current_index
            if self.idx is not None:
                context.current_index = self.idx

        def __exit__(self, *exception: object) -> None:
            context.current_index = self.prev_idx

    return {
        "device_index": device_index,
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
