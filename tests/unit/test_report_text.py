"""The text renderer and the line above the traceback."""

import unicodedata

import pytest

from cudassert_ipy import messages
from cudassert_ipy.model import (
    Assertion,
    Cell,
    Diagnosis,
    Environment,
    Failure,
    Finding,
    Replay,
    ReportedAt,
)
from cudassert_ipy.report.text import one_line, render_failure, render_text

EMBEDDING = Finding(
    operation="torch.nn.functional.embedding",
    aten="aten.embedding.default",
    operand="input",
    expression="ids",
    line=5,
    column=13,
    end_column=23,
    source="    hidden = embed(ids).mean(1)",
    shape=(4, 8),
    dtype="int64",
    minimum=0,
    maximum=1000,
    valid_minimum=0,
    valid_maximum=999,
    bad_count=1,
    bad_positions=((3, 7),),
    bad_values=(1000,),
    batch_rows=(3,),
)
ASSERT = Failure(kind="device_assert", code=710, context="dead")


def test_caret_marks_the_call() -> None:
    """The carets stand under the failing call, also when the line was indented in the cell."""
    lines = render_text(Diagnosis(finding=EMBEDDING, context="dead")).splitlines()
    index = next(i for i, line in enumerate(lines) if "hidden" in line)

    start = lines[index].index("embed(ids)")
    assert lines[index + 1].index("^") == start
    assert lines[index + 1].count("^") == len("embed(ids)")


def test_caret_counts_wide_characters() -> None:
    """A character that a terminal shows two columns wide shifts the carets by two."""
    source = "名 = embed(ids)"
    finding = Finding(
        operation="f", aten="f", operand="x", line=1, column=4, end_column=14, source=source
    )
    lines = render_text(Diagnosis(finding=finding, context="alive")).splitlines()
    index = next(i for i, line in enumerate(lines) if "embed" in line)

    before = lines[index][: lines[index].index("embed")]
    columns = sum(2 if unicodedata.east_asian_width(char) == "W" else 1 for char in before)
    assert lines[index + 1].index("^") == columns


@pytest.mark.parametrize("width", [20, 40, 60, 88, 200])
def test_width(width: int) -> None:
    """Nothing is wider than asked for, except that less than 40 columns count as 40."""
    finding = Diagnosis(failure=ASSERT, finding=EMBEDDING, context="dead")

    assert max(map(len, render_text(finding, width=width).splitlines())) <= max(width, 40)


def test_long_source_line_is_cut_around_the_call() -> None:
    """Of a long line the failing call stays visible."""
    source = "a = " + "x" * 300 + " + embed(ids) + " + "y" * 300
    start = source.index("embed")
    finding = Finding(
        operation="f",
        aten="f",
        operand="x",
        line=1,
        column=start,
        end_column=start + 10,
        source=source,
    )
    lines = render_text(Diagnosis(finding=finding, context="alive"), width=60).splitlines()
    index = next(i for i, line in enumerate(lines) if "│" in line)

    start = lines[index].index("embed(ids)")
    assert lines[index + 1][start:] == "^" * 10
    assert len(lines[index]) <= 60


def test_no_ansi_even_when_color_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """text/plain has no escape codes, whatever the environment asks of rich."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    assert "\x1b" not in render_text(Diagnosis(finding=EMBEDDING, context="dead"))


def test_one_line_of_a_dead_context() -> None:
    """The line above the traceback says what failed, that the context is dead, and who talks."""
    assertion = Assertion(
        expression="i < n", file="x.cu", line=1, function="f", operations=("torch.gather",)
    )
    failure = Failure(kind="device_assert", context="dead", assertions=(assertion,))
    at = ReportedAt(line=2, source="x.item()")
    line = one_line(Diagnosis(failure=failure, context="dead", reported_at=at))

    assert line.startswith("cudassert_ipy: CUDA: device-side assert in torch.gather.")
    assert "This kernel's CUDA context is dead." in line
    assert "only where Python noticed" in line
    assert "\n" not in line
    assert "line below" not in one_line(Diagnosis(failure=failure, context="dead"))


def test_one_line_does_not_doubt_a_blocking_launch() -> None:
    """With blocking launches the marked line is the right one, and is not called doubtful."""
    failure = Failure(kind="device_assert", context="dead", blocking=True)
    at = ReportedAt(line=2, source="x.item()")
    line = one_line(Diagnosis(failure=failure, context="dead", reported_at=at))

    assert "only where Python noticed" not in line


def test_innocent_cell() -> None:
    """An innocent cell is told which cell killed the context and that nothing is wrong with it."""
    innocent = Diagnosis(
        failure=ASSERT, cell=Cell(execution_count=9, first_failed=7, innocent=True), context="dead"
    )

    for shown in (one_line(innocent), render_text(innocent, width=200)):
        assert "dead since cell [7]; nothing is wrong with this cell" in shown
        assert len(shown.splitlines()) == 1


def test_advice_is_not_said_twice() -> None:
    """In a kernel the restart stands under the next steps, so the advice for logs is left out."""
    advice = (messages.ADVICE_RESTART, "Typical causes: labels counted from 1.")
    failure = Failure(kind="device_assert", context="dead", advice=advice)
    in_kernel = render_text(Diagnosis(failure=failure, context="dead"), width=300)

    assert messages.ADVICE_RESTART not in in_kernel
    assert "Typical causes: labels counted from 1." in in_kernel
    assert messages.ADVICE_RESTART in render_failure(failure, width=300)


def test_context_alive() -> None:
    """Out of memory gets one line, which says that no restart is needed."""
    failure = Failure(kind="out_of_memory", context="alive", message="CUDA out of memory.")
    shown = render_text(Diagnosis(failure=failure, context="alive"), width=300)

    assert shown.startswith("CUDA: out of GPU memory.")
    assert shown.endswith("The CUDA context is alive; no restart is needed.")
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("outcome", "honest"),
    [
        ("clean", "Not ruled out"),
        ("inconclusive", "does not rule one out"),
        ("crashed", "says nothing about your code"),
        ("timed_out", "without an answer"),
        ("cancelled", "Nothing was changed"),
    ],
)
def test_outcomes_are_honest(outcome: str, honest: str) -> None:
    """A replay without a finding says what is not known, and does not claim a cause."""
    replay = Replay.from_dict({"where": "cpu", "state": "after_failure", "outcome": outcome})
    diagnosis = Diagnosis(
        failure=ASSERT, replay=replay, context="dead", actions=("restart_and_replay",)
    )
    shown = render_text(diagnosis, width=300)

    assert honest in shown
    assert "out of range for" not in shown
    assert "Restart and replay" in shown


def test_dead_context_asks_for_a_restart_before_the_cell_runs_again() -> None:
    """After a finding the next step names the restart, but only where the context is dead."""
    dead = render_text(Diagnosis(finding=EMBEDDING, context="dead"), width=200)
    alive = render_text(Diagnosis(finding=EMBEDDING, context="alive"), width=200)

    assert (
        "Fix line 5, restart the kernel (`%cuda_debug restart`), then run the cell again." in dead
    )
    assert "Fix line 5, then run the cell again." in alive
    assert "restart the kernel" not in alive


def test_simulated_device_is_said() -> None:
    """What a simulated device showed is never taken for evidence about a GPU."""
    simulated = Diagnosis(
        finding=EMBEDDING, context="dead", environment=Environment(simulated=True)
    )

    assert "not evidence about a GPU" in render_text(simulated)
    assert "simulated device" in one_line(simulated)


def test_log_does_not_speak_of_this_kernel() -> None:
    """An explained log tells of that process, not of a kernel or of buttons."""
    shown = render_failure(ASSERT)

    assert "kernel's" not in shown
    assert "%cuda_debug" not in shown
    assert "That process's CUDA context is dead" in shown


def test_log_of_a_live_context_is_explained_in_full() -> None:
    """In a log, an error that kills nothing is explained with its message: no traceback is near."""
    failure = Failure(kind="out_of_memory", context="alive", message="Tried to allocate 2 GiB")

    assert "Tried to allocate 2 GiB" in render_failure(failure)


def test_text_without_cuda_error() -> None:
    """A log without CUDA error is called just that."""
    assert render_failure(Failure(kind="not_cuda")) == "No CUDA error found in this text."
