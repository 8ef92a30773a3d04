"""Whose code an error or an assertion is from, as far as its own text shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cudassert_ipy.model import Assertion

_PYTORCH = re.compile(r"(?:^|/)(?:aten|c10|caffe2|pytorch|torch|THC|THCUNN)/", re.IGNORECASE)
# Inductor names a file by a hash of 51 characters or so: /tmp/torchinductor_ann/ck/ck46....py
_COMPILED = re.compile(r"(?:^|/)torchinductor_|(?:^|/)c[a-z2-7]{50,60}\.py$")
_LIBRARIES = (
    (re.compile(r"cublas|hipblas", re.IGNORECASE), "cuBLAS", "hipBLAS"),
    (re.compile(r"cudnn", re.IGNORECASE), "cuDNN", "cuDNN"),
    (re.compile(r"nccl|rccl|unhandled cuda error", re.IGNORECASE), "NCCL", "RCCL"),
    (re.compile(r"cusparse|hipsparse", re.IGNORECASE), "cuSPARSE", "hipSPARSE"),
    (re.compile(r"cusolver|hipsolver", re.IGNORECASE), "cuSOLVER", "hipSOLVER"),
    (re.compile(r"cufft|hipfft", re.IGNORECASE), "cuFFT", "hipFFT"),
    (re.compile(r"curand|MTGP", re.IGNORECASE), "cuRAND", "hipRAND"),
    (re.compile(r"miopen", re.IGNORECASE), "MIOpen", "MIOpen"),
    (re.compile(r"rocblas", re.IGNORECASE), "rocBLAS", "rocBLAS"),
)


def author(assertion: Assertion) -> Literal["torch", "compiled", "other", "unknown"]:
    """Return who wrote the kernel of an assertion; ``compiled``: torch.compile did.

    ``unknown`` where no directory was printed and the catalogue does not know it.
    """
    path = assertion.file.replace("\\", "/")
    if _COMPILED.search(path):
        return "compiled"
    if assertion.known or _PYTORCH.search(path):
        return "torch"
    return "other" if "/" in path else "unknown"


def library(message: str) -> str:
    """Return the library that an error's message names; empty for none."""
    for words, name, name_on_amd in _LIBRARIES:
        match = words.search(message)
        if match:
            return name_on_amd if match[0].lower().startswith(("hip", "rccl")) else name
    return ""
