"""The magics ``%%cuda_debug`` and ``%cuda_debug``."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from cudassert_ipy import messages
from cudassert_ipy.notebook import device

if TYPE_CHECKING:
    from cudassert_ipy.notebook.session import Session


NAME = "cuda_debug"


def register(shell: Any, magics: Any) -> None:
    """Make ``magics.line`` and ``magics.cell`` the magics ``%cuda_debug`` and ``%%cuda_debug``.

    As functions: a class of IPython's ``Magics`` takes longer to define than the rest of a load.
    """
    shell.register_magic_function(magics.line, "line", NAME)
    shell.register_magic_function(magics.cell, "cell", NAME)


def unregister(shell: Any) -> None:
    """Undo :func:`register`; does nothing where it was not called."""
    manager = shell.magics_manager
    for kind in ("line", "cell"):
        manager.magics[kind].pop(NAME, None)
    vars(manager.user_magics).pop(NAME, None)


class CudaDebugMagics:
    """Magics of one session."""

    def __init__(self, shell: Any, session: Session) -> None:
        self.shell = shell
        self._session = session

    def cell(self, line: str, body: str) -> None:
        """Run a cell with its operands checked before each launch.

        Usually an input transformer has taken the magic line away before IPython looks for a magic,
        and the cell runs as itself. This is what remains: options that do not exist, and calls
        from code (``run_cell_magic``).
        """
        from cudassert_ipy.notebook.options import cell_options

        cell_options(line)
        from cudassert_ipy.checks.guard import guard

        with guard():
            self.shell.run_cell(body).raise_error()

    def line(self, line: str) -> None:
        """Show or do something about CUDA errors in this kernel."""
        from cudassert_ipy.errors import CudassertError
        from cudassert_ipy.notebook.options import line_options

        options = line_options(line)
        try:
            getattr(self, f"_{options.command}")(options)
        except CudassertError as error:
            raise UsageError(str(error)) from None

    def _status(self, _options: Any) -> None:
        from cudassert_ipy.notebook.status import status

        print(status(self._session))

    def _report(self, options: Any) -> None:
        diagnosis = self._session.diagnosis
        if diagnosis is None:
            raise UsageError(messages.NOTHING_TO_REPORT)
        if options.output:
            from cudassert_ipy.report.output import shown_output

            print(shown_output(self._session.replaying.output) or messages.NOTHING_PRINTED)
            return
        if options.json:
            print(json.dumps(diagnosis.to_dict(), allow_nan=False))
            return
        from cudassert_ipy.report.markdown import render_markdown

        show_values = self._session.settings.show_values
        print(render_markdown(diagnosis, show_values=show_values))

    def _replay(self, options: Any) -> None:
        self._session.replaying.replay_now(whole=options.whole)

    def _repro(self, options: Any) -> None:
        from cudassert_ipy.notebook.reproducing import Reproducing, as_text, write

        if options.value is None and not self._session.settings.show_values:
            raise UsageError(messages.REPRO_HIDDEN)
        if options.value is not None and Path(options.value).exists():
            raise UsageError(messages.REPRO_EXISTS.format(file=options.value))
        print(messages.REPRO_RUNS)
        made = Reproducing(self._session).reproduce_now()
        if options.value is None:
            print(as_text(made))
        else:
            print(write(made, options.value, cells=options.cells))

    def _restart(self, _options: Any) -> None:
        self._session.restarting.restart_from_magic()

    def _guard(self, options: Any) -> None:
        self._import_torch()
        self._session.guard_always = options.value == "on"
        print(messages.GUARD_ON if options.value == "on" else messages.GUARD_OFF)

    def _simulator(self, options: Any) -> None:
        self._import_torch()
        from cudassert_ipy.standin import simulator

        if options.value == "on":
            if device.cuda_in_use() and not simulator.is_on():
                raise UsageError(messages.SIMULATOR_REAL_GPU)
            simulator.on()
            print(messages.SIMULATOR_ON)
        else:
            if self._session.dead and simulator.is_on():
                self._session.failures.forget_death()
            simulator.off()
            print(messages.SIMULATOR_OFF)

    def _off(self, _options: Any) -> None:
        self._session.remove()
        print(messages.TURNED_OFF)

    @staticmethod
    def _import_torch() -> None:
        try:
            importlib.import_module("torch")
        except ImportError as error:
            raise UsageError(messages.NO_TORCH_LINE.format(error=error)) from None


# The manual that `%cuda_debug?` and `%%cuda_debug?` show. Written from the same texts as the
# parsers of `options`, which are built only when a magic is called.
CudaDebugMagics.line.__doc__ = messages.LINE_MANUAL
CudaDebugMagics.cell.__doc__ = messages.CELL_MANUAL
