"""The magics under ``CUDASSERT_DISABLE=1``."""

from __future__ import annotations

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from cudassert_ipy import messages


@magics_class
class DisabledMagics(Magics):
    """What stands in for the magics under ``CUDASSERT_DISABLE=1``: notebooks that use them run."""

    @cell_magic("cuda_debug")
    def cell(self, _line: str, body: str) -> None:
        """Run the cell as it is."""
        self.shell.run_cell(body).raise_error()

    @line_magic("cuda_debug")
    def line(self, _line: str) -> None:
        """Say that everything is off."""
        print(messages.DISABLED)
