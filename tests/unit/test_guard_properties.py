"""The guard raises exactly when the rule of an operation says so, for any operands."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

import cudassert_ipy
from cudassert_ipy.errors import OperandError

SIZES = st.integers(1, 5)
INDEX_DTYPES = st.sampled_from((torch.int32, torch.int64))


@st.composite
def integers(draw, low, high, *, dtypes=INDEX_DTYPES, shape=None, special=()):
    """Return a tensor of integers, most of them from ``low`` to ``high``, some just outside."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3)) if shape is None else shape
    count = torch.Size(shape).numel()
    inside = st.integers(low, max(low, high))
    near = st.sampled_from((low - 1, high + 1, -1, 10 * high + 7, 2**31 - 1, *special))
    dtype = draw(dtypes)
    limits = torch.iinfo(dtype)
    values = draw(st.lists(inside | inside | near, min_size=count, max_size=count))
    values = [max(limits.min, min(value, limits.max)) for value in values]
    return torch.tensor(values, dtype=dtype).reshape(shape)


def outcome(call):
    """Return the results of ``call``, or the exception that it raised."""
    try:
        results = call()
    except (RuntimeError, IndexError, ValueError) as error:
        # A ValueError: torch 2.13 writes a target of 255 into its message as a byte, not UTF-8.
        return error
    return results if isinstance(results, list) else [results]


def check(call, operands):
    """``operands``: each tensor with its lowest and highest value and the special ones."""
    plain = outcome(call)
    with cudassert_ipy.guard():
        guarded = outcome(call)
    bad = any(
        not low <= value <= high and value not in special
        for tensor, low, high, special in operands
        for value in tensor.flatten().tolist()
    )
    assert isinstance(guarded, OperandError) is bad
    if not isinstance(plain, Exception):
        assert not bad
        assert all(
            torch.equal(a, b) or (a.isnan() & b.isnan()).all()
            for a, b in zip(plain, guarded, strict=True)
        )
    elif not bad:
        assert type(guarded) is type(plain)
        assert str(guarded) == str(plain)


def with_gradient(function, x):
    x = x.clone().requires_grad_()
    y = function(x)
    return [y, *torch.autograd.grad(y.sum(), x)]


few = settings(max_examples=60, deadline=None)


@few
@given(st.data())
def test_embedding(data):
    """Rows of a table count from 0; the gradient is the same."""
    rows = data.draw(SIZES)
    ids = data.draw(integers(0, rows - 1))
    table = torch.randn(rows, 2)
    padding = data.draw(st.none() | st.integers(-rows, rows - 1))
    check(
        lambda: with_gradient(lambda x: F.embedding(ids, x, padding_idx=padding), table),
        [(ids, 0, rows - 1, ())],
    )


@few
@given(st.data())
def test_index_select(data):
    """Positions along a dimension count from 0."""
    shape = data.draw(st.lists(SIZES, min_size=1, max_size=3))
    dimension = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[dimension]
    index = data.draw(integers(0, size - 1, shape=[data.draw(st.integers(0, 4))]))
    x = torch.randn(shape)
    check(
        lambda: with_gradient(lambda y: y.index_select(dimension, index), x),
        [(index, 0, size - 1, ())],
    )


@st.composite
def indices(draw, shape):
    """Return one index per leading dimension: a tensor, slice or mask; and the checked ones."""
    common = draw(st.lists(st.integers(0, 3), max_size=2))
    index, checked = [], []
    for size in shape[: draw(st.integers(1, len(shape)))]:
        kind = draw(st.sampled_from(("tensor", "tensor", "slice", "mask")))
        if kind == "slice":
            index.append(slice(None))
        elif kind == "mask" and size:
            index.append(torch.tensor([True] + [False] * (size - 1)))
        else:
            one = draw(integers(-size, size - 1, shape=common))
            index.append(one)
            checked.append((one, -size, size - 1, ()))
    return tuple(index), checked


def needing_a_kernel(x, index, checked):
    """Return ``checked`` if the indexed result has elements and torch accepts the indexing."""
    try:
        inside = tuple(i % 1 if torch.is_tensor(i) and i.dtype != torch.bool else i for i in index)
        return checked if x[inside].numel() else []
    except (IndexError, RuntimeError):
        return []


@few
@given(st.data())
def test_advanced_indexing(data):
    """Indices count from either end, unless there is nothing to read or write."""
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    x = torch.randn(shape)
    index, checked = data.draw(indices(shape))
    # Alone, a tensor without dimensions is an integer for Python, and not the kernel's.
    if any(torch.is_tensor(i) and not i.dim() for i in index):
        return
    checked = needing_a_kernel(x, index, checked)

    def assign(y):
        y = y.clone()
        y[index] = 2.0
        return y

    check(lambda: with_gradient(lambda y: y[index], x), checked)
    check(lambda: with_gradient(assign, x), checked)


@few
@given(st.data())
def test_index_put(data):
    """The same holds for the function, with and without accumulation, for any number of indices."""
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=2))
    x = torch.zeros(shape)
    index = tuple(
        data.draw(integers(-size, size - 1, shape=[2])) for size in shape[: data.draw(SIZES)]
    )
    checked = [(i, -size, size - 1, ()) for i, size in zip(index, shape, strict=False)]
    checked = needing_a_kernel(x, index, checked)
    accumulate = data.draw(st.booleans())
    value = torch.tensor(1.0)
    check(lambda: x.index_put(index, value, accumulate=accumulate), checked)
    # One index too many is torch's to refuse.
    check(lambda: x.index_put((*index, *index, *index), value), checked[:0])


@few
@given(st.data())
def test_cross_entropy(data):
    """Targets are classes or ``ignore_index``, for all reductions, weights, smoothings, shapes."""
    classes = data.draw(SIZES)
    batch = data.draw(st.integers(0, 3))
    rest = data.draw(st.lists(st.integers(0, 3), max_size=2))
    ignored = data.draw(st.sampled_from((-100, -1, 0, 3, 255)))
    dtypes = st.just(torch.int64) if rest else st.sampled_from((torch.int64, torch.uint8))
    near = (ignored, ignored % 256)
    target = data.draw(integers(0, classes - 1, dtypes=dtypes, shape=[batch, *rest], special=near))
    scores = torch.randn(batch, classes, *rest)
    options = {
        "ignore_index": ignored,
        "reduction": data.draw(st.sampled_from(("none", "mean", "sum"))),
        "weight": data.draw(st.sampled_from((None, torch.rand(classes)))),
    }
    smoothing = data.draw(st.sampled_from((0.0, 0.3, 1.0)))
    if target.dtype == torch.uint8 and options["weight"] is not None:
        smoothing = 0.0  # torch 2.13 cannot do all three under any dispatch mode
    rule = [(target, 0, classes - 1, (ignored,))]
    check(
        lambda: with_gradient(
            lambda x: F.cross_entropy(x, target, label_smoothing=smoothing, **options), scores
        ),
        rule,
    )
    check(lambda: with_gradient(lambda x: F.nll_loss(x, target, **options), scores), rule)


X, LABELS, INDEX = torch.zeros(3, 4), torch.tensor([9, 9, 9]), torch.tensor([9])
REFUSED = {
    "ids of floats": lambda: torch.embedding(X, torch.tensor([9.0])),
    "a table without dimensions": lambda: torch.embedding(torch.zeros(()), INDEX),
    "no such dimension": lambda: X.index_select(2, INDEX),
    "positions of floats": lambda: X.index_select(0, torch.tensor([9.0])),
    "too many indices": lambda: X.index_put((INDEX, INDEX, INDEX), torch.tensor(1.0)),
    "indices of floats": lambda: X.index_put((torch.tensor([9.0]),), torch.tensor(1.0)),
    "nothing to index": lambda: torch.zeros(0, 2)[INDEX],
    "labels of floats": lambda: F.nll_loss(X, LABELS.float()),
    "scores without dimensions": lambda: torch.ops.aten.nll_loss_forward(
        torch.zeros(()), LABELS, None, 1, -100
    ),
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_torch_refuses_is_torchs_error(call):
    """Calls that never reach a kernel raise what they raise without the guard."""
    plain = outcome(REFUSED[call])
    assert isinstance(plain, Exception)
    check(REFUSED[call], [])


def test_a_byte_is_not_taken_for_a_negative_special_value():
    """156 is -100 only modulo 256: as a target it is out of range."""
    target = torch.tensor([156], dtype=torch.uint8)
    check(lambda: F.nll_loss(torch.zeros(1, 5), target), [(target, 0, 4, (-100,))])
