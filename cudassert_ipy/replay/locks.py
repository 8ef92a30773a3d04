"""Locks that a thread of the parent held at the fork: in the child nobody would release them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudassert_ipy.replay.find import Heap


def renew_file_locks(heap: Heap) -> None:
    """Give every open buffered writer a new lock, and an empty buffer.

    A thread that was writing (logging, most often) held the lock of its file. ``__init__`` makes a
    new one (seen in CPython 3.11). What the buffer held is the parent's to write; the child's file
    is ``/dev/null``.
    """
    for writer in heap.instances(io.BufferedWriter):
        if type(writer) is io.BufferedWriter and not writer.closed:
            writer.__init__(writer.raw)  # type: ignore[misc]
