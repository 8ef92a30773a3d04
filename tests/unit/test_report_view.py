"""How numbers, sources and sentences are prepared for every renderer."""

import pytest

from cudassert_ipy import messages
from cudassert_ipy.model import Diagnosis, Failure, Finding, Outcome, Replay, TensorRow
from cudassert_ipy.report import numbers
from cudassert_ipy.report.finding import finding_title, short_operation
from cudassert_ipy.report.fragments import first_line
from cudassert_ipy.report.phrase import Part, as_text, phrase
from cudassert_ipy.report.source import marked_source
from cudassert_ipy.report.tensors import tensor_lines
from cudassert_ipy.report.view import view


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "n/a"),
        (1000, "1000"),
        (-1, "-1"),
        (0.25, "0.25"),
        (1e20, "1e+20"),
        (float("nan"), "NaN"),
        (float("-inf"), "-∞"),
    ],
)
def test_number(value: int | float | None, expected: str) -> None:
    """Values are written as a person reads them."""
    assert numbers.number(value) == expected


def test_monstrous_integer() -> None:
    """An integer that Python refuses to print is shown by its magnitude."""
    assert numbers.number(10**5000) == "±2^16610"
    assert numbers.count(10**5000) == "very many"


def test_template_values_are_not_templates() -> None:
    """Braces, backticks and asterisks in a value stay what they are."""
    said = phrase("a `b` {x:code} {y}", x="{y} `c`", y="**d**")

    assert said == (
        Part("a "),
        Part("b", "code"),
        Part(" "),
        Part("{y} `c`", "code"),
        Part(" "),
        Part("**d**"),
    )
    assert as_text(said) == "a b {y} `c` **d**"


def finding(**values: object) -> Finding:
    data = {"operation": "torch.gather", "aten": "aten.gather", "operand": "index", **values}
    return Finding.from_dict(data)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"bad_count": 1, "shape": [1]}, "1 of 1 value in index is out of range for gather"),
        ({"bad_count": 2, "shape": [4]}, "2 of 4 values in index are out of range for gather"),
        ({"bad_count": 9, "shape": []}, "9 of 9 values in index are out of range for gather"),
        ({}, "index is out of range for gather"),
    ],
)
def test_title(values: dict[str, object], expected: str) -> None:
    """The title counts in plain English, and never counts more values than there are."""
    assert as_text(finding_title(finding(**values))) == expected


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("torch.nn.functional.embedding", "embedding"),
        ("x[index]", "x[index]"),
        ("Tensor.index_put_", "index_put_"),
    ],
)
def test_short_operation(operation: str, expected: str) -> None:
    """Only dotted names are shortened."""
    assert short_operation(operation) == expected


@pytest.mark.parametrize(
    ("column", "end_column", "marked"),
    [
        (4, 8, "f(x)"),
        (None, None, ""),
        (4, None, ""),
        (-5, 3, "y ="),
        (4, 10_000, "f(x) + 1"),
        (9_999, 10_000, ""),
        (8, 4, ""),
    ],
)
def test_marked_source(column: int | None, end_column: int | None, marked: str) -> None:
    """Columns outside of the line mark nothing, and never lose a part of it."""
    source = marked_source(finding(source="y = f(x) + 1", column=column, end_column=end_column))

    assert source is not None
    assert source.marked == marked
    assert source.text == "y = f(x) + 1"


def test_short_vector_says_positions_once() -> None:
    """Batch rows of a vector are its positions and are not said again."""
    vector = finding(shape=[4], bad_count=1, bad_positions=[[2]], bad_values=[9], batch_rows=[2])
    matrix = finding(
        shape=[4, 2], bad_count=1, bad_positions=[[2, 0]], bad_values=[9], batch_rows=[2]
    )

    keys = [
        [row.key for row in view(Diagnosis(finding=item, context="alive")).rows]
        for item in (vector, matrix)
    ]
    assert "rows" not in keys[0]
    assert "rows" in keys[1]


def test_requirement_stands_where_no_range_is_known() -> None:
    """An operand without a range (a sum, a count) shows what must hold instead."""
    item = finding(requirement="the values must sum to more than 0")
    rows = {row.key: as_text(row.text) for row in view(Diagnosis(finding=item)).rows}

    assert rows["allowed"] == "the values must sum to more than 0"


def test_tensor_table_shows_bad_rows_first_and_is_bounded() -> None:
    """Of many tensors the offending ones come first and the rest is counted."""
    good = TensorRow(name="good", role="index", operation="f")
    bad = TensorRow(name="bad", role="target", operation="f", bad_count=2)
    lines, more = tensor_lines(Diagnosis(tensors=(good,) * 60 + (bad,)))

    assert lines[0].cells[0] == "bad"
    assert len(lines) + more == 61
    assert more > 0


def test_tensor_table_filters() -> None:
    """The table shows one role, or only rows with offending values."""
    good = TensorRow(name="good", role="index", operation="f")
    bad = TensorRow(name="bad", role="target", operation="f", bad_count=2)
    diagnosis = Diagnosis(tensors=(good, bad))

    assert [line.cells[0] for line in tensor_lines(diagnosis, role="index")[0]] == ["good"]
    assert [line.cells[0] for line in tensor_lines(diagnosis, only_bad=True)[0]] == ["bad"]
    assert tensor_lines(diagnosis, role="count")[0] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", "import torch"),
        ("# data\nx = 1\ny = 2", "x = 1 …"),
        ("\n\n  x = 1\n", "x = 1"),
        ("# only a comment", "# only a comment"),
        ("", ""),
    ],
)
def test_first_line(source: str, expected: str) -> None:
    """A cell is named by its first line of code."""
    assert first_line(source) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0 B"), (999, "999 B"), (1_234_567, "1.23 MB"), (5 * 10**15, "5,000 TB"), (-3, "0 B")],
)
def test_size_text(size: int, expected: str) -> None:
    """Sizes are short."""
    assert numbers.size_text(size) == expected


@pytest.mark.parametrize("outcome", ["inconclusive", "timed_out", "clean"])
def test_typical_causes_stand_high_where_the_replay_has_no_answer(outcome: Outcome) -> None:
    """Under the fold nobody looks for them; beside good data they would accuse it."""
    advice = (messages.ADVICE_CAUSES.format(causes="an id too large"), "Something else.")
    shown = view(
        Diagnosis(
            failure=Failure(kind="device_assert", advice=advice),
            replay=Replay(where="cpu", state="after_failure", outcome=outcome),
        )
    )
    likely = messages.LABELS["causes"]
    folded = [item.label for detail in shown.details for item in detail.rows]
    if outcome == "clean":
        assert likely in folded
        assert all(item.label != likely for item in shown.rows)
    else:
        assert (shown.rows[1].label, as_text(shown.rows[1].text)) == (likely, "an id too large.")
        assert likely not in folded
    assert messages.LABELS["advice"] in folded


def test_zeros_are_not_blamed_for_a_doubt_of_another_kind() -> None:
    """Lost weights say nothing of a loop's counter that moved on; the note does."""
    doubt = messages.DOUBT_CHANGED.format(names="i")
    for note, said in ((doubt, messages.NOT_CERTAIN_NOTE), ("Batch 3.", messages.NOT_CERTAIN)):
        shown = view(
            Diagnosis(
                finding=finding(certainty="depends_on_substitutes"),
                replay=Replay(
                    where="cpu", state="after_failure", outcome="raised", substituted=4, note=note
                ),
            )
        )
        [row] = [item for item in shown.rows if item.label == messages.LABELS["certainty"]]
        assert as_text(row.text) == said
