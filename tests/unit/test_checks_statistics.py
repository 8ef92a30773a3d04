import math

import pytest
import torch

from cudassert_ipy.checks.operators import Operand
from cudassert_ipy.checks.statistics import Statistics, is_outside, locate, summarize
from cudassert_ipy.model import MAX_POSITIONS


def operand(tensor, low, high, special=()):
    return Operand(tensor, "input", "index", low, high, special)


def test_the_range_of_integers_is_exact():
    """Integer ranges are Python ints, also where float64 would round them."""
    big = 2**62 + 1
    assert summarize(torch.tensor([3, -7, big])) == Statistics(-7, big)


def test_nan_and_infinity_are_counted_and_the_range_is_of_the_rest():
    """NaN does not hide the range of the other values."""
    found = summarize(torch.tensor([1.0, math.nan, math.inf, -2.0, math.nan]))
    assert found == Statistics(-2.0, math.inf, nan_count=2, inf_count=1)


def test_only_nan():
    """A tensor of NaN alone has NaN for a range."""
    found = summarize(torch.full((3,), math.nan))
    assert math.isnan(found.minimum)
    assert found.nan_count == 3


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0),
        torch.empty(3, device="meta"),
        torch.zeros(2, dtype=torch.uint16),
        torch.zeros(2, dtype=torch.uint64),
        torch.zeros(2).to(torch.float8_e4m3fn),
        torch.zeros(2, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        torch.zeros(2, requires_grad=True),
        torch.tensor(True),
        torch.zeros(3).expand(4, 3),
        torch.nn.parameter.UninitializedParameter(),
    ],
    ids=str,
)
def test_odd_tensors_never_raise(tensor):
    """Every layout, dtype and subclass has statistics or says that it has none."""
    assert isinstance(summarize(tensor), Statistics)


def test_offenders_have_positions_values_and_rows():
    """Positions are per dimension, and batch rows are those along dimension 0, once each."""
    found = locate(operand(torch.tensor([[1, 9], [-1, 12], [3, 4]]), 0, 8))
    assert found.bad_count == 3
    assert found.positions == ((0, 1), (1, 0), (1, 1))
    assert found.values == (9, -1, 12)
    assert found.batch_rows == (0, 1)


def test_special_values_are_valid():
    """A value such as ignore_index is not an offender, though it is outside the range."""
    target = operand(torch.tensor([0, -100, 5]), 0, 4, (-100,))
    assert is_outside(summarize(target.tensor), target)
    assert locate(target).values == (5,)


def test_nan_is_an_offender():
    """NaN is outside every range."""
    bad = operand(torch.tensor([0.5, math.nan]), 0, 1)
    assert is_outside(summarize(bad.tensor), bad)
    assert locate(bad).positions == ((1,),)


def test_long_lists_are_cut_and_the_count_is_true():
    """A flood of bad values is listed up to a limit and counted to the end."""
    found = locate(operand(torch.full((1000,), 7), 0, 6))
    assert found.bad_count == 1000
    assert len(found.positions) == len(found.values) == len(found.batch_rows) == MAX_POSITIONS


def test_a_scalar_has_the_empty_position():
    """A 0-dimensional operand has no dimensions to give a position in, and no batch rows."""
    found = locate(operand(torch.tensor(9), 0, 8))
    assert found.positions == ((),)
    assert found.batch_rows == ()
