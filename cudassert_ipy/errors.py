"""Exceptions that users may meet. Standard library only, so that importing them costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding


class CudassertError(RuntimeError):
    """Something this tool was asked to do cannot be done; the message says why and what to try."""


class OperandError(IndexError, ValueError):
    """An operand holds values that the CUDA kernel of its operation would assert on.

    Raised by the guard and by the replay *before* the kernel is launched, so that the CUDA context
    stays alive. It is an ``IndexError`` because CPU torch raises that for most such operands, and a
    ``ValueError`` because probabilities and counts are checked as well.

    Attributes:
        finding: what is wrong, as data.

    """

    finding: Finding

    def __init__(self, message: str, finding: Finding) -> None:
        super().__init__(message)
        self.finding = finding

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.finding))


# Tracebacks read `cudassert_ipy.OperandError`, the name under which users import it.
OperandError.__module__ = "cudassert_ipy"
CudassertError.__module__ = "cudassert_ipy"


class CheckpointRefused(CudassertError):  # noqa: N818 - a reason, not a fault
    """No checkpoint can be taken now; the message says why."""
