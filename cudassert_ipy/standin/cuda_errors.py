"""The errors that torch raises for CUDA, with the text of the installed version.

Texts were read from the wheels of torch 2.6 to 2.15 (c10/cuda/CUDAException.cpp and
c10/cuda/CUDAMiscFunctions.cpp); the strings of the codes from ``cudaGetErrorString``.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch

ASSERT = 710
"""``cudaErrorAssert`` (CUDA runtime API, driver_types.h)."""
INVALID_ORDINAL = 101
"""``cudaErrorInvalidDevice``."""

_NAMES = {
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    710: ("cudaErrorAssert", "device-side assert triggered"),
}
_ASYNCHRONOUS = frozenset({700, 710, 715, 716, 719})
_SEARCH = (
    "Search for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
    "group__CUDART__TYPES.html for more information."
)
_ASYNC_HINT = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
_ORDINAL_HINT = "GPU device may be out of range, do you have enough GPUs?"
_DSA_HINT = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
_LOG_HINT = "For more detailed error information, run with CUDA_LOG_FILE=stderr"


def accelerator_error(code: int, *, blocking: bool = False) -> RuntimeError:
    """Return ``torch.AcceleratorError`` (``RuntimeError`` before 2.8) for a CUDA error code."""
    kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
    error: RuntimeError = kind(error_text(code, torch_version(), blocking=blocking))
    error.error_code = code  # type: ignore[attr-defined]
    return error


def error_text(code: int, version: tuple[int, int], *, blocking: bool) -> str:
    """Return the message that this version of torch builds for ``code``, without C++ frames."""
    name, text = _NAMES[code]
    lines = [f"CUDA error: {text}"]
    if version >= (2, 9):
        lines.append(_ORDINAL_HINT if code == INVALID_ORDINAL else _SEARCH.format(name=name))
    asynchronous = version < (2, 13) or code in _ASYNCHRONOUS
    if asynchronous and not blocking:
        lines.append(_ASYNC_HINT)
    if version < (2, 13):
        lines.append(_DSA_HINT)
    elif version < (2, 14) and not asynchronous:
        lines.append(_LOG_HINT)
    return "\n".join(lines) + "\n"


def out_of_memory(size: int, total: int, used: int, index: int) -> Exception:
    """Return ``torch.OutOfMemoryError`` in the words of CUDACachingAllocator.cpp."""
    text = (
        f"CUDA out of memory. Tried to allocate {_amount(size)}. GPU {index} has a total capacity "
        f"of {_amount(total)} of which {_amount(total - used)} is free. Process {os.getpid()} has "
        f"{_amount(used)} memory in use. Of the allocated memory {_amount(used)} is allocated by "
        "PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
    return torch.OutOfMemoryError(text)


def different_devices(func: Any, argument: str, index: int) -> RuntimeError:
    """Return torch's error for a CPU ``argument`` of an operation on device ``index``.

    Two texts: of aten/src/ATen/TensorIterator.cpp for element-wise operations, and of the device
    check that torch generates for the others (reworded in 2.9).
    """
    if torch.Tag.pointwise in func.tags:
        detail = f"but found at least two devices, cuda:{index} and cpu!"
    else:
        name = func._schema.name.partition("::")[2]
        if name == "embedding":
            name, argument = "index_select", "index"  # what it calls on CUDA
        method = f"wrapper_CUDA_{'' if name in _STRUCTURED else '_'}{name}"
        if func._schema.overload_name:
            method += f"_{func._schema.overload_name}"
        if torch_version() >= (2, 9):
            detail = (
                f"but got {argument} is on cpu, different from other tensors on cuda:{index} "
                f"(when checking argument in method {method})"
            )
        else:
            detail = (
                f"but found at least two devices, cpu and cuda:{index}! "
                f"(when checking argument for argument {argument} in method {method})"
            )
    return RuntimeError(f"Expected all tensors to be on the same device, {detail}")


def two_devices(one: int, other: int) -> RuntimeError:
    """Return torch's error for operands on two devices (aten/src/ATen/TensorIterator.cpp)."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"cuda:{one} and cuda:{other}!"
    )


_STRUCTURED = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "cat", "gather", "scatter", "index_add", "nll_loss_forward")
)


def torch_version() -> tuple[int, int]:
    """Return major and minor version of the installed torch."""
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return (int(match[1]), int(match[2])) if match else (2, 13)


def _amount(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"
