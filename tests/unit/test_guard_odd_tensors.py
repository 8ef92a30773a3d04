"""Tensors that cannot be checked like others, and calls that torch itself refuses."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import cudassert_ipy
from cudassert_ipy.errors import OperandError

ODD = {
    "meta": lambda: torch.zeros(3, device="meta")[torch.tensor([7], device="meta")],
    "fake": lambda: _fake(),
    "vmap inside": lambda: torch.vmap(_guarded_gather)(torch.zeros(2, 3), torch.zeros(2, 1).long()),
    "subclass": lambda: torch.zeros(3)[torch.tensor([1]).as_subclass(_Labels)],
    "nested": lambda: _nested(),
    "functional": lambda: torch.func.functionalize(lambda x, i: x[i])(
        torch.zeros(3), torch.tensor([1])
    ),
    "bool index": lambda: torch.zeros(2)[torch.tensor([True, False])],
    "uint8 target": lambda: F.nll_loss(torch.zeros(1, 3), torch.tensor([2], dtype=torch.uint8)),
    "0-d": lambda: torch.tensor(1.0).gather(0, torch.tensor(0)),
    "empty": lambda: torch.zeros(3).gather(0, torch.zeros(0).long()),
    "inference": lambda: _inference(),
    "grad of grad": lambda: torch.func.grad(lambda x: x[torch.tensor([0, 1])].sum())(torch.ones(3)),
}


class _Labels(torch.Tensor):
    pass


def _guarded_gather(x, i):
    with cudassert_ipy.guard():
        return x.gather(0, i)


def _fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x, i = mode.from_tensor(torch.zeros(3)), mode.from_tensor(torch.tensor([7]))
        torch.take_along_dim(x, i, 0)
        F.cross_entropy(torch.zeros(1, 3), i)
        return x.gather(0, i)


def _nested():
    nested = torch.nested.nested_tensor([torch.tensor([0, 1]), torch.tensor([2])])
    return F.embedding(nested, torch.zeros(3, 2))


def _inference():
    with torch.inference_mode():
        return torch.zeros(3).gather(0, torch.tensor([2]))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ODD)
def test_odd_tensors_pass_unharmed(name):
    """What cannot be checked is not an error of ours."""
    with cudassert_ipy.guard() as guard:
        ODD[name]()
    assert not any(row.bad_count for row in guard.rows)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_ids_in_a_nested_tensor_are_checked(layout):
    """Positions are those in the values, one sequence after the other."""
    ids = torch.nested.nested_tensor([torch.tensor([0, 1]), torch.tensor([7])], layout=layout)
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        F.embedding(ids, torch.zeros(3, 2))
    finding = caught.value.finding
    assert (finding.shape, finding.bad_values, finding.bad_positions) == ((3,), (7,), ((2,),))


def test_what_torch_refuses_stays_torchs_own_error():
    """Wrong dtypes and dimensions are told by torch, as without the guard."""
    calls = (
        lambda: torch.zeros(3).gather(0, torch.tensor([0.0])),
        lambda: torch.zeros(3).gather(5, torch.tensor([0])),
        lambda: F.embedding(torch.tensor([1.0]), torch.zeros(3, 2)),
        lambda: F.cross_entropy(torch.zeros(2, 3), torch.zeros(2, 5)),
        lambda: F.one_hot(torch.tensor([1.0]), 3),
        lambda: torch.multinomial(torch.zeros(2, 2, 2), 1),
        lambda: torch.take_along_dim(torch.zeros(3), torch.tensor([0]), 4),
    )
    for call in calls:
        with pytest.raises((RuntimeError, IndexError, ValueError)) as plain:
            call()
        with cudassert_ipy.guard(), pytest.raises(type(plain.value)) as guarded:
            call()
        assert str(guarded.value) == str(plain.value)
