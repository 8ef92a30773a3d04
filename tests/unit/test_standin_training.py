"""Training on the stand-in device gives the CPU's numbers, bit for bit."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import cudassert_ipy
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.simulate import SimulatePolicy


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)), (6, 8)


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 4)), (6, 5, 8)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def recurrent():
    return Recurrent(), (6, 5, 8)


def convolution():
    model = nn.Sequential(nn.Conv1d(5, 6, 3), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(36, 4))
    return model, (6, 5, 8)


class Looking(nn.Module):
    """Looks up, indexes and assigns."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 8, padding_idx=0, max_norm=2.0)
        self.scale = nn.Parameter(torch.ones(5))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        ids = (x * 3).long().abs() % 9
        rows = self.table(ids) * self.scale[ids % 5, None]
        rows[ids == 0] = 0.5
        return self.head(rows.index_select(1, ids[0] % 5).mean(1))


def looking():
    return Looking(), (6, 5)


OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def train(device, make, make_optimizer, *, optimizer_first=False):
    torch.manual_seed(0)
    model, shape = make()
    if optimizer_first:
        optimizer = make_optimizer(model.parameters())
    model.to(device)
    if not optimizer_first:
        optimizer = make_optimizer(model.parameters())
    x, y = torch.randn(shape), torch.randint(0, 4, (6,))
    numbers = []
    for _ in range(3):
        loss = F.cross_entropy(model(x.to(device)), y.to(device), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        numbers.append(loss.item())
    on_device = device == "cuda"
    for parameter in model.parameters():
        assert parameter.is_cuda is on_device
        assert parameter.grad.is_cuda is on_device
    for state in optimizer.state.values():
        for value in state.values():
            if torch.is_tensor(value) and value.dim():
                assert value.is_cuda is on_device
    model.eval()
    with torch.no_grad():
        numbers.append(model(x.to(device)).sum().item())
    return numbers


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [mlp, transformer, recurrent, convolution, looking])
def test_training_is_bit_identical(make, optimizer):
    """Losses and outputs are the CPU's, also when the optimizer was made before ``.cuda()``."""
    make_optimizer = OPTIMIZERS[optimizer]
    expected = train("cpu", make, make_optimizer)
    with StandinDevice(SimulatePolicy(blocking=False)):
        assert train("cuda", make, make_optimizer) == expected
        assert train("cuda", make, make_optimizer, optimizer_first=True) == expected
        assert train("cpu", make, make_optimizer) == expected


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [mlp, transformer, recurrent, convolution, looking])
def test_training_under_the_guard_is_bit_identical(make, optimizer):
    """The guard changes no number, whether it is entered before or after the device."""
    make_optimizer = OPTIMIZERS[optimizer]
    expected = train("cpu", make, make_optimizer)
    with StandinDevice(SimulatePolicy(blocking=False)), cudassert_ipy.guard():
        assert train("cuda", make, make_optimizer) == expected
        assert train("cpu", make, make_optimizer) == expected
    with cudassert_ipy.guard(), StandinDevice(SimulatePolicy(blocking=False)):
        assert train("cuda", make, make_optimizer) == expected


def test_attention_with_inner_factories():
    """Tensors that torch's Python functions make on the way are on the device."""
    with StandinDevice(SimulatePolicy(blocking=False)):
        attention = nn.MultiheadAttention(8, 2, add_zero_attn=True, add_bias_kv=True).cuda()
        x = torch.randn(3, 2, 8, device="cuda")
        out, weights = attention(x, x, x)
        assert out.is_cuda
        assert weights.is_cuda
        out.sum().backward()


def test_padding_masks_and_the_fast_path():
    """The encoder's fast path for evaluation is taken, with nested tensors, as on the CPU."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=mask)
        with StandinDevice(SimulatePolicy(blocking=False)):
            found = model.cuda()(x.cuda(), src_key_padding_mask=mask.cuda())
            assert found.is_cuda
            assert torch.equal(found.cpu(), expected)


def test_modules_keep_their_parameters():
    """``Module.cuda`` changes parameters in place: references to them stay good."""
    with StandinDevice(SimulatePolicy(blocking=False)):
        model = nn.Linear(2, 2)
        weight = model.weight
        assert model.cuda() is model
        assert model.weight is weight
        assert weight.is_cuda
        model.cpu()
        assert not weight.is_cuda
        model.to(torch.zeros(1).cuda())
        assert model.weight is weight
        assert weight.is_cuda
