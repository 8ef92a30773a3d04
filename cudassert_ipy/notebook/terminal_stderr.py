"""What C code writes to file descriptor 2 while a cell runs in a terminal.

The descriptor must stay a terminal, for the user's ``isatty()`` and for child programs, and must
never block a writer that holds the GIL. So, while a cell runs, it is a pseudo-terminal whose other
end is read by a process of its own, ``tee``, which copies every byte to the screen and to a file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from cudassert_ipy.notebook.stderr import READ_LIMIT, TRUNCATE_ABOVE, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRAIN_SECONDS = 0.5
"""How long the end of a cell waits for ``tee`` to have copied everything."""
SETTLE = 0.005
"""What ``tee`` may take between reading bytes and having written them."""


class TerminalCapture:
    """Descriptor 2 of a terminal session, with the interface of ``stderr.Captures``."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._tee: subprocess.Popen[bytes] | None = None
        self._file = self._slave = self._previous = -1
        self._mark = 0

    @property
    def active(self) -> bool:
        """Whether descriptor 2 is the pseudo-terminal now."""
        return self._previous >= 0

    @property
    def pid(self) -> int | None:
        """Process id of ``tee``; None while there is none."""
        return self._tee.pid if self._tee is not None else None

    def start(self) -> None:
        """Capture from now on, for one cell. Raises ``OSError`` where that is not possible."""
        if self.active:
            return
        if self._tee is None or self._tee.poll() is not None:
            self.close()
            self._spawn()
        self._copy_window_size()
        self._previous = os.dup(2)
        os.dup2(self._slave, 2)

    def stop(self) -> None:
        """Give descriptor 2 back, everything written shown."""
        if self.active:
            self.sync()
            os.dup2(self._previous, 2)
            os.close(self._previous)
            self._previous = -1

    def close(self) -> None:
        """Give descriptor 2 back and end ``tee``."""
        self.stop()
        if self._tee is not None:
            self._tee.kill()
            self._tee.wait()
            self._tee = None
            os.close(self._slave)
            os.close(self._file)
            if self.path is not None:
                self.path.unlink(missing_ok=True)
                self.path = None

    def begin_cell(self) -> None:
        """Start counting a cell's text here; empty the file when it has grown."""
        if self._tee is None:
            return
        self._mark = os.fstat(self._file).st_size
        if self._mark > TRUNCATE_ABOVE:  # tee appends, so it goes on at the new end
            os.ftruncate(self._file, 0)
            self._mark = 0

    def end_cell(self) -> None:
        """Do what the end of a cell needs: give the descriptor back."""
        self.stop()

    def cell_text(self) -> bytes:
        """Return what was written since :meth:`begin_cell`, at most ``READ_LIMIT`` bytes."""
        if self._tee is None:
            return b""
        self.sync()
        return os.pread(self._file, READ_LIMIT, self._mark)

    def sync(self) -> None:
        """Wait until everything that was written is on the screen and in the file."""
        if not self.active:
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        end = time.monotonic() + DRAIN_SECONDS
        while self._unread() and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(SETTLE)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within, descriptor 2 is the user's own terminal (`!less` reads keys from it)."""
        if not self.active:
            yield
            return
        self.sync()
        os.dup2(self._previous, 2)
        try:
            yield
        finally:
            os.dup2(self._slave, 2)

    def paths(self) -> list[str]:
        """Return the named file, for `%cuda_debug status`."""
        return [str(self.path)] if self.path is not None else []

    def _spawn(self) -> None:
        import pty
        import tty

        tee = shutil.which("tee")
        if tee is None:
            raise FileNotFoundError(2, os.strerror(2), "tee")
        self._file, self.path = open_file(2)
        master, self._slave = pty.openpty()
        os.set_inheritable(self._slave, False)
        # Bytes pass as they are: the screen's own terminal turns line feeds into new lines.
        tty.setraw(self._slave)
        target = str(self.path) if self.path is not None else f"/proc/self/fd/{self._file}"
        try:
            self._tee = subprocess.Popen(
                [tee, "-a", target],
                stdin=master,
                stdout=2,
                stderr=subprocess.DEVNULL,
                pass_fds=() if self.path is not None else (self._file,),
                start_new_session=True,  # Ctrl-C is for the user's cell
            )
        finally:
            os.close(master)

    def _copy_window_size(self) -> None:
        import fcntl
        import termios

        with contextlib.suppress(OSError):  # a terminal without a size
            size = fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._slave, termios.TIOCSWINSZ, size)

    def _unread(self) -> int:
        import fcntl
        import termios

        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(self._slave, termios.TIOCOUTQ, b"\0" * 4)
            return int.from_bytes(answer, sys.byteorder)
        return 0
