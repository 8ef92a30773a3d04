"""Where in the user's code an operation was called, and what the user wrote for an operand."""

from __future__ import annotations

import collections
import inspect
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy.checks.expression import find_expression, given_tensors
from cudassert_ipy.checks.frames import (
    Span,
    below_packages,
    is_library_file,
    is_user_file,
    library_frame,
    span_of,
    user_frames,
)
from cudassert_ipy.model import Frame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    from torch import Tensor

_MAX_FRAMES = 20
_MAX_DECORATORS = 3


@dataclass(frozen=True, slots=True)
class Written:
    """What the user wrote for an operand: the same values in the same order, in their shape."""

    expression: str | None
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The innermost user frame of a call and the user frames that lead to it.

    Everything is None or empty where no user frame is on the stack: a worker thread of autograd.
    """

    line: int | None = None
    column: int | None = None
    end_column: int | None = None
    source: str = ""
    frames: tuple[Frame, ...] = ()
    """From the cell inwards."""
    library: Frame | None = None
    """The innermost frame of a package that is neither the user's nor torch."""
    _frame: FrameType | None = None
    _span: Span | None = None
    _callee: FrameType | None = None

    def written_for(self, tensor: Tensor, operand: str = "") -> Written:
        """Return what the user wrote for ``tensor`` in the innermost user frame.

        Found by identity; a reshaped view of the same values counts as the tensor itself, and then
        the shape is that of the tensor that the user wrote.
        """
        shape = tuple(tensor.shape)
        if self._frame is None or self._span is None:
            return Written(None, shape)
        same = _Same(tensor)
        found = find_expression(self._frame, self._span, same, operand, self._callee)
        if found is None:
            return Written(None, shape)
        return Written(found.text, shape if found.value is None else tuple(found.value.shape))

    def given_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the innermost user frame's call was given, with their names."""
        if self._frame is not None and self._span is not None:
            yield from given_tensors(self._frame, self._span, self._callee)


def locate_call(start: FrameType | None = None) -> SourceLocation:
    """Return where the user's code is now; ``start`` is the frame to begin at (default: caller's).

    Line and columns come from ``co_positions``, so two calls on one line are told apart.
    """
    start = start or sys._getframe(1)
    stack = list(user_frames(start))
    if not stack:
        return SourceLocation()
    if len(stack) > _MAX_FRAMES:
        stack = [*stack[: _MAX_FRAMES - 1], stack[-1]]
    spans = [span_of(f.f_code, f.f_lasti, f.f_lineno) for f in stack]
    frames = tuple(_record(f, span) for f, span in zip(stack, spans, strict=True))
    library = library_frame(start)
    here = spans[0]
    return SourceLocation(
        line=here.line,
        column=here.column,
        end_column=here.end_column,
        source=here.source,
        frames=frames[::-1],
        library=None if library is None else _in_package(_record(library)),
        _frame=stack[0],
        _span=here,
        _callee=_called_by(stack[0], start),
    )


def _in_package(frame: Frame) -> Frame:
    """Return the frame with its file from the package on: where packages lie is nobody's matter."""
    return replace(frame, file=below_packages(frame.file))


def _record(frame: FrameType, span: Span | None = None) -> Frame:
    code = frame.f_code
    span = span or span_of(code, frame.f_lasti, frame.f_lineno)
    return Frame(
        function=code.co_qualname, line=span.line, source=span.source, file=code.co_filename
    )


def _called_by(caller: FrameType, start: FrameType) -> FrameType | None:
    """Return the frame that ``caller`` called, on the way to ``start``; None if it is ``start``.

    Decorators of libraries are passed by: of ``deprecated(no_grad(generate))`` the second counts.
    """
    called: collections.deque[FrameType] = collections.deque(maxlen=_MAX_DECORATORS + 1)
    frame: FrameType | None = start
    while frame is not None and frame is not caller:
        called.append(frame)
        frame = frame.f_back
    while len(called) > 1 and _hands_on(called[-1]):
        called.pop()
    return called[-1] if called else None


def _hands_on(frame: FrameType) -> bool:
    """Whether a frame is of a library's function of nothing but ``*args, **kwargs``."""
    code = frame.f_code
    takes_any = code.co_flags & inspect.CO_VARARGS and code.co_flags & inspect.CO_VARKEYWORDS
    is_plain = not (code.co_argcount or code.co_kwonlyargcount)
    return bool(takes_any) and is_plain and is_library_file(code.co_filename)


def call_site(start: FrameType | None = None) -> tuple[CodeType | int, ...] | None:
    """Return a cheap key of where the user's code is now: code objects and instructions.

    The way from the user's line to the operation is part of it: one call of a library's model looks
    up several tensors.
    """
    path: list[CodeType | int] = []
    frame = start or sys._getframe(1)
    while frame is not None:
        path += (frame.f_code, frame.f_lasti)
        if is_user_file(frame.f_code.co_filename):
            return tuple(path)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def running(function: str) -> FrameType | None:
    """Return the frame of ``torch.<module>.<name>`` if it is between the user and the kernel.

    ``function`` is a Python function of torch. Of several the innermost is returned.
    """
    module, _, name = function.rpartition(".")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_name == name and frame.f_globals.get("__name__") == module:
            return frame
        frame = frame.f_back
    return None


class _Same:
    """Whether a value is a tensor, or a reshaped view with exactly its values."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._place = _place(tensor)

    def __call__(self, value: Any) -> bool:
        import torch

        if value is self._tensor:
            return True
        # `issubclass(type(…))`: isinstance would run `__class__` of lazy proxies.
        if self._place is None or not issubclass(type(value), torch.Tensor):
            return False
        return _place(value) == self._place


def _place(tensor: Tensor) -> tuple[Any, ...] | None:
    """Return what two views with the same values in the same order have in common, or None."""
    try:
        if tensor.is_nested or not tensor.is_contiguous():
            return None
        return (
            tensor.untyped_storage()._cdata,
            tensor.storage_offset(),
            tensor.numel(),
            tensor.dtype,
        )
    except (RuntimeError, NotImplementedError):
        # Sparse, nested and functorch tensors have no storage.
        return None
