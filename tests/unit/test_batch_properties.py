"""The report of check_batch equals a brute-force check, and scan names exactly what was planted."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from cudassert_ipy import Rule, check_batch, scan
from cudassert_ipy.model import MAX_POSITIONS

SHAPES = st.lists(st.integers(0, 5), min_size=0, max_size=3)
BOUND = st.one_of(st.none(), st.integers(-5, 5))
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.float32, torch.float64]


@st.composite
def tensors(draw):
    """Return a small tensor, sometimes a transposed view, with special floats."""
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(INTEGERS + FLOATS))
    number = st.integers(0 if dtype is torch.uint8 else -9, 9)
    if dtype in FLOATS:
        number = st.one_of(number, st.sampled_from([0.5, math.nan, math.inf, -math.inf]))
    size = math.prod(shape)
    values = draw(st.lists(number, min_size=size, max_size=size))
    tensor = torch.tensor(values, dtype=dtype).reshape(shape)
    return tensor.transpose(0, -1) if draw(st.booleans()) and tensor.dim() > 1 else tensor


@st.composite
def rules(draw):
    """Return any rule."""
    ignore = tuple(draw(st.lists(st.integers(-9, 9), max_size=2)))
    low, high = draw(BOUND), draw(BOUND)
    is_empty = low is not None and high is not None and low > high
    return Rule(low, high, ignore, draw(st.booleans()) and not is_empty, draw(st.booleans()))


def is_bad(value, rule):
    """Return what the documentation of Rule says, value by value."""
    if isinstance(value, float) and math.isnan(value):
        return not rule.nan
    if value in rule.ignore:
        return False
    if rule.finite and math.isinf(value):
        return True
    below = rule.low is not None and value < rule.low
    return below or (rule.high is not None and value > rule.high)


@settings(max_examples=300, deadline=None)
@given(tensors(), rules())
def test_the_report_equals_a_brute_force_check(tensor, rule):
    """Bad positions, values, rows and the count are those of a loop over all values."""
    expected = []
    for place in torch.ones(tuple(tensor.shape)).nonzero().tolist():
        value = tensor[tuple(place)].item()
        if is_bad(value, rule):
            expected.append((tuple(place), value))
    report = check_batch({"x": tensor}, {"x": rule}, raise_error=False)
    assert report.checked == 1
    if not expected:
        assert not report
        return
    (finding,) = report
    assert finding.bad_count == len(expected)
    assert finding.bad_positions == tuple(place for place, _ in expected[:MAX_POSITIONS])
    same = zip(finding.bad_values, (value for _, value in expected), strict=False)
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in same)
    rows = sorted({place[0] for place, _ in expected if place})
    assert finding.batch_rows == tuple(rows[:MAX_POSITIONS])


@pytest.mark.parametrize("workers", [0, 2])
@settings(max_examples=10, deadline=None)
@given(
    planted=st.sets(st.integers(0, 59), max_size=30),
    size=st.integers(1, 60),
    seed=st.integers(0, 100),
)
def test_scan_names_exactly_the_planted_samples(workers, planted, size, seed):
    """With shuffling, any batch size, with and without workers."""
    labels = torch.arange(60) % 5
    for index in planted:
        labels[index] = 5 + index % 3
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        TensorDataset(torch.arange(60), labels),
        batch_size=size,
        shuffle=True,
        num_workers=workers,
        generator=generator,
    )
    report = scan(loader, {1: range(5)}, progress=False)
    assert set(report.dataset_indices) == planted
    assert len(report.dataset_indices) == len(planted)
    assert report.bad_values == len(planted)
    assert report.batches == math.ceil(60 / size)
