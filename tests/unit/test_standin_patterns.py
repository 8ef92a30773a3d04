"""What users write for "cuda" gives what it gives on the CPU: tensors and modules."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.unit.device_patterns import POLICIES, Patterns, check, net, one_step

pattern = Patterns()


# --- moving ---------------------------------------------------------------------------------------


@pattern
def to_in_all_forms(device):
    x, there = torch.randn(2, 3, 4, 4), torch.zeros(1, dtype=torch.float64, device=device)
    target = torch.device(device)
    return [
        x.to(device),
        x.to(target),
        x.to(device, torch.float16),
        x.to(device, torch.float64, True),
        x.to(target, torch.float64, non_blocking=True, copy=True),
        x.to(device=device, dtype=torch.int32),
        x.to(dtype=torch.bfloat16, device=target),
        x.to(there),
        x.to(there, non_blocking=True),
        x.to(device, memory_format=torch.channels_last),
        x.to(device, copy=True),
        x.to(device).to(torch.float16).to(x.to(device)),
        x.to(device).type(torch.float64),
        x.to(device).type_as(there),
        x.to(device).float().double().half().int().long().bool(),
    ]


@pattern
def channels_last(device):
    model = nn.Conv2d(3, 4, 3).to(device, memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(device, memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    y = model(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    return [y, model.weight]


@pattern
def channels_last_of_a_moved_tensor(device):
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).to(device)
    assert x.stride() == (192, 1, 24, 3)
    assert x.to(device, copy=True).stride() == (192, 1, 24, 3)
    return x


@pattern
def module_to_tensor_dtype_and_back(device):
    model = net(3, 4).to(device, torch.float64)
    moved = model.to(torch.zeros(1, device=device))
    assert moved is model
    return [*model.parameters(), model.double()[0].weight, model.float()[0].weight]


@pattern
def optimizer_before_the_move(device):
    model = net(3, 4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model.to(device)
    return [one_step(model, optimizer, torch.randn(5, 3).to(device)), *model.parameters()]


@pattern
def gradients(device):
    model = net(3, 2).to(device)
    x = torch.randn(4, 3, device="cpu").to(device).requires_grad_()
    model(x).sum().backward()
    y = torch.autograd.grad((x * 2).sum(), x)[0]
    return [x.grad, y, *(parameter.grad for parameter in model.parameters())]


@pattern
def buffers_and_state(device):
    model = nn.BatchNorm1d(3).to(device)
    model(torch.randn(5, 3).to(device))
    twin = nn.BatchNorm1d(3)
    twin.load_state_dict(model.state_dict())
    twin.to(device)
    return [*model.buffers(), *model.state_dict().values(), *twin.buffers()]


# --- factories ------------------------------------------------------------------------------------


@pattern
def factories(device):
    like = torch.randn(2, 3).to(device)
    return [
        torch.zeros(3, device=device),
        torch.ones(2, 2, device=device, dtype=torch.half),
        torch.full((2,), 7, device=device),
        torch.arange(5, device=device),
        torch.linspace(0, 1, 4, device=device),
        torch.logspace(0, 1, 4, device=device),
        torch.eye(3, device=device),
        torch.tensor([[1, 2]], device=device),
        torch.as_tensor([1.0], device=device),
        torch.tril_indices(3, 3, device=device),
        torch.triu_indices(3, 3, device=device),
        torch.randn(3, device=device),
        torch.randperm(5, device=device),
        torch.hann_window(5, device=device),
        torch.complex(torch.ones(1, device=device), torch.ones(1, device=device)),
        torch.scalar_tensor(3.0, device=device),
        torch.empty(3, device=device).fill_(2),
        torch.empty_strided((2, 2), (1, 2), device=device).zero_(),
        torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device=device).to_dense(),
        *(
            torch.nested.nested_tensor(
                [torch.ones(2), torch.ones(3)], device=device, layout=layout
            ).to_padded_tensor(0.0)
            for layout in (torch.strided, torch.jagged)
        ),
        torch.zeros_like(like),
        torch.ones_like(like, dtype=torch.int64),
        torch.full_like(like, 2),
        torch.randn_like(like),
        torch.randint_like(like, 5),
        torch.empty_like(like).copy_(like),
        like.new_zeros(2),
        like.new_ones((2, 2)),
        like.new_full((2,), 3),
        like.new_tensor([1, 2]),
        like.new_empty(2).zero_(),
        torch.zeros_like(torch.zeros(2), device=device),
        torch.cartesian_prod(torch.arange(2, device=device), torch.arange(3, device=device)),
        *torch.meshgrid(
            torch.arange(2, device=device), torch.arange(3, device=device), indexing="ij"
        ),
        torch.zeros(2, out=torch.empty(2, device=device)),
        torch.nn.init.xavier_uniform_(torch.empty(2, 2, device=device)),
        nn.Linear(2, 2, device=device).weight,
        nn.Parameter(torch.zeros(2, device=device)),
    ]


@pattern
def default_device(device):
    with torch.device(device):
        inside = [torch.zeros(2), torch.tensor([1]), *nn.Linear(2, 2).parameters(), torch.randn(2)]
    torch.set_default_device(device)
    try:
        inside += [torch.zeros(2), nn.Linear(2, 2)(torch.ones(1, 2)), torch.arange(3)]
        assert torch.get_default_device().type == device
    finally:
        torch.set_default_device(None)
    return inside


# --- modules --------------------------------------------------------------------------------------


@pattern
def recurrent(device):
    lstm = nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True).to(device)
    lstm.flatten_parameters()
    out, (h, c) = lstm(torch.randn(2, 3, 4).to(device))
    gru = nn.GRU(4, 5).to(device)
    return [
        out,
        h,
        c,
        gru(torch.randn(3, 2, 4).to(device))[0],
        nn.LSTMCell(4, 5).to(device)(torch.randn(2, 4).to(device))[0],
    ]


@pattern
def attention(device):
    q, k, v = (torch.randn(2, 2, 5, 8).to(device) for _ in range(3))
    out = [F.scaled_dot_product_attention(q, k, v, is_causal=True)]
    for backends in ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], SDPBackend.MATH):
        with sdpa_kernel(backends):
            out.append(F.scaled_dot_product_attention(q, k, v))
    mask = torch.ones(5, 5, dtype=torch.bool, device=device).tril()
    return [*out, F.scaled_dot_product_attention(q, k, v, attn_mask=mask)]


@pattern
def transformer(device):
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(4, device=device)
    x = torch.randn(2, 4, 8).to(device)
    return model(x, x, tgt_mask=mask)


@pattern
def convolutions(device):
    x = torch.randn(2, 3, 8, 8).to(device)
    block = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    )
    y = block.to(device)(x)
    return [
        y,
        F.interpolate(y, scale_factor=2, mode="bilinear"),
        nn.ConvTranspose2d(4, 2, 2).to(device)(y),
        F.grid_sample(x, torch.zeros(2, 4, 4, 2, device=device), align_corners=False),
    ]


@pattern
def half_models(device):
    x = torch.randn(2, 8).to(device)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)).to(device)
    return [
        copy.deepcopy(model).bfloat16()(x.bfloat16()),
        copy.deepcopy(model).half()(x.half()),
        F.softmax(x.half(), -1),
        F.cross_entropy(x.half(), torch.tensor([1, 2]).to(device)),
    ]


@pattern
def optimizers(device):
    out = []
    kinds = [
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.SGD, {"momentum": 0.9, "lr": 0.1}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.SGD, {"fused": True, "lr": 0.1}),
    ]
    for kind, options in kinds:
        model = net(3, 4, 2).to(device)
        optimizer = kind(model.parameters(), **options)
        for _ in range(2):
            one_step(model, optimizer, torch.randn(5, 3).to(device))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        state = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(state)
        one_step(model, optimizer, torch.randn(5, 3).to(device))
        out += [norm, *model.parameters()]
    return out


@pattern
def schedulers_and_averages(device):
    model = net(3, 2).to(device)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for _ in range(3):
        one_step(model, optimizer, torch.randn(5, 3).to(device))
        scheduler.step()
        averaged.update_parameters(model)
    return list(averaged.parameters())


@pattern
def normalized_weights(device):
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)).to(device)
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)).to(device)
    return [linear(torch.ones(1, 3, device=device)), spectral(torch.ones(1, 3, device=device))]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", pattern)
def test_pattern(name, policy):
    """Values are the CPU's bit for bit, and what is on the device says so."""
    check(pattern[name], policy)
