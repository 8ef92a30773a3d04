"""Where diagnoses are shown: an ordinary output, updated in place, and the widget under it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from cudassert_ipy.notebook.kernel import parent_of_current_cell
from cudassert_ipy.report.bundle import bundle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudassert_ipy.model import Diagnosis, TensorRow
    from cudassert_ipy.notebook.session import Session


class Display:
    """The outputs of one session.

    Attributes:
        display_id: of the output that shows the last diagnosis.
        panel: the widget under it, where the front end shows widgets.
        parent: the request of the cell in which both stand.

    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.display_id: str | None = None
        self.panel: Any = None
        self.parent: Any = None

    def show(self, diagnosis: Diagnosis) -> None:
        """Show a diagnosis in the running cell, as a new output with buttons under it."""
        self._show_output(diagnosis)
        if self._session.has_buttons:
            self._show_panel(diagnosis)

    def update(self, diagnosis: Diagnosis) -> None:
        """Show a diagnosis in place of the one shown before, wherever that stands.

        The widget is the caller's to update.
        """
        if self.display_id is None or not self._session.in_kernel:
            self._show_output(diagnosis)
        else:
            self._session.diagnosis = diagnosis
            self._publish(diagnosis, update=True)

    def show_tensors(self, rows: Iterable[TensorRow]) -> None:
        """Show the tensors that were checked, with nothing having failed."""
        from cudassert_ipy.model import Diagnosis

        healthy = Diagnosis(
            context="alive", tensors=tuple(rows), environment=self._session.environment()
        )
        self._publish(healthy, update=False, display_id=uuid.uuid4().hex)

    def close(self) -> None:
        """Take the widget away; the ordinary outputs stay."""
        panel, self.panel = self.panel, None
        if panel is not None:
            panel.close()

    def _show_output(self, diagnosis: Diagnosis) -> None:
        self._session.diagnosis = diagnosis
        self.display_id = f"cudassert-{uuid.uuid4().hex}"
        self.parent = parent_of_current_cell(self._session.shell)
        self._publish(diagnosis, update=False)

    def _publish(
        self, diagnosis: Diagnosis, *, update: bool, display_id: str | None = None
    ) -> None:
        data = bundle(diagnosis, show_values=self._session.settings.show_values)
        self._session.shell.display_pub.publish(
            data=data,
            metadata={},
            transient={"display_id": display_id or self.display_id},
            update=update,
        )

    def _show_panel(self, diagnosis: Diagnosis) -> None:
        from cudassert_ipy.notebook.actions import Actions
        from cudassert_ipy.notebook.panel import Panel

        self.close()
        show_values = self._session.settings.show_values
        self.panel = Panel(Actions(self._session), show_values=show_values)
        self.panel.display()
        self.panel.offer(diagnosis)
