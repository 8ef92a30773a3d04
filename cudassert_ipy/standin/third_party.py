"""Recognize CUDA code that is not torch's own, which no CPU can run, and name it."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.standin.unsupported import NeedsDeviceError, needs_device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches

_PACKAGES = frozenset(
    (
        *("triton", "bitsandbytes", "flash_attn", "flash_attn_2_cuda", "flash_attn_interface"),
        *("xformers", "apex", "transformer_engine", "vllm", "flashinfer", "sageattention"),
        *("mamba_ssm", "causal_conv1d", "fla", "liger_kernel", "selective_scan_cuda"),
        *("cupy", "numba", "pycuda", "warp", "tinycudann", "nvdiffrast", "spconv"),
        *("MinkowskiEngine", "torchsparse", "awq_ext", "exllamav2", "auto_gptq", "deepspeed"),
    )
)
"""Packages (import names) whose operations are CUDA or Triton kernels."""
_KERNEL_ERRORS = (RuntimeError, ValueError, OSError, AttributeError, AssertionError)
_WANTS_CUDA = re.compile(
    r"must be (?:on )?(?:an? )?(?:cuda|gpu)\b|\.is_cuda\b|to be (?:an? )?cuda tensor"
    r"|expected (?:an? )?cuda tensor|not (?:an? )?cuda tensor|only supports? cuda"
    r"|cuda driver|cudaError|CUDA error|CUDA_HOME|forked subprocess|no cuda gpus"
    r"|cpu tensor\?",
    re.IGNORECASE,
)
"""What extensions say of a CPU tensor (their usual CHECK_CUDA macro), and CUDA without a device."""
_OURS = ("torch", "cudassert_ipy")


def install_third_party(context: Context, patches: Patches) -> None:
    """Stop Triton kernels before they are given CPU addresses, and DistributedDataParallel."""
    triton = sys.modules.get("triton.runtime.jit")
    if hasattr(triton, "JITFunction"):

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
            name = getattr(self, "__name__", None) or getattr(self.fn, "__name__", "?")
            raise needs_device(context, messages.STANDIN_TRITON.format(name=name))

        patches.set(triton.JITFunction, "run", run)  # type: ignore[union-attr]
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is not None:

        def init(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001
            raise needs_device(context, "DistributedDataParallel")

        patches.set(parallel.DistributedDataParallel, "__init__", init)


def custom_cuda(failure: BaseException) -> str | None:
    """Return the sentence that names the custom CUDA code in which ``failure`` arose, or None."""
    if isinstance(failure, NeedsDeviceError):
        return str(failure)
    if not isinstance(failure, _KERNEL_ERRORS):
        return None
    frames = list(_frames(failure.__traceback__))
    outside = [(frame, name) for frame, name in frames if name.partition(".")[0] not in _OURS]
    what = None
    if outside and outside[-1][1].partition(".")[0] in _PACKAGES:
        package = outside[-1][1].partition(".")[0]
        first = next(frame for frame, name in outside if name.partition(".")[0] == package)
        what = f"{package} ({first.tb_frame.f_code.co_name})"
        what = messages.STANDIN_PACKAGE.format(name=what)
    elif any(name == "torch.utils.cpp_extension" for _, name in frames):
        what = messages.STANDIN_PACKAGE.format(name="torch.utils.cpp_extension")
    elif frames and _WANTS_CUDA.search(_text(failure)) is not None:
        frame, name = frames[-1]
        if name.partition(".")[0] in _OURS:
            return None
        called = _called(frame)
        what = (
            messages.STANDIN_EXTENSION.format(name=called) if called else messages.STANDIN_UNNAMED
        )
    return None if what is None else messages.STANDIN_CANNOT_RUN.format(what=what)


def _frames(traceback: TracebackType | None) -> Iterator[tuple[TracebackType, str]]:
    while traceback is not None:
        yield traceback, str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next


def _text(failure: BaseException) -> str:
    try:
        return str(failure)
    except Exception:  # a user's exception class may do anything in its __str__
        return ""


def _called(traceback: TracebackType) -> str | None:
    """Return the function of the call that a frame stands at, as it is written there."""
    code = traceback.tb_frame.f_code
    positions = list(code.co_positions())[traceback.tb_lasti // 2]
    line, end_line, column, end_column = positions
    if line is None or line != end_line or column is None:
        return None
    source = linecache.getline(code.co_filename, line).encode()[column:end_column].decode()
    try:
        call = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return ast.unparse(call.func)[:80] if isinstance(call, ast.Call) else None
