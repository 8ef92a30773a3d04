"""Writes the events of a replay, whole lines, from the cell's thread and others."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from cudassert_ipy.replay.protocol import encode

if TYPE_CHECKING:
    from cudassert_ipy.replay.protocol import Called, Done, Found, Progress, Remark, Row


class Sender:
    """The writing end of a replay's events.

    Attributes:
        owner: the process that may send: the cell's code may fork, and only one may tell.

    """

    def __init__(self, descriptor: int, token: str) -> None:
        self.owner = os.getpid()
        self._token = token
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, event: Progress | Found | Called | Row | Remark | Done) -> None:
        """Write ``event`` as one line. Raises ``OSError`` when nobody reads any more."""
        data = encode(event, self._token)
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]
