"""What the process before a restart leaves for the one after it: one small JSON file.

The file names cells that will be *run*, so reading it is guarded like a door: only from a directory
that nobody else can write to, only our own regular file that nobody else can read, only from this
very process (an exec keeps pid and start time), only young, only once (it is removed before it is
used). It holds no environment values and nothing is ever unpickled.

Where exec is not possible the user restarts by hand; then the file has a fixed name made from the
connection file, lives longer, and what it names is only offered, never run by itself.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.model import Record
from cudassert_ipy.restart.start import pending_path

VERSION = 1
"""Layout of the file; a reader refuses every other one."""
MAX_BYTES = 16 << 20
MAX_SOURCE = 100_000
"""Longest cell, in characters, that is handed over (the data model cuts at twice that)."""
MAX_AGE = 60.0
"""Seconds between writing and reading around an exec; measured: under 1."""
MAX_AGE_PENDING = 1800.0
"""Seconds a handoff waits for a user who restarts the kernel by hand."""


class HandoffError(CudassertError):
    """The handoff cannot be written, or must not be used; the message is one line and says why."""


HandoffError.__module__ = "cudassert_ipy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCell(Record):
    """One cell of the session, as it ran."""

    source: str
    """The cell as typed."""
    execution_count: int | None = None
    seconds: float = 0.0
    cell_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff(Record):
    """Everything the next process needs to go on where this one ended."""

    version: int = VERSION
    pid: int = 0
    start_time: int | None = None
    """Clock ticks after boot at which the process started; None where the system does not say."""
    connection_file: str | None = None
    """Base name of the kernel's connection file; None in a terminal."""
    created: float = 0.0
    """Seconds since the epoch."""
    cells: tuple[RecordedCell, ...] = ()
    """Set-up cells to run again, in this order."""
    failing: RecordedCell | None = None
    diagnosis: dict[str, Any] | None = None
    display_id: str | None = None
    panel_comm_id: str | None = None
    parent: dict[str, Any] | None = None
    """Request that output belongs to: the message with its header, without its source."""
    idents: tuple[str, ...] = ()
    """Routing identities of that request, as hex."""
    reply_owed: bool = False
    """Whether that request still waits for its ``execute_reply`` (the magic form)."""
    subshell_ids: tuple[str, ...] = ()
    execution_count: int = 1
    """Number of the next cell."""
    inputs: tuple[str, ...] = ()
    """``In`` of the old process; ``inputs[n]`` is cell n."""
    cwd: str | None = None
    sys_path: tuple[str, ...] = ()
    """``sys.path`` as the extension found it: what a front end added at start is lost otherwise."""
    simulator: bool = False
    blocking: bool = False
    replay: bool = False
    """Whether to replay the failing cell when the set-up is through."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Small JSON values that the notebook part wants back, e.g. settings."""


def process_start_time() -> int | None:
    """Return when this process started, in clock ticks after boot (Linux: proc(5), stat field 22).

    An exec keeps it; a later process with the same pid has another. None without ``/proc``.
    """
    try:
        text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        # The command name may hold blanks and brackets: count fields behind its last bracket.
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def stamp(handoff: Handoff) -> Handoff:
    """Return ``handoff`` marked as written by this process, now."""
    return replace(
        handoff,
        version=VERSION,
        pid=os.getpid(),
        start_time=process_start_time(),
        created=time.time(),
    )


def write(handoff: Handoff, directory: Path) -> Path:
    """Write ``handoff`` under a random name in ``directory`` and return its path.

    Raises ``HandoffError`` where others can write to the directory, a cell is too long to be
    handed over whole, or the disk refuses.
    """
    _check_sources(handoff)
    data = json.dumps(stamp(handoff).to_dict()).encode()
    if len(data) > MAX_BYTES:
        raise HandoffError(messages.HANDOFF_TOO_LARGE)
    name = f"cudassert-{secrets.token_hex(16)}.json"
    folder = _open_directory(directory)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
            try:
                file.write(data)
                file.flush()
            except OSError:
                os.unlink(name, dir_fd=folder)
                raise
    except OSError as error:
        raise HandoffError(messages.HANDOFF_NOT_WRITTEN.format(error=error.strerror)) from error
    finally:
        os.close(folder)
    return directory / name


def read(path: Path) -> Handoff:
    """Read, remove and return what this process left before its exec.

    Raises ``HandoffError`` for anything else than that; nothing of a refused file is used.
    """
    handoff = _decode(_take(path))
    if handoff.pid != os.getpid() or handoff.start_time != process_start_time():
        raise HandoffError(messages.HANDOFF_OTHER_PROCESS)
    _check_age(handoff, MAX_AGE)
    return handoff


def write_pending(handoff: Handoff, directory: Path, connection_file: str) -> Path:
    """Leave ``handoff`` for a restart by hand; replaces an older one. Raises ``HandoffError``."""
    named = replace(handoff, connection_file=Path(connection_file).name)
    temporary = write(named, directory)
    path = pending_path(directory, connection_file)
    try:
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HandoffError(messages.HANDOFF_NOT_WRITTEN.format(error=error.strerror)) from error
    return path


def read_pending(directory: Path, connection_file: str) -> Handoff | None:
    """Take what waits for this kernel; None if nothing does. Raises ``HandoffError``.

    The pid is another one here, so the caller must *offer* the cells, never run them unasked.
    """
    path = pending_path(directory, connection_file)
    if not path.is_symlink() and not path.exists():
        return None
    handoff = _decode(_take(path))
    if handoff.connection_file != Path(connection_file).name:
        raise HandoffError(messages.HANDOFF_OTHER_PROCESS)
    _check_age(handoff, MAX_AGE_PENDING)
    return handoff


def _check_sources(handoff: Handoff) -> None:
    # `Record.from_dict` cuts long strings. A cell must arrive whole or not at all.
    cells = (*handoff.cells, *((handoff.failing,) if handoff.failing else ()))
    for cell in cells:
        if len(cell.source) > MAX_SOURCE:
            where = messages.cell(cell.execution_count)
            raise HandoffError(messages.HANDOFF_CELL_TOO_LONG.format(cell=where))


def _check_age(handoff: Handoff, limit: float) -> None:
    age = time.time() - handoff.created
    if not -limit < age < limit:  # the clock may have been set back a little meanwhile
        raise HandoffError(messages.HANDOFF_TOO_OLD)


def _open_directory(directory: Path) -> int:
    """Open a directory that only we can write to; everything else happens relative to it."""
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(os.path.realpath(directory), flags)
    except OSError as error:
        raise HandoffError(messages.HANDOFF_NO_DIRECTORY.format(error=error.strerror)) from error
    info = os.fstat(folder)
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(folder)
        raise HandoffError(messages.HANDOFF_SHARED_DIRECTORY)
    return folder


def _take(path: Path) -> bytes:
    """Return the bytes of our own file at ``path``, which is removed before this returns."""
    folder = _open_directory(path.parent)
    try:
        # O_NONBLOCK: a FIFO under this name must not hang the start of the kernel.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=folder)
        try:
            _check_file(os.fstat(descriptor))
            os.unlink(path.name, dir_fd=folder)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise HandoffError(messages.HANDOFF_MISSING) from error
    except OSError as error:
        raise HandoffError(messages.HANDOFF_UNREADABLE.format(error=error.strerror)) from error
    finally:
        os.close(folder)
    if len(data) > MAX_BYTES:
        raise HandoffError(messages.HANDOFF_TOO_LARGE)
    return data


def _check_file(info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise HandoffError(messages.HANDOFF_NOT_A_FILE)
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise HandoffError(messages.HANDOFF_NOT_OURS)


def _decode(data: bytes) -> Handoff:
    try:
        content = json.loads(data)
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, int) and version != VERSION:
            raise HandoffError(messages.HANDOFF_OTHER_VERSION)
        handoff = Handoff.from_dict(content)
    except (ValueError, RecursionError) as error:
        raise HandoffError(messages.HANDOFF_DAMAGED) from error
    _check_sources(handoff)
    return handoff
