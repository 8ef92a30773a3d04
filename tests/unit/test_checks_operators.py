import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cudassert_ipy
from cudassert_ipy.checks.inspect import check_operands
from cudassert_ipy.checks.operators import lookup
from cudassert_ipy.errors import OperandError
from tests.unit.operand_cases import CASES


class Seen(TorchDispatchMode):
    """Notes each checked operand, and its bad values."""

    def __init__(self):
        super().__init__()
        self.checked = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        row = lookup(func)
        if row is not None:
            self.checked += check_operands(row, row.arguments(args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def dense(result):
    """Return the results of a call as dense tensors."""
    results = result if isinstance(result, tuple) else (result,)
    return [item.to_dense() if item.layout is not torch.strided else item for item in results]


@pytest.mark.parametrize("name", CASES)
def test_a_healthy_call_passes_with_the_same_result(name):
    """The guard finds nothing in valid operands, and changes no bit of the result."""
    case = CASES[name]
    torch.manual_seed(7)
    expected = case.call(case.good.clone())
    torch.manual_seed(7)
    with cudassert_ipy.guard() as guard:
        result = case.call(case.good.clone())
    rows = [row for row in guard.rows if row.name in (case.operand, "good", "i")]
    assert sum(row.bad_count for row in guard.rows) == 0
    assert rows or guard.rows
    if expected is not None:
        for left, right in zip(dense(result), dense(expected), strict=True):
            assert torch.equal(left, right)


def last_of(shape):
    """Return the position of the last element."""
    return tuple(size - 1 for size in shape)


BAD = [(name, value) for name, case in CASES.items() for value in case.bad_values]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_found_before_the_kernel(name, value):
    """The finding has the user's name, the range, the value and its place."""
    case = CASES[name]
    bad = case.with_bad(value)
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        case.call(bad)
    finding = caught.value.finding
    assert (finding.operation, finding.operand) == (case.operation, case.operand)
    if name != "Categorical":
        assert finding.bad_count == 1
        assert finding.bad_values == pytest.approx((value,), rel=1e-3, nan_ok=True)
        assert finding.bad_positions == (last_of(finding.shape),)
        assert finding.dtype == str(bad.dtype).removeprefix("torch.")
        assert finding.special_values == case.special
        assert finding.valid_maximum == case.high
        if case.low is not None:
            assert finding.valid_minimum == case.low
    assert finding.nan_count == (0 if value == value else finding.bad_count)
    assert finding.requirement
    assert str(caught.value).startswith(case.operation)


@pytest.mark.parametrize(("name", "value"), BAD)
def test_what_cpu_torch_says(name, value):
    """Where CPU torch is silent the table alone knows; where it raises, it names the same fault."""
    case = CASES[name]
    if case.cpu:
        with pytest.raises((RuntimeError, IndexError, ValueError), match=case.cpu):
            case.call(case.with_bad(value))
