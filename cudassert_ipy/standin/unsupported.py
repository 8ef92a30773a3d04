"""What only a real device can run, and how a program that reaches it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context


class NeedsDeviceError(CudassertError):
    """The program reached something that the stand-in device cannot run; the message names it."""


def needs_device(context: Context, what: str) -> NeedsDeviceError:
    """Note that ``what`` was not run, and return the error to raise.

    It is noted as well because the user's code may catch the error and go on without.
    """
    text = messages.STANDIN_CANNOT_RUN.format(what=what)
    context.policy.gap(text)
    return NeedsDeviceError(text)
