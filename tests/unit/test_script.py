"""One bad call as a script: for every operation of the table, and from hostile data."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from cudassert_ipy.checks.call_data import CallData, call_data
from cudassert_ipy.checks.operators import function_table, table
from cudassert_ipy.errors import OperandError
from cudassert_ipy.model import Environment, Finding
from cudassert_ipy.replay.script import CannotWriteError, operation_scripts
from cudassert_ipy.replay.spelling import SPELLINGS, UNSUITED
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from cudassert_ipy.standin.tags import tag_of
from tests.unit import test_checks_operand_rules
from tests.unit.operand_cases import CASES
from tests.unit.test_checks_operand_rules import BROKEN
from tests.unit.test_standin_operations import call, on_device  # noqa: F401

HERE = Environment(python="3.11", torch="2.13")


class Noting(ReplayPolicy):
    """A replay that keeps the first bad call as data."""

    def __init__(self):
        super().__init__(Collector())
        self.calls = []

    def found(self, findings, operator, args, kwargs):
        data = call_data(operator, args, kwargs, findings[0], is_on_device)
        self.calls.append((data, findings[0]))


def is_on_device(tensor):
    found = tag_of(tensor)
    return found is not None and found.device_index is not None


def bad_call(run):
    """Return the first bad call of ``run()`` on the stand-in device and its finding."""
    policy = Noting()
    with StandinDevice(policy), pytest.raises(OperandError):
        run()
    data, finding = policy.calls[0]
    return CallData.from_dict(json.loads(json.dumps(data.to_dict(), allow_nan=False))), finding


def finding_of(script):
    """Run a script on the stand-in device and return what it finds."""
    policy = Noting()
    with StandinDevice(policy):
        try:
            exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
        except OperandError as error:
            return error.finding
        except (RuntimeError, TypeError, ValueError, LookupError):
            return None  # torch itself refused the call
    return None


def same(one, other):
    """Whether two findings are about the same operation and the same bad values."""
    return one is not None and (
        one.aten.split(".")[0].rstrip("_") == other.aten.split(".")[0].rstrip("_")
        and repr(one.bad_values) == repr(other.bad_values)
    )


@pytest.mark.parametrize("name", CASES)
def test_every_operation_can_be_written(name, on_device):  # noqa: F811
    """A script of each operation of the table raises the same finding: operation and values."""
    case = CASES[name]
    policy = Noting()
    with StandinDevice(policy):
        on_device()
        with pytest.raises(OperandError):
            call(case, case.with_bad(case.bad_values[0]))
    data, found = policy.calls[0]
    data = CallData.from_dict(json.loads(json.dumps(data.to_dict(), allow_nan=False)))
    scripts = operation_scripts(data, found, HERE)
    results = [finding_of(script) for script in scripts]
    assert any(same(result, found) for result in results), "\n".join(scripts)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_can_be_written(name, monkeypatch):
    """Order, sums and counts too: their operands are written whole."""
    run, _ = BROKEN[name]
    policy = Noting()
    with StandinDevice(policy):
        for constant in ("WEIGHT", "IDS", "LOG_P", "SCORES", "SQUARE"):
            moved = getattr(test_checks_operand_rules, constant).cuda()
            monkeypatch.setattr(test_checks_operand_rules, constant, moved)
        with torch.device("cuda"), pytest.raises(OperandError):
            run()
    data, found = policy.calls[0]
    scripts = operation_scripts(data, found, HERE)
    assert any(same(finding_of(script), found) for script in scripts), scripts


def large_ids():
    ids = torch.zeros(8, 32, dtype=torch.int64)
    ids[2, 5] = 1000
    return ids.cuda()


LARGE = {
    "only the bad elements": (
        lambda: F.embedding(large_ids(), torch.randn(1000, 8).cuda()),
        [
            "weight = torch.zeros((1000, 8), dtype=torch.float32, device=device)",
            "input = torch.tensor([1000], dtype=torch.int64, device=device)",
            "torch.nn.functional.embedding(input, weight)",
        ],
    ),
    "x[index]": (
        lambda: torch.randn(1000, 8).cuda()[large_ids()],
        ["index = torch.tensor([1000], dtype=torch.int64, device=device)", "x[index]"],
    ),
    "zeros but for the bad element": (
        lambda: torch.randn(8, 1000).cuda().gather(1, large_ids()),
        [
            "index = torch.full((8, 32), 0, dtype=torch.int64, device=device)",
            "index[2, 5] = 1000",
            "torch.gather(input, 1, index)",
        ],
    ),
    "two indices": (
        lambda: torch.randn(1000, 1000).cuda()[large_ids() * 0, large_ids()],
        ["index_2[2, 5] = 1000", "x[index_1, index_2]"],
    ),
    "NaN": (
        lambda: torch.bernoulli(torch.full((100,), torch.nan).cuda()),
        ["input = torch.tensor(", 'float("nan")', "torch.bernoulli(input)"],
    ),
    "scores without values": (
        lambda: F.cross_entropy(
            torch.randn(100, 5).cuda(), torch.full((100,), 7).cuda(), ignore_index=3
        ),
        [
            "target[19] = 7",
            "torch.nn.functional.cross_entropy(input, target, ignore_index=3)",
        ],
    ),
    "offsets are whole": (
        lambda: F.embedding_bag(
            torch.zeros(200, dtype=torch.int64).cuda(),
            torch.randn(9, 2).cuda(),
            torch.arange(100).flip(0).cuda(),
        ),
        ["[99, 98, 97,", "embedding_bag("],
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_tensors(name):
    """Of large tensors a script has shapes and the bad elements, and still raises the finding."""
    run, lines = LARGE[name]
    policy = Noting()
    with StandinDevice(policy), pytest.raises(OperandError):
        run()
    data, found = policy.calls[0]
    script = operation_scripts(data, found, HERE)[0]
    for line in lines:
        assert line in script
    assert same(finding_of(script), found), script


FOUND = Finding(
    operation="torch.take",
    aten="aten::take.default",
    operand="index",
    shape=(1,),
    dtype="int64",
    valid_minimum=0,
    valid_maximum=3,
    bad_count=1,
    bad_positions=((0,),),
    bad_values=(9,),
)


def tensor(**changes):
    data = {"tensor": [1], "dtype": "int64", "device": True, "values": [9], "bad": True}
    return {**data, "sparse": False, **changes}


EVIL = "import os; os.abort()"
HOSTILE = [
    CallData(aten=f"aten::take.default\n{EVIL}", arguments={}),
    CallData(aten="aten::take.default", arguments={"self": tensor(), EVIL: tensor()}),
    CallData(aten="aten::take.default", arguments={"self": tensor(dtype=f"int64)\n{EVIL}")}),
    CallData(aten="aten::take.default", arguments={"self": tensor(tensor=[EVIL])}),
    CallData(aten="aten::take.default", arguments={"self": tensor(tensor=[-1])}),
    CallData(aten="aten::take.default", arguments={"self": tensor(tensor=[10**30])}),
    CallData(aten="aten::take.default", arguments={"self": tensor(tensor=True)}),
    CallData(aten="aten::take.default", arguments={"self": tensor(values=[EVIL])}),
    CallData(aten="aten::take.default", arguments={"self": tensor(values=[1, 2])}),
    CallData(aten="aten::take.default", arguments={"self": tensor(), "index": {"torch": EVIL}}),
    CallData(aten="aten::index.Tensor", arguments={"self": tensor(), "indices": EVIL}),
    CallData(aten="aten::no_such.default", arguments={"self": tensor()}),
]


@pytest.mark.parametrize("call_", HOSTILE)
def test_hostile_calls_are_refused(call_):
    """What is no name, no number and no dtype is never written into a script."""
    with pytest.raises(CannotWriteError):
        operation_scripts(call_, FOUND, HERE)


def test_texts_go_into_comments_only():
    """No text of the finding or of the machine leaves its comment line."""
    evil = f"x\r\n{EVIL}\x0c\u2028{EVIL}\u202e"
    found = replace(FOUND, operation=evil, requirement=evil, operand=evil, dtype=evil)
    data = CallData(
        aten="aten::take.default", arguments={"self": tensor(bad=False), "index": tensor()}
    )
    script = operation_scripts(data, found, Environment(torch=evil, gpu=evil))[0]
    code = [line for line in script.splitlines() if not line.startswith("#")]
    assert not any("abort" in line for line in code)
    assert "\u202e" not in script
    compile(script, "<script>", "exec")


def test_reading_the_call_changes_nothing():
    """The tensors of the call and what the replay says of substitutes stay as they were."""
    policy = Noting()
    with StandinDevice(policy):
        weight = torch.ones(4, 2).cuda().requires_grad_()
        ids = large_ids()
        before = ids._version, weight._version
        with pytest.raises(OperandError):
            F.embedding(ids, weight)
        assert (ids._version, weight._version) == before
    assert not policy.collector.substitute_integer_read


def test_every_operation_of_the_table_can_be_written_as_a_user_does():
    """A new row of the operator table needs its spelling, or a place among the unsuited."""
    packets = {
        row.aten.removeprefix("aten::").partition(".")[0]
        for row in (*table().values(), *function_table().values())
    }

    assert packets - set(SPELLINGS) - UNSUITED == set()
