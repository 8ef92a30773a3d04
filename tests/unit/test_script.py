"""One bad call as a script: for every operation of the table, and from hostile data."""

import json
import os

import pytest

from cudassert_ipy.checks.call_data import CallData, call_data
from cudassert_ipy.errors import OperandError
from cudassert_ipy.model import Environment
from cudassert_ipy.replay.script import operation_scripts
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from cudassert_ipy.standin.tags import tag_of
from tests.unit.operand_cases import CASES
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
    if not os.environ.get("SHOW"):
        return
    print(scripts[0], [same(r, found) for r in results])
