"""``torch.autocast("cuda")`` on the stand-in device: the CPU's autocast, asked for by another name.

The CPU's lists of operations that change precision are not CUDA's (``torch.amp`` documentation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches

_BY_DEVICE = (
    *("is_autocast_enabled", "set_autocast_enabled"),
    *("get_autocast_dtype", "set_autocast_dtype"),
)
"""They take the type of the device as their first argument; seen in torch 2.4 to 2.14."""


def install_autocast(context: Context, patches: Patches) -> None:
    """Replace the constructor of autocast and the questions about it."""
    original_init = torch.amp.autocast_mode.autocast.__init__

    def autocast_init(
        self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda" and context.active:
            device_type = "cpu"
            dtype = torch.float16 if dtype is None else dtype
        original_init(self, device_type, dtype, *args, **kwargs)

    patches.set(torch.amp.autocast_mode.autocast, "__init__", autocast_init)
    for name in _BY_DEVICE:
        patches.replace(torch, name, _on_the_cpu(context, getattr(torch, name)))
    patches.replace(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cuda"))
    patches.replace(
        torch, "set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype("cuda", dtype)
    )


def _on_the_cpu(context: Context, original: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        if context.active and not kwargs and (not args or not isinstance(args[0], str)):
            args = ("cpu", *args)  # without a device it is about CUDA
        elif context.active and args and args[0] == "cuda":
            args = ("cpu", *args[1:])
        return original(*args, **kwargs)

    return ask
