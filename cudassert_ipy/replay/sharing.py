"""Memory that parent and child would share: made private in the child, at the same addresses.

Copy-on-write covers ordinary memory. Shared mappings it does not: a batch from DataLoader workers,
``share_memory_()``, ``np.memmap(mode="r+")``, ``multiprocessing.Value``. A replayed cell that wrote
there would change the parent's data, or the user's file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MREMAP_MAYMOVE = 1
_MREMAP_FIXED = 2
_MAP_FAILED = ctypes.c_void_p(-1).value


class TooMuchSharedMemoryError(MemoryError):
    """The shared memory does not fit a second time."""


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    size: int
    offset: int
    device: str
    inode: int
    path: str


def make_private(limit: int) -> int:
    """Turn every shared writable mapping of this process into a private one; return their bytes.

    Files that still have their name are mapped again, which costs nothing until a page is written;
    memory without a name is copied. Mappings of devices (the GPU driver's) are left alone: nothing
    but the driver's own calls, which the child never makes, writes there.

    Raises:
        TooMuchSharedMemoryError: more than ``limit`` bytes would have to be copied.
        OSError: the system refused a mapping.

    """
    mappings = list(_shared_writable())
    copied = 0
    for mapping in mappings:
        if _map_file_again(mapping):
            continue
        copied += mapping.size
        if copied > limit:
            msg = f"{copied} bytes"
            raise TooMuchSharedMemoryError(msg)
        _copy(mapping)
    return sum(mapping.size for mapping in mappings)


def _shared_writable() -> Iterator[_Mapping]:
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        # 7f12-7f34 rw-s 00000000 00:01 1026  /dev/shm/torch_1 (deleted)
        fields = line.split(maxsplit=5)
        path = fields[5] if len(fields) > 5 else ""
        if fields[1][1] != "w" or fields[1][3] != "s" or _is_device(path):
            continue
        start, end = (int(part, 16) for part in fields[0].split("-"))
        offset = int(fields[2], 16)
        yield _Mapping(start, end - start, offset, fields[3], int(fields[4]), path)


def _is_device(path: str) -> bool:
    # An anonymous shared mapping calls itself "/dev/zero (deleted)"; it is memory.
    memory = ("/dev/shm/", "/dev/zero")  # noqa: S108 - read, not written
    in_dev = path.startswith("/dev/") and not path.startswith(memory)
    return in_dev or path.startswith(("anon_inode:", "socket:"))


def _map_file_again(mapping: _Mapping) -> bool:
    try:
        descriptor = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return False
    try:
        found = os.fstat(descriptor)
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        if (device, found.st_ino) != (mapping.device, mapping.inode):
            return False
        _map(mapping.start, mapping.size, mmap.MAP_PRIVATE, descriptor, mapping.offset, fixed=True)
    finally:
        os.close(descriptor)
    return True


def _copy(mapping: _Mapping) -> None:
    """Copy to anonymous memory, then move that over the old place in one step."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = _map(0, mapping.size, flags, -1, 0, fixed=False)
    ctypes.memmove(copy, mapping.start, mapping.size)
    libc = _libc()
    size = ctypes.c_size_t(mapping.size)
    flag = _MREMAP_MAYMOVE | _MREMAP_FIXED
    moved = libc.mremap(
        ctypes.c_void_p(copy), size, size, ctypes.c_int(flag), ctypes.c_void_p(mapping.start)
    )
    if moved != mapping.start:
        raise OSError(ctypes.get_errno(), "mremap")


def _map(address: int, size: int, flags: int, descriptor: int, offset: int, *, fixed: bool) -> int:
    map_fixed = 0x10  # MAP_FIXED on x86-64 and arm64; the mmap module does not name it
    place = _libc().mmap(
        ctypes.c_void_p(address),
        ctypes.c_size_t(size),
        ctypes.c_int(mmap.PROT_READ | mmap.PROT_WRITE),
        ctypes.c_int(flags | (map_fixed if fixed else 0)),
        ctypes.c_int(descriptor),
        ctypes.c_long(offset),
    )
    if place == _MAP_FAILED or place is None:
        raise OSError(ctypes.get_errno(), "mmap")
    return int(place)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mremap.restype = ctypes.c_void_p
    return libc
