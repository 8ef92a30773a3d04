"""What users write for "cuda" gives, on the stand-in device, what it gives on the CPU.

Each pattern is written once, for a device, and runs on the CPU, on the simulator and in a replay.
"""

import copy
import io
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from cudassert_ipy.standin.simulate import SimulatePolicy

PATTERNS = {}


def pattern(function):
    """Add a pattern: ``function(device)`` returns tensors on the device, or lists of them."""
    PATTERNS[function.__name__] = function
    return function


def policies():
    return {"simulate": SimulatePolicy(blocking=False), "replay": ReplayPolicy(Collector())}


def values(result):
    """Return the result as plain CPU tensors."""
    if isinstance(result, torch.Tensor):
        return result.detach().cpu()
    if isinstance(result, list | tuple):
        return [values(item) for item in result]
    return result


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def tensors(result):
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from tensors(item)


def net(*sizes):
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(item for layer in layers for item in (layer, nn.Tanh())))


def one_step(model, optimizer, x):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


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


# --- around torch ---------------------------------------------------------------------------------


@pattern
def compiled(device):
    model = torch.compile(net(3, 2)).to(device)

    @torch.compile(mode="reduce-overhead")
    def double(x):
        return x * 2

    return [model(torch.ones(2, 3, device=device)), double(torch.ones(2, device=device))]


@pattern
def scripted_and_traced(device):
    model = net(3, 2).to(device)
    x = torch.ones(2, 3, device=device)
    return [torch.jit.script(model)(x), torch.jit.trace(model, x)(x)]


@pattern
def functional_transforms(device):
    x = torch.randn(4, 3).to(device)
    model = net(3, 2).to(device)
    parameters = dict(model.named_parameters())
    call = lambda p, row: torch.func.functional_call(model, p, (row,)).sum()  # noqa: E731
    gradients = torch.vmap(torch.func.grad(call), in_dims=(None, 0))(parameters, x)
    return [
        *gradients.values(),
        torch.func.jacrev(torch.sin)(x[0]),
        torch.func.hessian(lambda v: v.square().sum())(x[0]),
        torch.vmap(torch.dot)(x, x),
    ]


@pattern
def checkpointed(device):
    out = []
    for reentrant in (False, True):
        x = torch.randn(4, 3).to(device).requires_grad_()
        checkpoint.checkpoint(net(3, 2).to(device), x, use_reentrant=reentrant).sum().backward()
        out.append(x.grad)
    return out


@pattern
def copies_and_pickles(device):
    x = torch.arange(3.0, device=device)
    model = net(3, 2).to(device)
    file = io.BytesIO()
    torch.save([x, model.state_dict()], file)
    file.seek(0)
    loaded, state = torch.load(file, weights_only=True)
    again = pickle.loads(pickle.dumps([x, model]))
    return [
        copy.deepcopy(x),
        copy.copy(x),
        x.clone(),
        loaded,
        *state.values(),
        again[0],
        again[1][0].weight,
        copy.deepcopy(model)[0].weight,
    ]


@pattern
def einsum_and_linalg(device):
    x = torch.randn(3, 3).to(device)
    return [
        torch.einsum("ij,jk->ik", x, x),
        torch.linalg.inv(x),
        torch.linalg.svd(x)[1],
        torch.linalg.norm(x),
        torch.linalg.solve(x, x),
        torch.fft.fft(x),
        x @ x,
        x.topk(2)[1],
        x.unique(),
        torch.bincount(torch.tensor([1, 2]).to(device)),
        torch.cdist(x, x),
        torch.multinomial(x.abs(), 2),
        x.cumsum(0),
        torch.histc(x),
        x.median(),
    ]


@pattern
def low_precision(device):
    x = torch.randn(4, 4).to(device)
    eighth = x.to(torch.float8_e4m3fn)
    return [
        eighth.to(torch.float32),
        eighth.float() + 1,
        x.to(device, torch.float8_e5m2).half(),
        eighth,
    ]


@pattern
def threads(device):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda n: torch.full((2,), n, device=device) * 2, range(4)))


@pattern
def loaders(device):
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    out = []
    for workers in (0, 2):
        loader = DataLoader(data, 4, num_workers=workers, pin_memory=device == "cuda")
        for x, y in loader:
            out += [x.to(device, non_blocking=True), y.to(device)]
    return out


@pattern
def generators(device):
    generator = torch.Generator(device=device)
    generator.manual_seed(3)
    return [
        torch.randn(3, device=device, generator=generator),
        torch.randint(5, (3,), device=device, generator=generator),
        torch.empty(3, device=device).normal_(generator=generator),
        torch.randperm(4, generator=generator, device=device),
        torch.multinomial(torch.ones(4, device=device), 2, generator=generator),
    ]


@pattern
def distributions(device):
    scores = torch.randn(3, 4).to(device)
    chosen = torch.distributions.Categorical(logits=scores)
    normal = torch.distributions.Normal(torch.zeros(2, device=device), torch.ones(2, device=device))
    action = chosen.sample()
    return [
        action,
        chosen.log_prob(action),
        chosen.entropy(),
        normal.rsample(),
        normal.log_prob(torch.zeros(2, device=device)),
    ]


@pattern
def autocast(device):
    model = net(4, 4, 2).to(device)
    x = torch.randn(2, 4).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        first = model(x)
    with torch.autocast(device_type=device, dtype=torch.float16, enabled=True):
        second = model(x)
    with torch.autocast(device, enabled=False):
        third = model(x)
    return [first, second, third]


@pattern
def data_parallel(device):
    model = net(3, 2).to(device)
    if device == "cuda":
        model = nn.DataParallel(model)
    return model(torch.ones(4, 3, device=device))


@pattern
def profiled(device):
    with torch.profiler.profile() as profiler:
        x = torch.ones(2, device=device) * 2
    assert profiler.key_averages()
    with torch.autograd.profiler.profile(use_device=device if device == "cuda" else None):
        x = x * 2
    with torch.autograd.detect_anomaly(check_nan=True):
        y = x.clone().requires_grad_()
        (y * 2).sum().backward()
    return [x, y.grad]


@pattern
def sparse(device):
    x = torch.eye(3, device=device).to_sparse()
    csr = torch.eye(3, device=device).to_sparse_csr()
    return [
        x.to_dense(),
        torch.sparse.mm(x, torch.ones(3, 2, device=device)),
        x.coalesce().values(),
        csr.to_dense(),
        csr @ torch.ones(3, 2, device=device),
    ]


@pytest.mark.parametrize("policy", ["simulate", "replay"])
@pytest.mark.parametrize("name", PATTERNS)
def test_pattern(name, policy):
    """Values are the CPU's bit for bit, and what is on the device says so."""
    function = PATTERNS[name]
    torch.manual_seed(0)
    expected = values(function("cpu"))
    with StandinDevice(policies()[policy]):
        torch.manual_seed(0)
        result = function("cuda")
        assert all(tensor.is_cuda for tensor in tensors(result))
        found = values(result)
    assert same(expected, found)
