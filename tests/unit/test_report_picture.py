"""The range picture."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cudassert_ipy.model import Finding
from cudassert_ipy.report.picture import picture, text_bar

NUMBERS = st.none() | st.integers() | st.floats()


def finding(low: object, high: object, minimum: object, maximum: object, nan: int = 0) -> Finding:
    return Finding(
        operation="f",
        aten="f",
        operand="x",
        valid_minimum=low,  # type: ignore[arg-type]
        valid_maximum=high,  # type: ignore[arg-type]
        minimum=minimum,  # type: ignore[arg-type]
        maximum=maximum,  # type: ignore[arg-type]
        nan_count=nan,
    )


def bar(*values: object, nan: int = 0) -> str:
    drawing = picture(finding(*values, nan=nan))
    assert drawing is not None
    return text_bar(drawing, width=10)


def test_value_above() -> None:
    """A value beyond the range stands outside the bracket that closes it."""
    assert bar(0, 999, 0, 1000) == "[0 ━━━━━━━━━━ 999] ✗ 1000"


def test_value_below() -> None:
    """A value below the range stands before the bracket that opens it."""
    assert bar(0, 9, -1, 4) == "✗ -1 [0 ━━━━━───── 9]"


def test_nothing_inside() -> None:
    """Where no value lies inside the range, nothing is filled."""
    assert bar(0, 9, 12, 12) == "[0 ────────── 9] ✗ 12"


def test_one_value_inside() -> None:
    """Where all values inside the range are one, it is seen on the track."""
    assert bar(0, 10, 5, 5, nan=1) == "[0 ─────━──── 10] ✗ 1 NaN"


def test_no_upper_limit() -> None:
    """A range without upper limit is open to the right."""
    assert bar(0, math.inf, -0.5, 2.0) == "✗ -0.5 [0 ━━━━━━━━━━ …"


def test_nan() -> None:
    """NaN has no place on the track and is counted beside it."""
    assert bar(0, 1, 0.0, 1.0, nan=3) == "[0 ━━━━━━━━━━ 1] ✗ 3 NaN"


def test_one_valid_value() -> None:
    """A range of a single value can be drawn."""
    assert bar(0, 0, 0, 3) == "[0 ━━━━━━━━━━ 0] ✗ 3"


def test_no_picture_without_values() -> None:
    """Without values, without range or with an empty range there is nothing to draw."""
    assert picture(finding(0, 9, None, None)) is None
    assert picture(finding(None, None, 0, 3)) is None
    assert picture(finding(0, -1, 0, 3)) is None


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 5))
def test_any_numbers(low: object, high: object, minimum: object, maximum: object, nan: int) -> None:
    """Whatever the numbers, the filled part lies on the track and the bar keeps its length."""
    drawing = picture(finding(low, high, minimum, maximum, nan=nan))

    if drawing is not None:
        start, end = drawing.fill or (0.0, 0.0)
        assert 0 <= start <= end <= 1
        track = [char for char in text_bar(drawing, width=20) if char in "━─"]
        assert len(track) == 20


def test_a_special_value_is_not_drawn_as_bad() -> None:
    """An allowed ignore_index outside the range is not marked; a bad value beside it is."""
    given_finding = replace(finding(0, 4, 0, 255), special_values=(255,), bad_values=(5,))
    drawing = picture(given_finding)
    assert drawing is not None
    assert (drawing.below, drawing.above) == ("", "5")
    drawing = picture(replace(given_finding, bad_values=(-1,), minimum=-1))
    assert drawing is not None
    assert (drawing.below, drawing.above) == ("-1", "")
