"""How a report tells what a user's own rule found in a batch."""

import math

from cudassert_ipy.model import Diagnosis, Finding, Replay
from cudassert_ipy.report.text import one_line, render_text


def broken(**values: object) -> Diagnosis:
    data = {
        "operation": "check_batch",
        "aten": "",
        "operand": "values",
        "expression": 'batch["ids"]',
        **values,
    }
    replay = Replay(where="gpu", state="guard", outcome="raised")
    return Diagnosis(finding=Finding.from_dict(data), replay=replay, context="alive")


def test_a_rule_about_a_batch_says_nothing_of_a_launch() -> None:
    """What check_batch found is told without kernels, launches and the GPU."""
    diagnosis = broken(
        shape=(4,),
        minimum=0,
        maximum=9,
        valid_minimum=0,
        valid_maximum=4,
        bad_count=1,
        bad_positions=((3,),),
        bad_values=(9,),
    )
    text = render_text(diagnosis)
    assert '1 of 4 values in batch["ids"] is outside the rule' in text
    assert "Certain: these are the values of the batch." in text
    for word in ("GPU", "launch", "CUDA context", "check_batch"):
        assert word not in text + one_line(diagnosis)


def test_a_tensor_of_nan_is_told_in_two_words() -> None:
    """Where every value is NaN, no positions are listed."""
    nan = math.nan
    positions = tuple((n,) for n in range(9))
    diagnosis = broken(
        shape=(9,),
        minimum=nan,
        maximum=nan,
        nan_count=9,
        bad_count=9,
        bad_positions=positions,
        bad_values=(nan,) * 9,
    )
    text = render_text(diagnosis)
    assert "all NaN" in text
    assert "[0]" not in text
    assert "min NaN" not in text
