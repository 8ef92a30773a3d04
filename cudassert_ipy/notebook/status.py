"""What ``%cuda_debug`` and ``%cuda_debug status`` print."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.notebook import device

if TYPE_CHECKING:
    from cudassert_ipy.notebook.session import Session


def _device_line(session: Session) -> str:
    torch = device.loaded_torch()
    if torch is None:
        return messages.STATUS_NO_TORCH
    if session.dead:
        return messages.STATUS_DEAD.format(cell=messages.cell(session.dead_since))
    name = messages.STATUS_SIMULATED if device.simulated() else messages.STATUS_REAL
    if not device.cuda_in_use():
        return messages.STATUS_UNUSED.format(device=name)
    return messages.STATUS_ALIVE.format(device=name)


def status(session: Session) -> str:
    """Return the state of this kernel and every hook with its measured cost and off switch."""
    lines = [_device_line(session)]
    if session.diagnosis is not None:
        from cudassert_ipy.report.text import one_line

        lines.append(messages.STATUS_LAST.format(line=one_line(session.diagnosis)))
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        lines.append(messages.STATUS_BLOCKING)
    lines.append(messages.GUARD_ON if session.guard_always else messages.GUARD_OFF)
    lines.append(messages.STATUS_FENCE if session.settings.fence else messages.STATUS_NO_FENCE)
    lines.append(messages.STATUS_COPIES if session.settings.copies else messages.STATUS_NO_COPIES)
    lines += (messages.STATUS_FILE.format(path=path) for path in session.captures.paths())
    lines.append("")
    lines.append(messages.STATUS_HEAD)
    for hook in session.hooks:
        mean = 1e3 * hook.seconds / hook.calls if hook.calls else 0.0
        lines.append(
            messages.STATUS_HOOK.format(
                name=hook.name, calls=hook.calls, mean=mean, faults=hook.faults, switch=hook.switch
            )
        )
    return "\n".join(lines)
