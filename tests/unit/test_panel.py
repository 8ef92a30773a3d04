"""The widget panel, driven through the widgets that a page would show."""

import builtins
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

ipywidgets = pytest.importorskip("ipywidgets")

from cudassert_ipy import messages  # noqa: E402
from cudassert_ipy.model import (  # noqa: E402
    Diagnosis,
    Failure,
    Finding,
    Replay,
    TensorRow,
)
from cudassert_ipy.notebook.panel import Panel  # noqa: E402
from cudassert_ipy.notebook.reproducing import Reproducer  # noqa: E402
from cudassert_ipy.restart.plan import Loss, PlanStep, RestartPlan  # noqa: E402

DEAD = Diagnosis(
    failure=Failure(kind="device_assert", context="dead"),
    context="dead",
    actions=("replay", "restart_and_replay", "restart", "report"),
)
FOUND = Diagnosis(
    failure=DEAD.failure,
    context="dead",
    finding=Finding(
        operation="torch.gather",
        aten="aten.gather.default",
        operand="index",
        expression="where",
        line=3,
        source="x.gather(0, where)",
        shape=(4,),
        minimum=0,
        maximum=9,
        valid_minimum=0,
        valid_maximum=3,
        bad_count=1,
        bad_positions=((2,),),
        bad_values=(9,),
    ),
    replay=Replay(where="cpu", state="after_failure", outcome="raised"),
    tensors=(
        TensorRow(
            name="where", role="index", operation="torch.gather", shape=(4,), maximum=9, bad_count=1
        ),
        TensorRow(name="labels", role="target", operation="cross_entropy", shape=(4,)),
    ),
    actions=("restart", "report"),
)
PLAN = RestartPlan(
    steps=(
        PlanStep(
            source="import torch",
            execution_count=1,
            seconds=1.5,
            selected=True,
            shell_only=False,
            long=False,
        ),
        PlanStep(
            source="!pip install x",
            execution_count=2,
            seconds=30.0,
            selected=False,
            shell_only=True,
            long=True,
        ),
        PlanStep(
            source="df = load('<b>')\nmore()",
            execution_count=3,
            seconds=2.0,
            selected=True,
            shell_only=False,
            long=False,
        ),
    ),
    losses=(Loss(name="df", type="DataFrame", size=2_000_000),),
    children=("python",),
)


class Recorder:
    """Actions that note what was called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def replay(self) -> None:
        self.calls.append("replay")

    def replay_whole(self) -> None:
        self.calls.append("replay_whole")

    def cancel(self) -> None:
        self.calls.append("cancel")

    def plan_restart(self, *, replay: bool) -> None:
        self.calls.append(("plan_restart", replay))

    def confirm_restart(self, selected: Sequence[int]) -> None:
        self.calls.append(("confirm_restart", list(selected)))

    def back(self) -> None:
        self.calls.append("back")

    def report_markdown(self) -> str:
        return "# the report"

    def reproduce(self) -> None:
        self.calls.append("reproduce")

    def restart_plain(self) -> None:
        self.calls.append("restart_plain")


@pytest.fixture
def actions() -> Recorder:
    return Recorder()


@pytest.fixture
def panel(actions: Recorder) -> Iterator[Panel]:
    panel = Panel(actions)
    yield panel
    panel.close()


def walk(widget: Any) -> Iterator[Any]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def shown(panel: Panel, kind: str) -> list[Any]:
    return [widget for widget in walk(panel._box) if type(widget).__name__ == kind]


def labels(panel: Panel) -> list[str]:
    return [button.description for button in shown(panel, "Button")]


def html(panel: Panel) -> str:
    return "\n".join(widget.value for widget in shown(panel, "HTML"))


def click(panel: Panel, label: str) -> None:
    next(button for button in shown(panel, "Button") if button.description == label).click()


def test_offer_shows_the_buttons_of_the_diagnosis(panel: Panel) -> None:
    """There is a button for each action of the diagnosis, in its order, and no other."""
    panel.offer(DEAD)

    assert labels(panel) == [
        "Replay on CPU",
        "Restart and replay",
        "Restart",
        "Report",
        "Reproducer",
    ]


def test_offer_knows_only_its_own_actions(panel: Panel) -> None:
    """An action that this version does not know gets no button."""
    panel.offer(Diagnosis(context="dead", actions=("launch_missiles", "restart")))

    assert labels(panel) == ["Restart"]


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("Replay on CPU", "replay"),
        ("Restart and replay", ("plan_restart", True)),
        ("Restart", ("plan_restart", False)),
    ],
)
def test_clicking_twice_acts_once(panel: Panel, actions: Recorder, label: str, call: Any) -> None:
    """The first click disables the buttons, and a second one on its way does nothing."""
    panel.offer(DEAD)
    click(panel, label)
    click(panel, label)
    click(panel, "Restart")

    assert actions.calls == [call]
    assert [b.disabled for b in shown(panel, "Button")] == [True, True, True, False, False]


def test_report_is_a_text_to_copy_from(panel: Panel) -> None:
    """The report button opens and closes a text area, whatever else is disabled."""
    panel.offer(DEAD)
    click(panel, "Replay on CPU")
    click(panel, "Report")

    assert [area.value for area in shown(panel, "Textarea")] == ["# the report"]
    click(panel, "Hide report")
    assert shown(panel, "Textarea") == []


def test_a_reproducer_is_asked_for_and_shown(panel: Panel, actions: Recorder) -> None:
    """The button asks first; the scripts stand in text areas, as text, and can be folded away."""
    panel.offer(DEAD)
    click(panel, "Reproducer")
    assert messages.REPRO_RUNS in html(panel)
    assert actions.calls == []
    click(panel, messages.BUTTON_REPRODUCE_GO)
    click(panel, messages.BUTTON_REPRODUCE_GO)
    assert actions.calls == ["reproduce"]

    scripts = [
        Reproducer("One:", "print('<b>$x$')", "fine <i>", verified=True),
        Reproducer("Cells:", "", "Not written."),
    ]
    panel.show_scripts(scripts, DEAD)
    assert [area.value for area in shown(panel, "Textarea")] == ["print('<b>$x$')"]
    assert "fine &lt;i&gt;" in html(panel)
    assert "Not written." in html(panel)
    click(panel, messages.BUTTON_REPRODUCE_HIDE)
    assert shown(panel, "Textarea") == []


def test_failing_action_is_said_and_can_be_tried_again(actions: Recorder, panel: Panel) -> None:
    """An exception of an action is shown, since no cell shows it, and the buttons work again."""

    def fail() -> None:
        msg = "no <room>"
        raise RuntimeError(msg)

    actions.replay = fail  # type: ignore[method-assign]
    panel.offer(DEAD)
    click(panel, "Replay on CPU")

    assert "RuntimeError: no &lt;room&gt;" in html(panel)
    assert not any(button.disabled for button in shown(panel, "Button"))


def test_plan_ticks_what_was_planned(panel: Panel, actions: Recorder) -> None:
    """The plan shows each cell, its seconds, what stands out, what is lost; ticks as planned."""
    panel.show_plan(PLAN)
    text = html(panel)

    assert [tick.value for tick in shown(panel, "Checkbox")] == [True, False, True]
    for word in ("import torch", "1.5 s", "30 s", messages.PLAN_LONG, messages.PLAN_SHELL_ONLY):
        assert word in text
    for word in ("df", "DataFrame", "2 MB", "python", messages.PLAN_LOST_GPU):
        assert word in text
    assert "<b>" not in text
    assert actions.calls == []


def test_plan_is_confirmed_with_the_ticks(panel: Panel, actions: Recorder) -> None:
    """The second click restarts with the cells that are ticked then, and only once."""
    panel.show_plan(PLAN)
    first, second, _ = shown(panel, "Checkbox")
    first.value, second.value = False, True
    assert "2 of 3 cells, about 32 s" in html(panel)
    click(panel, "Restart now")
    click(panel, "Restart now")
    click(panel, "Back")

    assert actions.calls == [("confirm_restart", [1, 2])]


def test_plan_can_be_left(panel: Panel, actions: Recorder) -> None:
    """The way back restarts nothing."""
    panel.show_plan(PLAN)
    click(panel, "Back")

    assert actions.calls == ["back"]


def test_plan_without_cells(panel: Panel, actions: Recorder) -> None:
    """A restart with nothing to run again can be confirmed too."""
    panel.show_plan(RestartPlan())
    assert messages.PLAN_RUNS_NONE in html(panel)
    click(panel, "Restart now")

    assert actions.calls == [("confirm_restart", [])]


def test_plan_of_a_very_long_session(panel: Panel, actions: Recorder) -> None:
    """Cells too far back for a tick of their own run as planned."""
    panel.show_plan(RestartPlan(steps=PLAN.steps * 100))
    assert len(shown(panel, "Checkbox")) == 150
    click(panel, "Restart now")

    expected = [index for index in range(300) if index % 3 != 1]
    assert actions.calls == [("confirm_restart", expected)]


def test_progress_moves_and_can_be_cancelled(panel: Panel, actions: Recorder) -> None:
    """The bar is one widget that moves; cancel asks once."""
    panel.offer(DEAD)
    panel.progress("cell <1>", 1, 4)
    (bar,) = shown(panel, "FloatProgress")
    assert bar.value == 0.25
    panel.progress("cell 2", 2, 4)

    assert shown(panel, "FloatProgress") == [bar]
    assert bar.value == 0.5
    assert "cell 2" in html(panel)
    assert "2 / 4" in html(panel)
    assert labels(panel) == ["Cancel"]
    click(panel, "Cancel")
    click(panel, "Cancel")
    assert actions.calls == ["cancel"]


@pytest.mark.parametrize(
    ("done", "total"), [(None, None), (3.0, None), (9, 3), (-1, 3), (float("nan"), 3), (1, 0)]
)
def test_progress_takes_any_numbers(panel: Panel, done: Any, total: Any) -> None:
    """Numbers from a replay that went wrong leave the bar between empty and full."""
    panel.progress("replay", done, total)

    assert 0 <= shown(panel, "FloatProgress")[0].value <= 1


def test_progress_without_total_pretends_nothing(panel: Panel) -> None:
    """Where the end is not known there is no bar that reads as a share; the time is told."""
    panel.progress("replay", 3.0, None)
    (bar,) = shown(panel, "FloatProgress")
    assert bar.layout.display == "none"
    assert "3 s" in html(panel)
    panel.progress("replay", 1, 2)

    assert bar.layout.display is None


def test_result_shows_finding_table_and_next_steps(panel: Panel) -> None:
    """After a replay the panel has the finding, the tensor table and the next buttons."""
    panel.progress("replay", None, None)
    panel.result(FOUND)
    text = html(panel)

    assert "1 of 4 values in <code>where</code> is out of range for <code>gather</code>" in text
    assert "9 at [2]" in text
    assert labels(panel) == ["Restart", "Report", "Reproducer"]
    assert shown(panel, "FloatProgress") == []


def test_tensor_table_filters(panel: Panel) -> None:
    """The table can be cut to one role, or to rows with offending values."""
    panel.result(FOUND)
    table = next(w for w in shown(panel, "HTML") if "<table>" in w.value and "labels" in w.value)
    (role,) = shown(panel, "Dropdown")
    (only_bad,) = shown(panel, "Checkbox")

    role.value = "target"
    assert "<code>labels</code>" in table.value
    assert "<code>where</code>" not in table.value
    only_bad.value = True
    assert messages.TENSORS_NONE in table.value
    role.value = ""
    assert "<code>where</code>" in table.value
    assert "<code>labels</code>" not in table.value


def test_values_can_be_kept_out_of_the_widget(actions: Recorder) -> None:
    """With ``show_values`` off the widget, whose state may be saved, has no values either."""
    panel = Panel(actions, show_values=False)
    panel.result(FOUND)

    assert "9 at" not in html(panel)
    assert "[2]" in html(panel)
    panel.close()


def test_badge_stays_under_later_states(panel: Panel, actions: Recorder) -> None:
    """The badge for blocking launches outlives the states, and its button works once."""
    panel.blocking_badge()
    panel.blocking_badge()
    panel.result(FOUND)

    assert "CUDA_LAUNCH_BLOCKING=1" in html(panel)
    assert labels(panel) == ["Restart", "Report", "Reproducer", "Restart without blocking launches"]
    click(panel, "Restart without blocking launches")
    click(panel, "Restart without blocking launches")
    click(panel, "Restart")
    assert actions.calls == ["restart_plain"]
    panel.offer(DEAD)
    assert not any(button.disabled for button in shown(panel, "Button"))


def test_note_goes_with_the_next_state(panel: Panel) -> None:
    """A note stands under the current state and goes with it."""
    panel.offer(DEAD)
    panel.note("nothing to <replay>")
    assert "nothing to &lt;replay&gt;" in html(panel)
    panel.offer(DEAD)

    assert "nothing to" not in html(panel)


def test_close_twice(actions: Recorder) -> None:
    """Closing takes every widget away and may be repeated; later states show nothing."""
    panel = Panel(actions)
    panel.show_plan(PLAN)
    panel.blocking_badge()
    widgets = list(walk(panel._box))
    panel.close()
    panel.close()
    panel.offer(DEAD)

    assert panel._box.children == ()
    assert panel.comm_id is None
    assert [widget.comm for widget in widgets] == [None] * len(widgets)


def test_states_leave_no_widgets_behind(panel: Panel) -> None:
    """What a state showed is closed with it, so that a long session does not pile up widgets."""
    panel.blocking_badge()
    badge = list(walk(panel._box))
    panel.offer(DEAD)
    click(panel, "Report")
    panel.note("one")
    panel.note("two")
    old = [widget for widget in walk(panel._box) if widget not in badge]
    panel.progress("replay", None, None)

    assert len(old) > 8
    assert [widget.comm for widget in old] == [None] * len(old)
    assert all(widget.layout.comm is None for widget in old)
    assert all(widget.comm is not None for widget in badge)


def test_adopted_panel_keeps_the_id(actions: Recorder) -> None:
    """The process after a restart drives the container that the page already shows."""
    pytest.importorskip("comm")
    kernel = object()
    panel = Panel.adopt(actions, "0123456789abcdef", kernel)

    assert panel is not None
    assert panel.comm_id == "0123456789abcdef"
    assert panel._box.comm.kernel is kernel
    panel.offer(DEAD)
    click(panel, "Replay on CPU")
    assert actions.calls == ["replay"]
    panel.close()


def test_no_adoption_without_comm(actions: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package ``comm`` is missing (ipywidgets 7.7) there is no adoption and no error."""
    real = builtins.__import__

    def without_comm(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "comm":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_comm)

    assert Panel.adopt(actions, "0123456789abcdef", object()) is None
