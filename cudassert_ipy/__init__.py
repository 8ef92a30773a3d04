"""Explain, replay and survive CUDA device-side asserts in Jupyter and IPython.

Importing this package imports the standard library only: the extension must be able to set the
environment before torch is imported, and must cost nothing until it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from cudassert_ipy.checks.batch import BatchReport, check_batch
    from cudassert_ipy.checks.guard import guard
    from cudassert_ipy.checks.rules import Rule
    from cudassert_ipy.checks.scan import scan
    from cudassert_ipy.checks.scan_report import ScanReport
    from cudassert_ipy.decode.failure import explain
    from cudassert_ipy.errors import CudassertError, OperandError
    from cudassert_ipy.notebook.extension import last_diagnosis

__version__ = "0.1.0.dev0"

__all__ = [
    "BatchReport",
    "CudassertError",
    "OperandError",
    "Rule",
    "ScanReport",
    "__version__",
    "check_batch",
    "explain",
    "guard",
    "last_diagnosis",
    "scan",
]

_LAZY = {
    "BatchReport": "cudassert_ipy.checks.batch",
    "CudassertError": "cudassert_ipy.errors",
    "OperandError": "cudassert_ipy.errors",
    "Rule": "cudassert_ipy.checks.rules",
    "ScanReport": "cudassert_ipy.checks.scan_report",
    "check_batch": "cudassert_ipy.checks.batch",
    "explain": "cudassert_ipy.decode.failure",
    "guard": "cudassert_ipy.checks.guard",
    "last_diagnosis": "cudassert_ipy.notebook.extension",
    "scan": "cudassert_ipy.checks.scan",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Install the extension into ``shell`` (``%load_ext cudassert_ipy``)."""
    from cudassert_ipy.notebook.extension import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove everything that :func:`load_ipython_extension` installed."""
    from cudassert_ipy.notebook.extension import unload

    unload(shell)
