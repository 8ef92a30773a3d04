from __future__ import annotations

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudassert_ipy.model import (
    Assertion,
    Cell,
    Diagnosis,
    Environment,
    Failure,
    Finding,
    Frame,
    Record,
    Replay,
    ReportedAt,
    TensorRow,
)

CLASSES = [
    Assertion,
    Cell,
    Diagnosis,
    Environment,
    Failure,
    Finding,
    Frame,
    Replay,
    ReportedAt,
    TensorRow,
]


def same(one, other):
    """Equality that takes NaN for equal to NaN."""
    return repr(one) == repr(other)


@pytest.mark.parametrize("cls", CLASSES)
def test_json_brings_the_record_back(cls):
    """Every record survives strict JSON unchanged, NaN and infinities included."""

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.from_type(cls))
    def check(record):
        text = json.dumps(record.to_dict(), allow_nan=False)
        back = cls.from_dict(json.loads(text))
        assert same(back.to_dict(), record.to_dict())

    check()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=9), children)
    ),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(CLASSES), st.data())
def test_hostile_data_is_refused_by_value_error(cls, data):
    """Whatever JSON arrives, it is a record or a ValueError."""
    names = st.sampled_from([*cls.__dataclass_fields__, "other"])
    content = data.draw(JSON | st.dictionaries(names, JSON))
    try:
        record = cls.from_dict(content)
    except ValueError:
        return
    assert isinstance(record, Record)
    json.dumps(record.to_dict(), allow_nan=False)


def test_non_finite_numbers_are_words():
    """NaN and the infinities are written as words, which JSON can hold."""
    finding = Finding(operation="f", aten="f", operand="x", minimum=-math.inf, maximum=math.nan)
    data = finding.to_dict()
    assert (data["minimum"], data["maximum"]) == ("-inf", "nan")
    assert Finding.from_dict(data).minimum == -math.inf


def test_unknown_keys_are_ignored_and_missing_ones_named():
    """A newer writer can be read; a missing key is named in the error."""
    assert Cell.from_dict({"later": 1}) == Cell()
    with pytest.raises(ValueError, match=r"Finding\.aten: missing"):
        Finding.from_dict({"operation": "f"})


def test_a_flag_is_no_number():
    """true is not accepted where a number belongs."""
    with pytest.raises(ValueError, match="execution_count"):
        Cell.from_dict({"execution_count": True})


def test_the_contract_keys():
    """The keys that other programs read."""
    diagnosis = Diagnosis(failure=Failure(kind="device_assert"))
    assert set(diagnosis.to_dict()) == {
        "version", "failure", "cell", "reported_at", "finding", "more", "replay",
        "tensors", "context", "actions", "environment",
    }  # fmt: skip
    assert set(diagnosis.to_dict()["failure"]) == {
        "version", "kind", "code", "platform", "context", "sticky", "process", "blocking",
        "message", "assertions", "advice",
    }  # fmt: skip
