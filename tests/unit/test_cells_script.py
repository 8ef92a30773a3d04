"""The cells that lead to a failure as one script."""

import pytest

from cudassert_ipy import messages
from cudassert_ipy.replay.cells_script import MAX_TEXT, cells_scripts
from cudassert_ipy.replay.script import CannotWriteError


def scripts(*sources, line=None):
    """Return the scripts of cells that are called A, B, C."""
    return cells_scripts(sources, "ABCDEFG"[: len(sources)], ["head"], line)


def test_the_short_one_first_and_all_cells_last():
    """Both have the cells' names; only the long one has comments and what is not needed."""
    short, whole = scripts("x = 1  # one\nz = 3", "print(z)", "y = x\nw = 2", line=1)
    assert short.text == "# head\n\n# A\nx = 1\n\n# C\ny = x\n"
    assert (short.kept, short.total, short.is_whole) == (2, 4, False)
    assert whole.text == "# head\n\n# A\nx = 1  # one\nz = 3\n\n# B\nprint(z)\n\n# C\ny = x\n"
    assert whole.is_whole


def test_future_imports_stand_first():
    """Python takes them nowhere else."""
    for script in scripts("a = 1", "from __future__ import annotations\nx = 1", "y = x"):
        assert script.text.startswith("# head\nfrom __future__ import annotations\n")
        compile(script.text, "<script>", "exec")


def test_display_is_imported():
    """What only a notebook has without an import gets one."""
    (script,) = scripts("x = 1\nfor i in range(x): display(i)", "y = [x, i]")
    assert "from IPython.display import display\n" in script.text


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("await f()", messages.SCRIPT_AWAITS),
        ("get_ipython().ast_transformers", messages.SCRIPT_IPYTHON),
        ("x = = 1", messages.SCRIPT_NO_PYTHON),
        ("x = '" + "a" * MAX_TEXT + "'", messages.SCRIPT_TOO_LONG),
    ],
)
def test_what_no_script_can_hold(cell, why):
    """It is refused, with the reason."""
    with pytest.raises(CannotWriteError, match="^" + why[:20]):
        scripts(cell, "y = x")
