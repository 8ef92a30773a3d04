from __future__ import annotations

from dataclasses import replace

import pytest

from cudassert_ipy import messages
from cudassert_ipy.model import Assertion, Diagnosis, Environment, Failure, Finding, Replay
from cudassert_ipy.notebook.judging import judge

EMBEDDING = "torch.nn.functional.embedding"
ASSERTION = Assertion(
    expression="srcIndex < srcSelectDimSize",
    file="Indexing.cu",
    line=1,
    function=None,
    operations=(EMBEDDING,),
    known=True,
)


def diagnosis(*, outcome="raised", state="after_failure", operation=EMBEDDING, known=True):
    finding = Finding(operation=operation, aten="a", operand="o") if outcome == "raised" else None
    assertion = ASSERTION if known else Assertion(**{**_fields(ASSERTION), "known": False})
    return Diagnosis(
        failure=Failure(kind="device_assert", assertions=(assertion,)),
        finding=finding,
        replay=Replay(where="cpu", state=state, outcome=outcome),
    )


def _fields(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_nothing_speaks_against_a_matching_finding():
    """The diagnosis stays as it is."""
    given = diagnosis()
    assert judge(given, ()) == given


def test_changed_inputs_make_a_finding_uncertain():
    """The names are said, and the certainty goes."""
    judged = judge(diagnosis(), ("labels", "queue"))
    assert judged.finding.certainty == "depends_on_substitutes"
    assert "labels, queue" in judged.replay.note


def test_changed_inputs_do_not_touch_a_checkpoint():
    """A checkpoint has the state from before the cell."""
    given = diagnosis(state="checkpoint")
    assert judge(given, ("labels",)) == given


def test_another_operation_than_the_device_named_is_doubted():
    """A finding in another operation may be a second mistake."""
    judged = judge(diagnosis(operation="torch.nn.functional.cross_entropy"), ())
    assert judged.finding.certainty == "depends_on_substitutes"
    assert EMBEDDING in judged.replay.note
    unknown = diagnosis(operation="torch.nn.functional.cross_entropy", known=False)
    assert judge(unknown, ()) == unknown


def test_a_clean_replay_after_an_assert_is_not_clean():
    """The device found a bad value: what ran were not the values of that run."""
    judged = judge(diagnosis(outcome="clean"), ())
    assert judged.replay.outcome == "inconclusive"
    assert judge(diagnosis(outcome="clean", state="checkpoint"), ()).replay.outcome == "clean"


@pytest.mark.parametrize("state", ["after_failure", "checkpoint"])
def test_known_bug_of_this_torch_is_named_where_the_data_is_good(state):
    """A clean replay and a torch with a bug that fits: one possibility, with its thread."""
    given = replace(
        diagnosis(outcome="clean", state=state), environment=Environment(torch="1.8.1+cu111")
    )

    replay = judge(given, ()).replay
    said = replay.reasons[0] if replay.outcome == "clean" else replay.note
    assert "pytorch/pytorch#55027" in said


@pytest.mark.parametrize(
    ("outcome", "environment"),
    [
        ("raised", Environment(torch="1.8.1+cu111")),
        ("timed_out", Environment(torch="1.8.1+cu111")),
        ("clean", Environment(torch="2.15.0+cu130")),
        ("clean", Environment(torch="1.8.1+cu111", simulated=True)),
        ("clean", Environment()),
    ],
)
def test_no_bug_is_named_otherwise(outcome, environment):
    """Not beside a finding, without a replay that ended, in another torch, or on the simulator."""
    given = replace(diagnosis(outcome=outcome, state="checkpoint"), environment=environment)

    replay = judge(given, ()).replay
    assert replay.note is None
    assert not any("pytorch/pytorch#" in reason for reason in replay.reasons)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("illegal_memory_access", "race"),
        ("ecc_error", "memory fault"),
        ("library_error", "library"),
    ],
)
def test_the_kind_of_the_error_is_a_reason_where_the_data_is_good(kind, reason):
    """After what the replay itself saw, and at most three in all."""
    given = diagnosis(outcome="clean", state="checkpoint")
    given = replace(
        given,
        failure=Failure(kind=kind),
        replay=replace(given.replay, reasons=("one", "two")),
    )
    *first, last = judge(given, ()).replay.reasons
    assert first == ["one", "two"]
    assert reason in last
    many = replace(given, replay=replace(given.replay, reasons=tuple("abcde")))
    assert judge(many, ()).replay.reasons == ("a", "b", "c")


@pytest.mark.parametrize(
    ("fence", "blocking", "said"), [(True, None, False), (False, None, True), (False, True, False)]
)
def test_another_cell_is_a_reason_only_without_the_fence(fence, blocking, said):
    """With the fence, or with blocking launches, an error belongs to the cell it is reported in."""
    given = diagnosis(outcome="clean", state="checkpoint")
    given = replace(given, failure=replace(given.failure, blocking=blocking))
    reasons = judge(given, (), fence=fence).replay.reasons
    assert (messages.OPEN_EARLIER in reasons) is said
