"""Check operands before their kernels are launched, so that a bad one is a Python exception."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cudassert_ipy.checks.inspect import Inspector
from cudassert_ipy.checks.operators import function_table, table
from cudassert_ipy.checks.own_frames import spare_own_frames
from cudassert_ipy.checks.traceback import trim_traceback
from cudassert_ipy.checks.wording import operand_error
from cudassert_ipy.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudassert_ipy.checks.operators import Operator
    from cudassert_ipy.model import Finding, TensorRow


_MAX_FINDINGS = 6


class Guard(TorchDispatchMode):
    """The torch mode behind :func:`guard`; guards may be nested.

    Compiled functions run eagerly while it is on. It covers the thread that enters it. Operations
    that are being captured into a CUDA graph are not checked: a check must wait for the device.
    ``CUDASSERT_DISABLE=1`` in the environment turns it off.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_off = os.environ.get("CUDASSERT_DISABLE") == "1"
        self._operators = table()
        self._inspector = Inspector()
        self._findings: dict[Any, Finding] = {}
        self._is_spared = spare_own_frames()
        self._functions = _FunctionMode(self._check)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch (seen in 2.9 to 2.14) imports torch._dynamo at the first operation: a second.
        # It need not protect this method: while a dispatch mode is on, nothing is compiled.
        return False

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The operands that were checked, one row per call in the source (bounded)."""
        return self._inspector.rows

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was raised, the first of each place (bounded): the user's code may catch it."""
        return tuple(self._findings.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._is_spared:
            self._is_spared = spare_own_frames()
        operator = self._operators.get(func)
        if operator is not None:
            self._check(operator, args, kwargs)
        return func(*args, **kwargs)

    def __enter__(self) -> Self:
        if not self._is_off:
            super().__enter__()
            self._functions.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._is_off:
            return
        self._functions.__exit__(kind, error, traceback)
        super().__exit__(kind, error, traceback)
        if isinstance(error, OperandError):
            trim_traceback(error)

    def _check(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and first.is_cuda and _is_capturing():
            return
        _, findings = self._inspector.inspect(operator, args, kwargs)
        if findings:
            self._note(findings[0])
            raise operand_error(findings[0])

    def _note(self, finding: Finding) -> None:
        lines = tuple((frame.file, frame.line) for frame in finding.frames)
        place = (lines, finding.operation, finding.operand)
        if len(self._findings) < _MAX_FINDINGS:
            self._findings.setdefault(place, finding)


class _FunctionMode(TorchFunctionMode):
    """Sees the functions that change their operand before any operation has it."""

    def __init__(self, check: Callable[[Operator, tuple[Any, ...], dict[str, Any]], None]) -> None:
        super().__init__()
        self._check = check
        self._operators = function_table()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        operator = self._operators.get(func)
        if operator is not None:
            self._check(operator, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def guard() -> Guard:
    """Return a context manager that checks operands before their kernels are launched.

    Within ``with cudassert_ipy.guard():`` an index, target or the like that the CUDA kernel would
    assert on, or go wrong with in silence, raises :class:`~cudassert_ipy.OperandError`, with the
    same finding, on CUDA and on CPU tensors; the CUDA context stays alive. Each checked operand
    costs one pass over its values and one wait for the device. ``guard().rows`` lists what was
    checked.
    """
    return Guard()


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
