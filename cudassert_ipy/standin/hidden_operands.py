"""Torch functions that change their operand before an operation has it: checked when called."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.checks.operators import function_table
from cudassert_ipy.standin.context import index_of_any

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context


def checked_call(context: Context, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Check a call of ``take_along_dim`` or ``one_hot``; return its result where it must not run.

    Returns None where ``func`` is to be called: another function, CPU operands, no failure.
    """
    operator = function_table().get(func)
    if operator is None:
        return None
    index = index_of_any((*args, *kwargs.values()))
    if index is None:
        return None
    with _without_modes():
        if context.policy.call(operator, args, kwargs):
            return None
        arguments = operator.arguments(args, kwargs)
        if arguments.get("num_classes", -1) < 0:
            return None  # its operations leave garbage; the largest class makes the host wait
        shape = (*arguments["self"].shape, arguments["num_classes"])
        out = torch.zeros(shape, dtype=torch.int64, device="cpu")
    context.place(out, index, substitute=False)
    return out


def _without_modes() -> contextlib.AbstractContextManager[Any]:
    """Turn the dispatch modes off: a check is no operation of the user's.

    The function is private; seen in torch 2.0 to 2.14. Without it the check counts as an operation.
    """
    from torch.utils import _python_dispatch

    disable = getattr(_python_dispatch, "_disable_current_modes", contextlib.nullcontext)
    found: contextlib.AbstractContextManager[Any] = disable()
    return found
