"""What a replay says beside the first finding: other bad operands, reasons, crashes."""

from __future__ import annotations

import json

import pytest
from torch.nn import functional

from cudassert_ipy import messages
from cudassert_ipy.replay.crash import describe_crash
from cudassert_ipy.standin import modes
from tests.unit.test_replay_outcomes import SETUP, notebook  # noqa: F401  the fixture

TRY = "try:\n    {}\nexcept Exception:\n    pass\n"


def test_all_bad_operands_that_an_except_let_pass_are_told(notebook):  # noqa: F811
    """The first is the finding, the others stand beside it in their order, each with its place."""
    notebook.cell(SETUP + "x = torch.zeros(4, 5).cuda(); i = torch.tensor([5, 9]).cuda()")
    cell = (
        TRY.format("emb(ids)")
        + TRY.format("x.gather(1, i[None])")
        + "x.index_select(1, i - 5)\n"
        + TRY.format("F.one_hot(i, 7)")
        + "print('the end')"
    )
    result = notebook.replay(cell)
    assert result.replay.outcome == "raised"
    assert (result.finding.expression, result.finding.line) == ("ids", 2)
    assert [(f.operation, f.line, f.bad_values) for f in result.more] == [
        ("torch.gather", 6, (5, 9)),
        ("torch.nn.functional.one_hot", 11, (9,)),
    ]
    assert all(f.frames[-1].line == f.line for f in result.more)
    assert "the end" in result.output


def test_both_bad_indices_of_one_call_are_told(notebook):  # noqa: F811
    """x[a, b] with two bad operands names both."""
    notebook.cell("x = torch.zeros(4, 5).cuda(); a = torch.tensor([4]).cuda(); b = a + 3")
    result = notebook.replay("x[a, b].sum().item()")
    assert [f.expression for f in (result.finding, *result.more)] == ["a", "b"]


def test_a_loop_of_swallowed_errors_is_told_once(notebook):  # noqa: F811
    """One place in the code is one finding, however often it is met, and others still have room."""
    notebook.cell(SETUP)
    cell = (
        "for n in range(300):\n"
        "    try:\n        emb(ids + n)\n    except Exception:\n        pass\n"
        + TRY.format("F.one_hot(ids, 4)")
    )
    result = notebook.replay(cell)
    assert [f.line for f in (result.finding, *result.more)] == [3, 7]
    assert result.finding.maximum == 1000


def test_nothing_is_invented_after_the_exception(notebook):  # noqa: F811
    """Where nothing swallowed the first error, the cell stopped there and so does the replay."""
    notebook.cell(SETUP)
    result = notebook.replay("emb(ids)\nemb(ids + 1)")
    assert result.more == ()


def test_the_origin_comes_with_the_finding(notebook):  # noqa: F811
    """The operations of the cell that made the values arrive with the finding."""
    notebook.cell(SETUP)
    result = notebook.replay("half = ids // 2\nlate = half + 700\nemb(late).sum().item()")
    assert [(o.line, o.expression, o.minimum, o.maximum) for o in result.finding.origin] == [
        (1, "ids // 2", 0, 500),
        (2, "half + 700", 700, 1200),
    ]
    assert result.finding.origin[1].note == messages.ORIGIN_BORN


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("torch.rand(3, device='cuda').sum()", messages.OPEN_RANDOM),
        ("F.dropout(torch.ones(3, device='cuda')).sum()", messages.OPEN_RANDOM),
        (
            "(torch.ones(3, device='cuda').half() + 1).sum()",
            messages.OPEN_PRECISION.format(dtypes="float16"),
        ),
        ("torch.compile(lambda v: v + 1)(torch.ones(3, device='cuda'))", messages.OPEN_COMPILED),
    ],
)
def test_a_clean_replay_tells_what_this_cell_leaves_open(notebook, source, reason):  # noqa: F811
    """Only what the cell did is a reason."""
    notebook.cell(SETUP)
    result = notebook.replay(source)
    assert result.replay.outcome == "clean", result.replay
    assert result.replay.reasons == (reason,)


def test_a_clean_replay_of_plain_arithmetic_leaves_nothing_special_open(notebook):  # noqa: F811
    """Random numbers of the CPU and float32 are no reasons."""
    notebook.cell("x = torch.ones(3)")
    result = notebook.replay("(x.cuda() + torch.rand(3).cuda()).sum().item()")
    assert (result.replay.outcome, result.replay.reasons) == ("clean", ())


@pytest.mark.parametrize(
    "division",
    [
        "a // b",
        "a % b",
        "torch.div(a, b, rounding_mode='trunc')",
        "torch.fmod(a, b)",
        "a.clone().remainder_(b)",
        "a.clone().floor_divide_(b)",
        "a // 0",
        "a.to(torch.uint8) % 0",
    ],
)
def test_integer_division_by_zero_is_no_failure(notebook, division):  # noqa: F811
    """The cell goes on as on a GPU, and it is said what stood in."""
    notebook.cell("a = torch.tensor([7, 8]).cuda(); b = torch.tensor([0, 3]).cuda()")
    result = notebook.replay(f"q = {division}\nprint(q.tolist())\nx = 1")
    assert result.replay.exception is None
    assert result.replay.note.count("divided by zero") == 1
    first, second = json.loads(result.output)
    assert first in (-1, 255)
    assert second == 2 or "0" in division


def test_an_index_made_of_a_division_by_zero_is_not_certain(notebook):  # noqa: F811
    """The number is a guess, and so is a finding that rests on it."""
    notebook.cell(SETUP)
    result = notebook.replay("emb(ids // (ids - 1)).sum().item()")
    assert result.finding.bad_values[0] == -1
    assert result.finding.certainty == "depends_on_substitutes"
    assert "divided by zero" in result.replay.note


def test_division_by_zero_on_the_host_still_raises(notebook):  # noqa: F811
    """A CPU tensor divided by zero raises in the kernel as well."""
    notebook.cell(SETUP)
    result = notebook.replay("torch.tensor([1]) // 0")
    assert "ZeroDivisionError" in result.replay.exception


def test_a_crash_names_its_line(notebook):  # noqa: F811
    """The process is gone; the line that killed it is not."""
    notebook.cell(SETUP)
    notebook.cell("import ctypes\ndef boom():\n    return ctypes.string_at(0)")
    result = notebook.replay("emb(ids - 1)\nboom()")
    assert result.replay.outcome == "crashed"
    assert "SIGSEGV" in result.replay.note
    assert "`return ctypes.string_at(0)`" in result.replay.note
    assert result.output == ""


def test_a_finding_before_a_crash_is_kept_and_said(notebook):  # noqa: F811
    """What the check found before the crash is the finding."""
    notebook.cell(SETUP)
    result = notebook.replay("import ctypes\n" + TRY.format("emb(ids)") + "ctypes.string_at(0)")
    assert result.replay.outcome == "raised"
    assert result.finding.bad_values == (1000,)
    assert messages.REPLAY_FOUND_BEFORE in result.replay.note


def test_a_crash_inside_torch_names_the_operation():
    """The function of torch between the user's line and the kernel is the operation."""
    text = (
        "some output\nFatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f (most recent call first):\n"
        f'  File "{modes.__file__}", line 2 in _run\n'
        f'  File "{functional.__file__}", line 3 in ctc_loss\n'
        '  File "<ipython-input-9-none>", line 4 in <module>\n'
        "\nExtension modules: a.b (total: 1)\n"
    )
    said = describe_crash(text, "SIGSEGV")
    assert "ctc_loss" in said
    assert "SIGSEGV" in said


@pytest.mark.parametrize(
    ("output", "how"),
    [
        ("", "SIGKILL"),
        ("Fatal Python error: x", "SIGSEGV"),
        ("Fatal Python error: " * 5000, ""),
        ('Fatal Python error: a\n\nThread 0x1\n  File "x", line ' + "9" * 9000, "SIGABRT"),
    ],
)
def test_an_unknown_crash_is_said_as_such(output, how):
    """Without a stack nothing is named."""
    expected = how or messages.REPLAY_UNKNOWN_END
    assert describe_crash(output, how) == messages.REPLAY_CRASHED.format(how=expected)


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ((3,), "end of cell [3]."),
        ((3, 5), "end of cells [3] and [5]."),
        ((1, 3, 5), "end of cells [1], [3] and [5]."),
        (tuple(range(2, 90)), "end of cells [2] to [89]."),
    ],
)
def test_the_cells_that_the_values_are_of_are_named(cells, text):
    """As prompts, in one short list."""
    assert messages.values_of_cells(cells).endswith(text)
