"""Which front end this kernel talks to, from what it left in the environment."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal, TypeAlias

FrontEnd: TypeAlias = Literal["terminal", "jupyter", "vscode", "colab", "headless"]


def front_end(shell: Any) -> FrontEnd:
    """Return the kind of front end.

    ``jupyter`` is JupyterLab or Notebook 7 (Jupyter Server 2 sets ``JPY_SESSION_NAME``); Colab sets
    ``COLAB_RELEASE_TAG``, VS Code ``VSCODE_PID`` or ``VSCODE_CWD``; ``headless`` is a kernel driven
    by a program (nbclient, papermill), where nobody can click.
    """
    if not hasattr(shell, "kernel"):
        return "terminal"
    if "google.colab" in sys.modules or "COLAB_RELEASE_TAG" in os.environ:
        return "colab"
    if "VSCODE_PID" in os.environ or "VSCODE_CWD" in os.environ:
        return "vscode"
    return "jupyter" if "JPY_SESSION_NAME" in os.environ else "headless"


def shows_buttons(kind: FrontEnd) -> bool:
    """Whether somebody can click there."""
    return kind in ("jupyter", "vscode", "colab")
