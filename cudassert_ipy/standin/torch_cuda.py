"""The table of names in ``torch.cuda``, ``torch.accelerator`` and around that are replaced.

Names that this version of torch does not have are left out. Every name gets a function object of
its own: torch._dynamo refuses one object under two names, and plain ``Adam.step`` loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages
from cudassert_ipy.standin.autocast import install_autocast
from cudassert_ipy.standin.compiled_code import install_compiled_code
from cudassert_ipy.standin.exchange import install_exchange
from cudassert_ipy.standin.legacy_types import install_legacy_types
from cudassert_ipy.standin.memory_names import install_memory_names, total_bytes
from cudassert_ipy.standin.patches import own
from cudassert_ipy.standin.random_state import install_random_state
from cudassert_ipy.standin.streams import install_streams
from cudassert_ipy.standin.third_party import install_third_party
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
    for name in ("cudart", "check_error"):
        patches.replace(torch.cuda.profiler, name, getattr(torch.cuda, name))
    install_streams(context, patches)
    for name, value in _accelerator(context).items():
        if hasattr(torch, "accelerator"):
            patches.replace(torch.accelerator, name, value)
    install_memory_names(context, patches)
    install_random_state(context, patches)
    install_legacy_types(context, patches)
    install_autocast(context, patches)
    install_compiled_code(context, patches)
    install_exchange(context, patches)
    install_third_party(context, patches)
    _install_ranges(patches)
    install_surroundings(context, patches)
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
        return DeviceProperties(ordinal(device), total_bytes(context))

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

    class device_of(device):  # noqa: N801
        """Context manager that makes a tensor's device the current one."""

        def __init__(self, obj: Any) -> None:
            super().__init__(obj.get_device() if obj.is_cuda else -1)

    def init() -> None:
        context.initialized = True

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: context.initialized,
        "_is_in_bad_fork": lambda: False,
        "init": init,
        "_lazy_init": own(init),
        "_lazy_call": lambda callable, **_: callable(),  # noqa: A006
        "device_count": lambda: context.policy.device_count,
        "current_device": lambda: context.current_index,
        "set_device": set_device,
        "synchronize": synchronize,
        "get_device_name": get_device_name,
        "get_device_properties": get_device_properties,
        "get_device_capability": lambda device=None: (ordinal(device), CAPABILITY)[1],
        "device": device,
        "device_of": device_of,
        "can_device_access_peer": lambda device, peer: ordinal(device) != ordinal(peer),
        "is_bf16_supported": lambda including_emulation=True: True,  # noqa: ARG005
        "is_tf32_supported": lambda: True,
        "get_arch_list": lambda: ["sm_90"],
        "cudart": _RuntimeLibrary,
        "check_error": lambda res: None,  # noqa: ARG005
        "get_gencode_flags": lambda: "-gencode compute=compute_90,code=sm_90",
        "ipc_collect": lambda: None,
        "set_sync_debug_mode": lambda debug_mode: None,  # noqa: ARG005
        "get_sync_debug_mode": lambda: 0,
    }


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
        "set_device_idx": own(set_device_index),
        "synchronize": synchronize,
    }


class _RuntimeLibrary:
    """Every call into the CUDA runtime library succeeds, and does nothing."""

    class cudaError:  # noqa: N801
        """Its result codes."""

        success = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *args: 0  # noqa: ARG005


def _install_ranges(patches: Patches) -> None:
    """Ranges and marks for NVIDIA's profilers, which nobody records."""
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.replace(torch.cuda.nvtx, name, lambda *args, **kwargs: 0)  # noqa: ARG005


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
