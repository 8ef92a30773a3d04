"""What ``torch.cuda`` says of memory and load of the stand-in device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages
from cudassert_ipy.standin.patches import own

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches

_NO_SENSOR = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
"""Questions to NVML; the answer is 0."""


def install_memory_names(context: Context, patches: Patches) -> None:
    """Replace the memory functions of ``torch.cuda`` and ``torch.accelerator``."""

    def used(device: Any = None) -> int:  # noqa: ARG001
        return getattr(context.policy, "used_bytes", 0)

    def peak(device: Any = None) -> int:  # noqa: ARG001
        return getattr(context.policy, "peak_bytes", 0)

    def mem_get_info(device: Any = None) -> tuple[int, int]:  # noqa: ARG001
        context.use()
        return total_bytes(context) - used(), total_bytes(context)

    def empty_cache() -> None:
        if context.initialized:
            context.policy.unreadable()

    def reset(device: Any = None) -> None:  # noqa: ARG001
        if hasattr(context.policy, "peak_bytes"):
            context.policy.peak_bytes = used()

    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:  # noqa: ARG001
        return f"{messages.SIMULATED_NAME}: {used()} of {total_bytes(context)} bytes"

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
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": reset,
        "memory_summary": memory_summary,
        "memory_stats": stats,
        "memory_stats_as_nested_dict": lambda device=None: {},  # noqa: ARG005
        "device_memory_used": used,
        "memory_snapshot": lambda mempool_id=None: [],  # noqa: ARG005
        "set_per_process_memory_fraction": lambda fraction, device=None: None,  # noqa: ARG005
        "get_per_process_memory_fraction": lambda device=None: 1.0,  # noqa: ARG005
        "list_gpu_processes": lambda device=None: "no processes are running",  # noqa: ARG005
        "get_allocator_backend": lambda: "native",
        "host_memory_stats": dict,
        "_record_memory_history": lambda *args, **kwargs: None,  # noqa: ARG005
        "_snapshot": lambda device=None: {"segments": [], "device_traces": []},  # noqa: ARG005
        "_dump_snapshot": lambda filename="dump_snapshot.pickle": None,  # noqa: ARG005
    }
    cuda |= dict.fromkeys(_NO_SENSOR, lambda device=None: 0)  # noqa: ARG005
    for name, function in cuda.items():
        for owner in (torch.cuda, torch.cuda.memory):
            patches.replace(owner, name, own(function))
    for name, function in {**cuda, "get_memory_info": mem_get_info}.items():
        if hasattr(torch, "accelerator") and name in vars(torch.accelerator):
            patches.replace(torch.accelerator, name, own(function))


def total_bytes(context: Context) -> int:
    """Return the size of the device's memory."""
    return getattr(context.policy, "total_bytes", 16 * 2**30)
