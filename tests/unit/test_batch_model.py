"""check_batch with a model: rules that it demands, and a model that stays as it was."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cudassert_ipy import CudassertError, OperandError, check_batch, scan


class Net(nn.Module):
    """Two embeddings of two columns, batch norm, dropout, and a loss on request."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(30, 8)
        self.columns = nn.ModuleList([nn.Embedding(4, 8), nn.Embedding(7, 8)])
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(8, 10)
        self.calls = 0

    def forward(self, ids, columns, labels=None):
        self.calls += 1
        x = self.tokens(ids).mean(1)
        for n, table in enumerate(self.columns):
            x = x + table(columns[:, n])
        scores = self.out(self.drop(self.norm(x)))
        return scores if labels is None else F.cross_entropy(scores, labels)


def good_batch(rows=6):
    return {
        "ids": torch.randint(0, 30, (rows, 5)),
        "columns": torch.stack([torch.arange(rows) % 4, torch.arange(rows) % 7], 1),
        "labels": torch.randint(0, 10, (rows,)),
    }


def bad(batch, model, **options):
    return check_batch(batch, model, raise_error=False, **options)


def test_a_good_batch_is_good():
    """Every integer tensor has a rule and passes it."""
    report = check_batch(good_batch(), Net())
    assert (len(report), report.checked, report.unchecked) == (0, 4, ())


def test_every_bad_tensor_is_found_with_the_models_line():
    """All operands are checked, not only the first; a column is held to its own table."""
    batch = good_batch()
    batch["ids"][3, 4] = 30
    batch["columns"][1, 1] = 6  # the last row of the second table, beyond the first one
    batch["columns"][2, 0] = 4
    batch["labels"][0] = -1
    found = {finding.expression: finding for finding in bad(batch, Net())}
    assert set(found) == {'batch["ids"]', 'batch["columns"]', 'batch["labels"]'}
    assert found['batch["ids"]'].bad_positions == ((3, 4),)
    assert found['batch["columns"]'].bad_positions == ((2, 0),)
    assert found['batch["columns"]'].shape == (6, 2)
    assert found['batch["labels"]'].bad_values == (-1,)
    assert found['batch["ids"]'].operation == "torch.nn.functional.embedding"
    assert found['batch["ids"]'].source.strip() == "x = self.tokens(ids).mean(1)"
    assert "cross_entropy" in found['batch["labels"]'].operation


def test_the_model_and_the_random_state_stay_as_they_are():
    """Mode, buffers, parameters, attributes and the generators are untouched."""
    model = Net().train()
    before = copy.deepcopy(model.state_dict())
    versions = [parameter._version for parameter in model.parameters()]
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    check_batch(good_batch(), model)  # draws the batch itself
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    torch.manual_seed(5)
    good_batch()
    assert torch.equal(states[0], torch.get_rng_state())
    random.seed(5)
    np.random.seed(5)
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert model.training
    assert all(module.training for module in model.modules())
    assert model.calls == 0
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert versions == [parameter._version for parameter in model.parameters()]
    assert all(parameter.requires_grad for parameter in model.parameters())


class Random(nn.Module):
    """Draws from every generator."""

    def forward(self, x):
        return x + torch.rand(()) + random.random() + np.random.rand()


def test_random_numbers_that_the_model_draws_are_put_back():
    """Generators of torch, Python and numpy go on as if nothing had been drawn."""
    x = torch.rand(3)
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    check_batch(x, Random())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_a_parameter_that_the_forward_changes_is_put_back():
    """``max_norm`` renormalizes the table in place in every forward."""
    model = nn.Embedding(10, 4, max_norm=0.1)
    before = model.weight.detach().clone()
    version = model.weight._version
    assert not check_batch(torch.arange(10), model)
    assert torch.equal(model.weight, before)
    assert model.weight._version == version


def test_the_users_batch_stays_as_it_is():
    """A model that writes into its input writes into a copy."""

    class Writes(nn.Module):
        def forward(self, ids):
            ids[ids > 2] = 0
            return ids

    ids = torch.arange(5)
    check_batch({"ids": ids}, Writes())
    assert ids.tolist() == [0, 1, 2, 3, 4]


class Masks(nn.Module):
    """Selects by value before it looks up: nothing may be said about the tensor as a whole."""

    def __init__(self, how):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.how = how

    def forward(self, ids):
        return self.table(self.how(ids))


def _put(ids):
    ids[ids == -100] = 0
    return ids


def _filled(ids):
    ids.masked_fill_(ids == -100, 0)
    return ids


@pytest.mark.parametrize(
    "how",
    [
        lambda ids: ids.masked_fill(ids == -100, 0),
        lambda ids: torch.where(ids < 0, 0, ids),
        lambda ids: ids[ids >= 0],
        lambda ids: ids.clamp(min=0),
        lambda ids: ids % 10,
        lambda ids: ids + 100,
        lambda ids: torch.gather(ids, 0, ids.argmax()[None]),
        _filled,
    ],
    ids=["masked_fill", "where", "mask", "clamp", "modulo", "plus", "gather", "masked_fill_"],
)
def test_values_that_the_model_selects_or_changes_are_never_accused(how):
    """No rule is derived for a tensor that a mask or arithmetic stands before, and that is said."""
    ids = torch.tensor([1, 9, -100, 3])
    report = bad({"ids": ids}, Masks(how))
    named = [f for f in report if f.expression == 'batch["ids"]']
    assert named == []
    (unknown,) = scan([{"ids": ids}], Masks(how), progress=False).without_rule
    assert unknown == 'batch["ids"]'


def test_a_bad_value_is_followed_through_masks_and_indices():
    """For the traced batch itself it is known what a mask selected: the user's tensor is named."""
    ids = torch.tensor([[1, 9, -100], [12, 3, 10]])
    hows = [
        lambda ids: ids.masked_fill(ids == -100, 0),
        lambda ids: torch.where(ids < 0, 0, ids),
        lambda ids: ids[ids >= 0],
        lambda ids: ids[torch.tensor([1, 1])],
        lambda ids: torch.masked_select(ids, ids >= 0),
        lambda ids: ids.index_select(1, torch.tensor([2, 0]))[1:],
        lambda ids: ids.gather(1, torch.tensor([[0, 0], [0, 2]])),
        _filled,
        _put,
    ]
    for number, how in enumerate(hows):
        report = bad({"ids": ids}, Masks(how))
        (finding,) = report
        assert (finding.expression, finding.shape) == ('batch["ids"]', (2, 3)), number
        assert finding.bad_positions == ((1, 0), (1, 2)), number
        assert (finding.bad_values, finding.bad_count) == ((12, 10), 2), number
        assert finding.batch_rows == (1,), number
        assert report.unchecked == ()


def test_a_bad_operand_made_inside_the_model_is_reported_as_the_models():
    """It has the model's line and no batch tensor."""
    (finding,) = bad({"ids": torch.tensor([1, 2])}, Masks(lambda ids: ids + 100))
    assert finding.bad_values == (101, 102)
    assert "self.table(self.how(ids))" in finding.source


@pytest.mark.parametrize(
    ("how", "good_at"),
    [
        (lambda ids: ids, None),
        (lambda ids: ids.clone().t().contiguous(), None),
        (lambda ids: ids.to(torch.int32).view(-1), None),
        (lambda ids: ids[:, 1:].contiguous(), (0, 0)),
        (lambda ids: ids[:, :-1], (0, 3)),
        (lambda ids: F.pad(ids, (0, 1))[..., 1:], (0, 0)),
        (lambda ids: torch.cat([ids[:1], ids[1:]]), None),
        (lambda ids: ids[:, ::2], (0, 1)),
    ],
    ids=["whole", "clone", "int32", "shift", "cut", "pad", "cat", "step"],
)
def test_values_that_the_model_moves_are_followed(how, good_at):
    """Views, copies, joins and padding keep the origin; what is left out is not checked."""
    model = Masks(how)
    narrow = how(torch.zeros(2, 4, dtype=torch.int64)).dtype == torch.int32
    for row, column in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)]:
        ids = torch.ones(2, 4, dtype=torch.int64)
        ids[row, column] = 10
        report = bad({"ids": ids}, model)
        moved = how(torch.arange(1, 9).view(2, 4))
        is_used = row * 4 + column + 1 in moved.flatten().tolist()
        assert bool(report) is is_used
        if is_used and not narrow:
            assert report[0].bad_positions == ((row, column),)
            assert report[0].expression == 'batch["ids"]'
    if good_at is not None:
        ids = torch.ones(2, 4, dtype=torch.int64)
        ids[good_at] = 10
        assert not bad({"ids": ids}, model)


def test_class_labels_that_the_model_is_not_given():
    """``(x, y)``: y is held to the model's number of outputs."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    x, y = torch.rand(6, 3, 4), torch.tensor([0, 1, 2, -100, 9, 10])
    (finding,) = bad((x, y), model)
    assert (finding.expression, finding.bad_values) == ("batch[1]", (10,))
    assert (finding.valid_minimum, finding.valid_maximum) == (0, 9)
    assert not bad((x, y), model, classes=11)
    assert bad((x, y), model, ignore_index=-1)[0].bad_values == (-100, 10)


@pytest.mark.parametrize(
    ("batch", "model"),
    [
        ((torch.rand(6, 4), torch.tensor([7] * 6)), nn.Linear(4, 1)),  # one output: no classes
        ((torch.rand(6, 4), torch.ones(6, 10, dtype=torch.int64) * 99), nn.Linear(4, 10)),
        ((torch.rand(6, 4), torch.tensor([99])), nn.Linear(4, 10)),  # another shape
        ((torch.rand(6, 4), torch.tensor([99] * 6), torch.tensor([98] * 6)), nn.Linear(4, 10)),
        ((torch.rand(6, 4), torch.rand(6)), nn.Linear(4, 10)),
    ],
    ids=["regression", "multi-label", "other shape", "two of them", "floats"],
)
def test_integers_that_may_be_no_labels_are_not_accused(batch, model):
    """Where it is not plain that a tensor holds class labels, it is listed as unchecked."""
    report = bad(batch, model)
    assert not report
    integers = sum(not t.is_floating_point() for t in batch)
    assert len(report.unchecked) == integers


def test_call_says_how_the_model_is_called():
    """The user's own call, with the loss in it, is traced."""
    batch = [torch.rand(4, 3), torch.tensor([0, 1, 2, 3])]
    report = bad(batch, nn.Linear(3, 3), call=lambda model, b: F.cross_entropy(model(b[0]), b[1]))
    assert report[0].bad_values == (3,)


class Graph:
    def __init__(self, x, edge_index, y):
        self.x, self.edge_index, self.y = x, edge_index, y


class Convolution(nn.Module):
    """Sums over neighbors, as graph layers do."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)

    def forward(self, data):
        x = self.lin(data.x)
        return torch.zeros_like(x).index_add(0, data.edge_index[1], x[data.edge_index[0]])


def test_an_edge_to_a_node_that_is_not_there():
    """A graph's edges are held to its own number of nodes."""
    edges = torch.tensor([[0, 1, 5], [1, 2, 0]])
    report = bad(Graph(torch.rand(5, 3), edges, torch.zeros(5)), Convolution())
    assert report[0].expression == "batch.edge_index"
    assert report[0].bad_positions == ((0, 2),)


class Closed:
    """A model that cannot be copied."""


def test_models_that_cannot_be_tried_are_one_clear_error():
    """A model that fails, cannot be copied or lacks an argument says what to do instead."""
    with pytest.raises(CudassertError, match=r"did not run.*call=lambda"):
        check_batch({"x": torch.rand(2, 3)}, nn.Linear(7, 1), call=lambda m, b: m(b["x"]))
    model = nn.Linear(3, 1)
    model.handle = (n for n in range(3))
    with pytest.raises(CudassertError, match=r"cannot be copied.*rules"):
        check_batch(torch.rand(2, 3), model)
    with pytest.raises(CudassertError, match="also needs columns"):
        check_batch({"ids": torch.zeros(1, 1, dtype=torch.int64)}, Net())
    with pytest.raises(CudassertError, match="has no tensors"):
        check_batch({"text": "a"}, nn.Linear(3, 1))
    with pytest.raises(CudassertError, match="this batch has 0"):
        check_batch(torch.rand(2, 3), nn.Linear(3, 1), classes=5)


def test_wrappers_are_opened():
    """DataParallel is not a model of its own."""
    with pytest.raises(OperandError):
        check_batch(torch.tensor([10]), nn.DataParallel(nn.Embedding(10, 2)))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_tied_and_frozen_parameters_and_old_weight_norm_can_be_tried():
    """A copy shares what the model shares, and takes attributes that have a graph."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.utils.weight_norm(nn.Linear(4, 10)))
    model[0].weight.requires_grad_(False)
    model(torch.tensor([1])).sum().backward()
    assert bad(torch.tensor([10]), model)[0].bad_values == (10,)
