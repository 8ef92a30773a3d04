"""Signals in a forked child: nothing of what its parent set up for itself."""

from __future__ import annotations

import signal


def reset() -> None:
    """Undo what the parent's event loop, kernel and user set up, and unblock every signal."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
