"""A progress line: tqdm's where it is installed, else one that is written over itself."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Callable

_EVERY_SECONDS = 0.2


class Progress:
    """Shows how many batches were read; nothing where ``shown`` is false."""

    def __init__(self, total: int | None, shown: bool) -> None:
        self._total = total
        self._count = 0
        self._last = 0.0
        self._written = False
        self._bar = _bar(total) if shown else None
        # A notebook's stream is no terminal, but it honors the carriage return.
        stream = sys.stderr
        is_live = bool(getattr(stream, "isatty", bool)()) or "ipykernel" in sys.modules
        self._write: Callable[[str], Any] | None = None
        if shown and self._bar is None and is_live:
            self._write = stream.write

    def step(self, bad: int) -> None:
        """Say that one more batch was read, and how many bad values there are so far."""
        self._count += 1
        if self._bar is not None:
            self._bar.update(1)
            if bad:
                self._bar.set_postfix(bad=bad, refresh=False)
        elif self._write is not None and time.monotonic() - self._last >= _EVERY_SECONDS:
            self._last = time.monotonic()
            self._show(bad)

    def close(self, bad: int) -> None:
        """Show the last state, and end the line."""
        if self._bar is not None:
            self._bar.close()
        elif self._write is not None and self._written:
            self._show(bad)
            self._write("\n")

    def _show(self, bad: int) -> None:
        total = "" if self._total is None else f"/{self._total:,}"
        text = messages.SCAN_PROGRESS.format(count=self._count, total=total, bad=bad)
        if self._write is not None:
            self._write("\r" + text)
            self._written = True
            sys.stderr.flush()


def _bar(total: int | None) -> Any:
    """Return tqdm's bar, or None where tqdm is not installed."""
    if importlib.util.find_spec("tqdm") is None:
        return None
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None  # a broken or very old tqdm
    return tqdm(total=total, desc="scan", unit="batch")
