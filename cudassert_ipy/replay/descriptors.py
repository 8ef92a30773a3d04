"""File descriptors in the child: it may share nothing that moves in its parent.

A forked child shares the open file descriptions of its parent: reading a file moves the parent's
position, reading a pipe steals the parent's bytes, and a descriptor of ``/dev/nvidia*`` keeps the
parent's GPU memory alive after the parent is gone (Megatron-LM #3684).
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_FD_DIRECTORY = "/proc/self/fd"
_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def available() -> bool:
    """Return whether this system tells what descriptors a process has (Linux)."""
    return Path(_FD_DIRECTORY).is_dir() and hasattr(os, "O_PATH")


def isolate(keep: Collection[int]) -> None:
    """Replace every descriptor but ``keep`` by one that shares nothing with the parent.

    Files and directories open for reading are opened again at their own offset (those open for
    reading and writing too, but for reading only: what they say is true, and a write fails loudly),
    files open for writing become ``/dev/null``, descriptors of the GPU driver are closed. Every
    other one (socket, pipe, terminal, device) is closed, and its number is occupied by a descriptor
    that can do nothing (``O_PATH``): each use of it fails with ``EBADF``, and no file that the cell
    opens can take the number and be mistaken for it.
    """
    links = _open_descriptors()
    for descriptor in [fd for fd, link in links.items() if link.startswith("/dev/nvidia")]:
        os.close(descriptor)
        del links[descriptor]
    dead = os.open("/", os.O_PATH | os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, link in links.items():
        if descriptor not in keep:
            _replace(descriptor, link, dead, null)
    os.close(null)
    os.close(dead)


def _open_descriptors() -> dict[int, str]:
    links = {}
    for entry in Path(_FD_DIRECTORY).iterdir():
        try:
            links[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return links


def _replace(descriptor: int, link: str, dead: int, null: int) -> None:
    mode = os.fstat(descriptor).st_mode
    access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        if access == os.O_WRONLY:
            _take_over(null, descriptor)
        else:
            _reopen(descriptor, dead)
    elif not (stat.S_ISCHR(mode) and link in _HARMLESS_DEVICES):
        _take_over(dead, descriptor)


def _reopen(descriptor: int, dead: int) -> None:
    """Open the same file again, also when its name is gone, at the same offset."""
    try:
        again = os.open(f"{_FD_DIRECTORY}/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the user's rights have changed since, or a file system that refuses
        _take_over(dead, descriptor)
        return
    os.lseek(again, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    _take_over(again, descriptor)
    os.close(again)


def _take_over(source: int, descriptor: int) -> None:
    os.dup2(source, descriptor, inheritable=os.get_inheritable(descriptor))


def redirect_standard_streams(output: int) -> None:
    """Make ``output`` the stdout and stderr of this process, and ``/dev/null`` its stdin."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(output, 1)
    os.dup2(output, 2)
