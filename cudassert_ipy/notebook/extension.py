"""Loading, unloading, and what the package offers to Python code about the session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cudassert_ipy import messages
from cudassert_ipy.notebook.magics import CudaDebugMagics, register, unregister

if TYPE_CHECKING:
    from cudassert_ipy.model import Diagnosis
    from cudassert_ipy.notebook.session import Session

_sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()


def load(shell: Any) -> None:
    """Install the extension into ``shell``; loading it again first removes the old installation."""
    if os.environ.get("CUDASSERT_DISABLE") == "1":
        from cudassert_ipy.notebook.disabled import DisabledMagics

        print(messages.DISABLED)
        register(shell, DisabledMagics(shell))
        return
    from cudassert_ipy.notebook.session import Session

    if shell in _sessions:
        unload(shell)
    session = Session(shell)
    _sessions[shell] = session
    session.install()
    register(shell, CudaDebugMagics(shell, session))
    if os.environ.get("CUDASSERT_SIMULATOR") == "1":
        from cudassert_ipy.errors import CudassertError
        from cudassert_ipy.standin import simulator

        try:
            simulator.on()
        except CudassertError as error:  # not the main thread
            print(error)
    handoff, session.settings.handoff = session.settings.handoff, ""
    if handoff:
        shell.config.get("CudaDebug", {}).pop("handoff", None)  # it counts once
        session.restarting.resume_from(handoff)
    else:
        session.check_at_load()
        session.offer_pending()


def unload(shell: Any) -> None:
    """Remove everything :func:`load` and the session installed into ``shell``."""
    session = _sessions.pop(shell, None)
    if session is not None:
        session.remove()
    unregister(shell)


def session_of(shell: Any) -> Session | None:
    """Return the session of a shell that has the extension loaded."""
    return _sessions.get(shell)


def last_diagnosis() -> Diagnosis | None:
    """Return the last diagnosis of this kernel; None when nothing was diagnosed."""
    for session in _sessions.values():
        if session.diagnosis is not None:
            return session.diagnosis
    return None
