"""What ``%%cuda_debug`` does around its cell: checkpoint, guard, a replay if the cell dies."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.notebook import device

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding, TensorRow
    from cudassert_ipy.notebook.session import Session


class DebugCell:
    """One running cell under ``%%cuda_debug`` (or under ``%cuda_debug guard on``)."""

    def __init__(self, session: Session, options: Any) -> None:
        self._session = session
        self.options = options
        self._guard: Any = None
        self._checkpoint: Any = None
        self._checked: tuple[TensorRow, ...] = ()
        self.findings: tuple[Finding, ...] = ()
        """What the guard raised; known once the cell is over."""

    @classmethod
    def begin(cls, session: Session, line: str | None) -> DebugCell | None:
        """Prepare the cell that starts now; None where nothing can be done (and it was said).

        ``line``: the options of ``%%cuda_debug``, or None for a plain cell under a standing guard.
        """
        from IPython.core.error import UsageError

        from cudassert_ipy.notebook.options import cell_options

        try:
            options = cell_options(line or "")
        except UsageError:
            return None  # the cell does not run: the magic itself answers with the usage
        try:
            importlib.import_module("torch")
        except ImportError as error:
            print(messages.NO_TORCH.format(error=error))
            return None
        self = cls(session, options)
        try:
            self._prepare(with_checkpoint=line is not None and not options.no_checkpoint)
        except BaseException:  # Ctrl-C above all: nothing half-made may stay
            self.abandon()
            raise
        return self

    def _prepare(self, *, with_checkpoint: bool) -> None:
        present = device.device_present()
        if not present and not self._session.guard_always:
            print(messages.NO_DEVICE)
        if with_checkpoint and present and not self._session.dead:
            self._take_checkpoint()
        if not self.options.no_guard:
            from cudassert_ipy.checks.guard import Guard

            guard = Guard()
            guard.__enter__()
            self._guard = guard

    @staticmethod
    def refuse(shell: Any) -> None:
        """Keep the cell that is about to start from running: the user pressed Ctrl-C."""
        import ast

        from IPython.core.error import InputRejected

        class Refuse(ast.NodeTransformer):
            def visit(self, _node: ast.AST) -> ast.AST:
                shell.ast_transformers.remove(self)
                raise InputRejected(messages.INTERRUPTED_BEFORE)

        shell.ast_transformers.append(Refuse())

    def _take_checkpoint(self) -> None:
        from cudassert_ipy.errors import CheckpointRefused

        if not self._session.can_fork:
            reason = messages.CANNOT_FORK
        else:
            try:
                self._checkpoint = self._session.replaying.checkpoint(self.options.budget)
            except CheckpointRefused as refusal:
                reason = str(refusal)
            else:
                return
        print(messages.CHECKPOINT_REFUSED.format(reason=reason))

    @property
    def will_replay(self) -> bool:
        """Whether a death of this cell is replayed by itself."""
        return self._checkpoint is not None and not self.options.no_replay

    def take_checkpoint(self) -> Any:
        """Return the checkpoint; it is the caller's from now on."""
        checkpoint, self._checkpoint = self._checkpoint, None
        return checkpoint

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The operands that the guard has checked so far."""
        return self._checked if self._guard is None else self._guard.rows

    def end(self) -> None:
        """Stop checking: the cell is over."""
        guard, self._guard = self._guard, None
        if guard is not None:
            self._checked, self.findings = guard.rows, guard.findings
            guard.__exit__(None, None, None)

    def report_good_cell(self) -> None:
        """Show the checked tensors, where ``--stats`` asked for them."""
        if self.options.stats:
            self._session.display.show_tensors(self.rows)

    def abandon(self) -> None:
        """Let go of whatever is left: the guard, a checkpoint that was not needed."""
        self.end()
        checkpoint = self.take_checkpoint()
        if checkpoint is not None:
            checkpoint.discard()
