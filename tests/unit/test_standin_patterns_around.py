"""What users write for "cuda" gives what it gives on the CPU: what is around torch."""

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.unit.device_patterns import POLICIES, Patterns, check, net

pattern = Patterns()


# --- around torch ---------------------------------------------------------------------------------


@pattern
def compiled(device):
    backend = "eager" if device == "cpu" else "inductor"  # which is not reached
    model = torch.compile(net(3, 2), backend=backend).to(device)

    @torch.compile(backend=backend)
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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", pattern)
def test_pattern(name, policy):
    """Values are the CPU's bit for bit, and what is on the device says so."""
    check(pattern[name], policy)
