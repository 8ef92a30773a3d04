"""The magics under ``CUDASSERT_DISABLE=1``."""

from __future__ import annotations

from typing import Any

from cudassert_ipy import messages


class DisabledMagics:
    """What stands in for the magics under ``CUDASSERT_DISABLE=1``: notebooks that use them run."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def cell(self, _line: str, body: str) -> None:
        """Run the cell as it is."""
        self.shell.run_cell(body).raise_error()

    def line(self, _line: str) -> None:
        """Say that everything is off."""
        print(messages.DISABLED)
