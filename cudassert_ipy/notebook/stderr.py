"""What C code writes to file descriptors 2 and 1, kept readable while it is still shown.

The CUDA driver prints device assertions straight to fd 2 (verbose builds to fd 1), possibly 43 MB
of them and possibly while the GIL is held. A pipe would then hang for ever, so the descriptor is
pointed at an ``O_APPEND`` file: a write never blocks, "everything was read" is one ``fstat``, and
the file outlives the process. A tail thread forwards new bytes to where the descriptor pointed
before, and shows a flood of identical assertion lines as a few and a count.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Callable

TAIL_INTERVAL = 0.05
"""Seconds between two looks of the tail thread."""
TRUNCATE_ABOVE = 1 << 20
"""Between cells the file is emptied once it is larger than this many bytes."""
RESERVED = 4 << 20
"""Bytes of disk space that are kept for what CUDA prints."""
CELL_CAP = 64 << 20
"""Within a cell the file is emptied (after forwarding) once it is larger than this."""
READ_LIMIT = 8 << 20
"""At most this many bytes of one cell are given to the decoder."""
MIN_FREE = 64 << 20
"""Below this much free disk an anonymous memory file is used instead."""
STALE_SECONDS = 24 * 3600.0

_PREFIX = "cudassert-fd-"


class FloodFilter:
    """Pass bytes on, but only the first few of identical assertion lines, then a count."""

    SHOWN = 3
    LONGEST_LINE = 1 << 16

    def __init__(self) -> None:
        self._partial = b""  # the unfinished line
        self._passed = 0  # how much of it was passed on already (progress bars must not wait)
        self._key: bytes | None = None
        self._seen = 0

    def feed(self, data: bytes) -> bytes:
        """Return what to show for ``data``; an unfinished line is held only within a flood."""
        out: list[bytes] = []
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        for line in lines:
            self._line(line, out)
            self._passed = 0
        if self._key is None or len(self._partial) > self.LONGEST_LINE:
            self._pass_partial(out)
        return b"".join(out)

    def flush(self) -> bytes:
        """Return everything that is held back, the count of a running flood included."""
        out: list[bytes] = []
        self._end_flood(out)
        self._pass_partial(out)
        return b"".join(out)

    def _pass_partial(self, out: list[bytes]) -> None:
        out.append(self._partial[self._passed :])
        self._passed = len(self._partial)
        if self._passed > self.LONGEST_LINE:  # a progress bar that never ends its line
            self._partial, self._passed = b"", 0

    def _line(self, line: bytes, out: list[bytes]) -> None:
        # Almost no line is one: the expression is compiled when the first is seen.
        key, found = _without_thread(line) if b"], thread: [" in line else (line, 0)
        if not found or key != self._key:
            self._end_flood(out)
            self._key = key if found else None
        self._seen += 1
        if not found or self._seen <= self.SHOWN or self._passed:
            out.append(line[self._passed :] + b"\n")

    def _end_flood(self, out: list[bytes]) -> None:
        hidden = self._seen - self.SHOWN
        if self._key is not None and hidden > 0:
            out.append(messages.MORE_LINES.format(count=hidden).encode() + b"\n")
        self._key, self._seen = None, 0


def _without_thread(line: bytes) -> tuple[bytes, int]:
    return re.subn(rb"block: \[\d+, ?\d+, ?\d+\], thread: \[\d+, ?\d+, ?\d+\]", b"", line)


def open_file(fd: int) -> tuple[int, Path | None]:
    """Open the file that takes the place of descriptor ``fd``; return it and its path, if named."""
    directory = tempfile.gettempdir()
    usage = os.statvfs(directory)
    if usage.f_bavail * usage.f_frsize < MIN_FREE and hasattr(os, "memfd_create"):
        return os.memfd_create(f"{_PREFIX}{fd}"), None
    handle, name = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-{fd}-", suffix=".log")
    os.close(handle)
    path = Path(name)
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC), path


def remove_stale_files() -> None:
    """Remove capture files that kernels killed more than a day ago left behind (ours only)."""
    limit = time.time() - STALE_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*.log"):
        # Another process may remove it meanwhile, or it may be another user's.
        with contextlib.suppress(OSError):
            status = path.lstat()
            if (
                stat.S_ISREG(status.st_mode)
                and status.st_uid == os.getuid()
                and status.st_mtime < limit
            ):
                path.unlink()


def _kernel_stream(fd: int) -> Callable[[bytes], None] | None:
    """Return what writes to the kernel's stream for ``fd``; None where there is no such stream.

    ipykernel 6 and 7 keep the descriptor's number and a copy of what it was; what comes by its pipe
    they write to both the stream and that copy.
    """
    stream = sys.stderr if fd == 2 else sys.stdout
    copy = getattr(stream, "_original_stdstream_copy", None)
    if copy is None or getattr(stream, "_original_stdstream_fd", None) != fd:
        return None

    def write(data: bytes) -> None:
        if data:
            stream.write(data.decode(errors="replace"))
            _write_all(copy, data)

    return write


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # the user has closed it
        return False


def _reserve(fd: int) -> None:
    """Reserve disk space for what CUDA may print, so that a disk that fills up later has it."""
    import ctypes

    keep_size = 1  # FALLOC_FL_KEEP_SIZE (linux/falloc.h)
    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is not None:  # Linux; a file system that cannot do it says so, which is no matter
        size = ctypes.c_int64(RESERVED)
        fallocate(fd, keep_size, ctypes.c_int64(0), size)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError:
            # The reader is gone (kernel shutting down): what cannot be shown is still in the file.
            return


class FdCapture:
    """Keep what is written to one descriptor, and forward it to where it went before.

    Args:
        fd: 1 or 2.

    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.path: Path | None = None
        self._file = -1
        self._previous = -1
        self._offset = 0
        self._mark = 0
        self._lock = threading.RLock()
        self._filter = FloodFilter()
        self._pid = 0
        self._idle = 0

    @property
    def active(self) -> bool:
        """Whether the descriptor points at our file now."""
        return self._file >= 0

    def start(self) -> None:
        """Point the descriptor at a new file. Raises ``OSError``."""
        if self.active:
            return
        self._file, self.path = open_file(self.fd)
        self._previous = os.dup(self.fd)
        os.dup2(self._file, self.fd)
        self._offset = self._mark = 0
        self._pid = os.getpid()

    def stop(self) -> None:
        """Give the descriptor back, forward what is left, and remove the file."""
        if not self.active:
            return
        # Where the user has pointed the descriptor elsewhere meanwhile, it is theirs.
        if _same_file(self.fd, self._file):
            os.dup2(self._previous, self.fd)
        with self._lock:
            self.pump(final=True)
            os.close(self._file)
            os.close(self._previous)
            self._file = self._previous = -1
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            self.path = None

    def begin_cell(self) -> None:
        """Start counting a cell's text here; empty the file when it has grown."""
        if not self.active:
            return
        self.pump(final=True)
        with self._lock:
            if self._offset > TRUNCATE_ABOVE:
                self._empty()
            self._mark = self._offset

    def cell_text(self) -> bytes:
        """Return what was written since :meth:`begin_cell`, at most ``READ_LIMIT`` bytes."""
        if not self.active:
            return b""
        with self._lock:
            size = os.fstat(self._file).st_size
            return os.pread(self._file, min(size - self._mark, READ_LIMIT), self._mark)

    def pump(self, *, final: bool = False, directly: bool = False) -> None:
        """Forward what is new; with ``final`` also what the flood filter holds back.

        With ``directly`` it goes into the kernel's stream itself, past the pipe and the thread by
        which ipykernel reads it: only so is it certain to stand above what the cell shows next.
        """
        if not self.active or os.getpid() != self._pid:
            return
        forward = (_kernel_stream(self.fd) if directly else None) or self._forward
        with self._lock:
            while data := os.pread(self._file, 1 << 16, self._offset):
                self._offset += len(data)
                forward(self._filter.feed(data))
            if final:
                forward(self._filter.flush())
            if self._offset > CELL_CAP:
                self._empty()

    def reserve(self) -> None:
        """Reserve disk space for the file."""
        with self._lock:
            if self.active:
                _reserve(self._file)

    def _empty(self) -> None:
        os.ftruncate(self._file, 0)
        _reserve(self._file)
        self._offset = self._mark = 0

    def _forward(self, data: bytes) -> None:
        _write_all(self._previous, data)

    def look(self) -> None:
        """Forward what is new; when nothing came for a while, also what a flood holds back."""
        with self._lock:
            if not self.active:
                return
            if os.fstat(self._file).st_size != self._offset:
                self.pump()
                self._idle = 0
            elif self._idle < 2:
                self._idle += 1
                if self._idle == 2:
                    self.pump(final=True)


class Captures:
    """The captures of one kernel: fd 2 and fd 1 (verbose builds of torch print there)."""

    def __init__(self, fds: tuple[int, ...]) -> None:
        self._captures = tuple(FdCapture(fd) for fd in fds)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether any descriptor is captured now."""
        return any(capture.active for capture in self._captures)

    def start(self) -> None:
        """Start all; on an error none is left redirected. Raises ``OSError``.

        What is written is shown from the next cell on, while it runs, and at the end of cells.
        """
        try:
            for capture in self._captures:
                capture.start()
        except OSError:
            self.stop()
            raise

    def stop(self) -> None:
        """Give all descriptors back."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(timeout=2.0)
        for capture in self._captures:
            capture.stop()

    def close(self) -> None:
        """Give all descriptors back for good."""
        self.stop()

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that changes nothing: a kernel's descriptors are no terminal."""
        return contextlib.nullcontext()

    def begin_cell(self) -> None:
        """Start counting a cell's text here."""
        for capture in self._captures:
            capture.begin_cell()
        if self._thread is None and self.active:
            self._stop.clear()
            self._thread = threading.Thread(target=self._tail, name="cudassert-fds", daemon=True)
            self._thread.start()

    def cell_text(self) -> bytes:
        """Return the text of the running (or last) cell, fd 2 first."""
        return b"\n".join(text for c in self._captures if (text := c.cell_text()))

    def end_cell(self) -> None:
        """Show the rest of a cell's text, which else might reach the next cell's output."""
        for capture in self._captures:
            capture.pump(final=True, directly=True)

    def sync(self) -> None:
        """Show everything that was written so far, so that what follows stands below it."""
        self.end_cell()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()

    def paths(self) -> list[str]:
        """Return the named files, for `%cuda_debug status`."""
        return [str(capture.path) for capture in self._captures if capture.path is not None]

    def _tail(self) -> None:
        first = True
        while not self._stop.wait(TAIL_INTERVAL):
            for capture in self._captures:
                capture.look()
            if first:
                for capture in self._captures:
                    capture.reserve()
                remove_stale_files()  # here, because in a full directory it takes its time
                first = False
