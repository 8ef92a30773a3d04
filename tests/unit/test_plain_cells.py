"""Cells as plain Python: what becomes a comment, and that lines stay where they are."""

import pytest

from cudassert_ipy.notebook.plain_cells import plain_python

CELLS = {
    "x = 1\ny = 2": ["x = 1", "y = 2"],
    "\n\n%%time\nx = 1": ["#", "#", "# %%time", "x = 1"],
    "%%cuda_debug --stats\nx = 1": ["# %%cuda_debug --stats", "x = 1"],
    "%%bash\nrm -rf x": ["# %%bash", "# rm -rf x"],
    "%matplotlib inline\nx = 1": [
        "# get_ipython().run_line_magic('matplotlib', 'inline')",
        "x = 1",
    ],
    "if x:\n    %cd y\n    z = 1": [
        "if x:",
        "    pass  # get_ipython().run_line_magic('cd', 'y')",
        "    z = 1",
    ],
    "!ls\nx = 1": ["# get_ipython().system('ls')", "x = 1"],
    "f = !ls": ["# f = get_ipython().getoutput('ls')"],
    "%time y = f(x)": ["y = f(x)"],
    "x?": ["# get_ipython().run_line_magic('pinfo', 'x')"],
}


@pytest.mark.parametrize("source", CELLS)
def test_lines_stay_in_place(source):
    """Each line of the cell is one line of Python or of comment."""
    assert plain_python(source).splitlines() == CELLS[source]
    compile(plain_python(source), "<cell>", "exec")


def test_no_python():
    """What IPython would refuse is refused."""
    with pytest.raises(SyntaxError):
        plain_python("x = = 1")
