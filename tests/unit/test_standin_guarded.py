"""The guard changes nothing on the stand-in device, in whichever order the two are entered."""

import contextlib

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cudassert_ipy
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.simulate import SimulatePolicy


class PassOn(TorchDispatchMode):
    """A mode of a user's that does nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def simulated():
    return StandinDevice(SimulatePolicy(blocking=False))


@contextlib.contextmanager
def entered(*contexts):
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        yield


SETTINGS = {
    "no guard": (simulated,),
    "guard inside": (simulated, cudassert_ipy.guard),
    "guard outside": (cudassert_ipy.guard, simulated),
    "two guards": (simulated, cudassert_ipy.guard, cudassert_ipy.guard),
    "a mode of the user's": (simulated, PassOn),
}


@pytest.fixture(params=SETTINGS)
def modes(request):
    return SETTINGS[request.param]


def ids(device, *values):
    return torch.tensor(values, device=device)


class Indexed(torch.autograd.Function):
    """Makes tensors of its own in both directions."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x[: len(x) // 2] + torch.zeros(len(x) // 2, *x.shape[1:], device=x.device)

    @staticmethod
    def backward(ctx, gradient):
        whole = torch.zeros(ctx.shape, device=gradient.device)
        whole[torch.arange(len(gradient), device=gradient.device)] = gradient
        return whole


def assigned(x):
    y = x.clone()
    y[ids(x.device, 0, 2)] = x[ids(x.device, 1, 3)] * 2
    return y


def accumulated(x):
    return x.clone().index_put((ids(x.device, 1, 1),), x[:2], accumulate=True)


def packed(x):
    lengths = torch.tensor([3, 2])
    sequence = nn.utils.rnn.pack_padded_sequence(x.view(2, 3, 4), lengths, batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(sequence, batch_first=True)[0]


def saved_on_the_cpu(x):
    with torch.autograd.graph.save_on_cpu():
        return x[ids(x.device, 1, 2)].exp() * x[:2]


PATHS = {
    "index": lambda x: x[ids(x.device, 0, 1, -1)],
    "index by the CPU": lambda x: x[torch.tensor([0, 5])],
    "two indices": lambda x: x[ids(x.device, 0, 1), ids(x.device, 2, 2)],
    "mask": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0, x, torch.zeros((), device=x.device)),
    "assignment": assigned,
    "accumulation": accumulated,
    "index_select": lambda x: x.index_select(1, ids(x.device, 3, 0)),
    "index_add": lambda x: x.index_add(0, ids(x.device, 0, 0), x[:2]),
    "index_fill": lambda x: x.index_fill(0, ids(x.device, 0, 1), 3.0),
    "gather": lambda x: x.gather(1, torch.zeros(6, 2, dtype=torch.int64, device=x.device)),
    "scatter": lambda x: x.scatter(0, ids(x.device, 0, 1).view(1, 2), x[:1, :2]),
    "scatter_add": lambda x: x.scatter_add(0, ids(x.device, 0, 0).view(1, 2), x[:1, :2]),
    "embedding": lambda x: F.embedding(ids(x.device, 0, 5, 5), x, padding_idx=0),
    "embedding_bag": lambda x: F.embedding_bag(ids(x.device, 0, 5, 5).view(1, 3), x),
    "cross_entropy": lambda x: F.cross_entropy(x, ids(x.device, 0, 1, 2, 3, 0, -100)),
    "smoothed": lambda x: F.cross_entropy(
        x, ids(x.device, 0, 1, 2, 3, 0, -100), torch.ones(4, device=x.device), label_smoothing=0.1
    ),
    "pixels": lambda x: F.cross_entropy(x.view(2, 4, 3), torch.ones_like(x[:2, :3]).long()),
    "max": lambda x: x.max(1).values,
    "sort": lambda x: x.sort(0).values,
    "topk": lambda x: x.topk(2).values,
    "cumprod": lambda x: x.cumprod(0),
    "prod": lambda x: (x * 0).prod(1),
    "slices": lambda x: x[1:4, ::2],
    "unfold": lambda x: x.unfold(0, 3, 2),
    "strided": lambda x: x.as_strided((3, 2), (4, 1)),
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: x.split(2)[1],
    "unbind": lambda x: x.unbind()[2],
    "roll and flip": lambda x: x.roll(1, 0).flip(1),
    "pad": lambda x: F.pad(x, (1, 1), "reflect"),
    "interpolate": lambda x: F.interpolate(x.view(2, 3, 4), scale_factor=2, mode="linear"),
    "max_pool": lambda x: F.max_pool1d(x.view(2, 3, 4), 2),
    "adaptive_pool": lambda x: F.adaptive_avg_pool1d(x.view(2, 3, 4), 2),
    "attention": lambda x: F.scaled_dot_product_attention(
        *(x.view(1, 2, 3, 4),) * 3, is_causal=True
    ),
    "norms": lambda x: F.layer_norm(F.group_norm(x.view(1, 6, 4), 2), (4,)).norm(),
    "solve": lambda x: torch.linalg.solve(x[:4] + 5 * torch.eye(4, device=x.device), x[:4]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "packed": packed,
    "own function": Indexed.apply,
    "checkpoint": lambda x: checkpoint(
        lambda y: y[ids(y.device, 1, 2)] * torch.full((2, 4), 2.0, device=y.device),
        x,
        use_reentrant=False,
    ),
    "reentrant checkpoint": lambda x: checkpoint(
        lambda y: y[ids(y.device, 1, 2)].exp(), x, use_reentrant=True
    ),
    "saved on the CPU": saved_on_the_cpu,
    "to and fro": lambda x: (x.cpu() * 2).to(x.device)[ids(x.device, 0, 1)],
    "vmap": lambda x: torch.vmap(lambda row: row.index_select(0, ids(x.device, 0, 1)))(x),
    "hessian": lambda x: torch.func.hessian(lambda row: row.pow(3).sum())(x[0]),
    "dropout": lambda x: F.dropout(x, 0.5),
    "random": lambda x: x * torch.rand_like(x) + torch.randn(4, device=x.device),
    "new": lambda x: x + x.new_zeros(4) + x.new_full((4,), 2.0) + torch.ones_like(x),
    "aten": lambda x: torch.ops.aten.index.Tensor(x, [ids(x.device, 0, 1)]),
}


ONCE = {"embedding_bag", "attention", "reentrant checkpoint", "own function", "saved on the CPU"}
"""What torch has no double backward for."""


def gradients(name, device):
    """Return result, gradient and gradient of the gradient, all on ``device``."""
    torch.manual_seed(0)
    x = torch.randn(6, 4).to(device).requires_grad_()
    torch.manual_seed(1)
    y = PATHS[name](x)
    out = [y]
    if name in ONCE:
        (y * y).sum().backward()
        out.append(x.grad)
    else:
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        out.append(first)
        if first.requires_grad:
            out += torch.autograd.grad(first.sum(), x, allow_unused=True)
    out = [item for item in out if item is not None]
    assert {item.device.type for item in out} == {device}
    return [item.detach().cpu() for item in out]


@pytest.mark.parametrize("path", PATHS)
def test_results_and_gradients_are_the_cpus(modes, path):
    """Forward, backward and double backward give the CPU's numbers, and stay on the device."""
    with entered(*([PassOn] if path == "cumprod" else [])):  # torch has another formula for modes
        expected = gradients(path, "cpu")
    with entered(*modes):
        found = gradients(path, "cuda")
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
