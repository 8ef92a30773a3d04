from __future__ import annotations

import pytest

from cudassert_ipy.notebook.debug_cell import blank_magic_line, find_magic_line


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("%%cuda_debug\nx", ""),
        ("%%cuda_debug --no-guard \nx", "--no-guard"),
        ("\n  \n%%cuda_debug --stats\nx", "--stats"),
        ("%%time\n%%cuda_debug\nx", ""),
        ("%%cuda_debugger\nx", None),
        ("x = 1\n%%cuda_debug", None),
        ("", None),
    ],
)
def test_options_are_found_where_the_magic_may_stand(source, options):
    """The magic counts on the first line or below other cell magics, nowhere else."""
    assert find_magic_line(source) == options


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["%%cuda_debug\n", "x\n"], ["# %%cuda_debug\n", "x\n"]),
        (["\n", "%%cuda_debug --stats\n", "x\n"], ["#\n", "# %%cuda_debug --stats\n", "x\n"]),
        (["%%cuda_debug\n", "%%time\n", "x\n"], ["%%time\n", "x\n"]),
        (["%%cuda_debug?\n"], ["%%cuda_debug?\n"]),
        (["%%cuda_debug --nonsense\n", "x\n"], ["%%cuda_debug --nonsense\n", "x\n"]),
        (["%%time\n", "x\n"], ["%%time\n", "x\n"]),
        ([], []),
    ],
)
def test_the_magic_line_becomes_a_comment(before, after):
    """Other lines keep their numbers; a second cell magic comes first."""
    assert blank_magic_line(before) == after
