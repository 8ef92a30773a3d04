"""Patterns that are written once for a device, and compared with what they give on the CPU."""

import itertools

import torch
from torch import nn

from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from cudassert_ipy.standin.simulate import SimulatePolicy

POLICIES = {
    "simulate": lambda: SimulatePolicy(blocking=False),
    "replay": lambda: ReplayPolicy(Collector()),
}


class Patterns(dict):
    """Functions by their name; each takes a device and returns tensors on it, or lists of them."""

    def __call__(self, function):
        """Add a pattern."""
        self[function.__name__] = function
        return function


def check(function, policy):
    """Assert that values are the CPU's bit for bit, and that the results are on the device."""
    torch.manual_seed(0)
    expected = _values(function("cpu"))
    with StandinDevice(POLICIES[policy]()):
        torch.manual_seed(0)
        result = function("cuda")
        assert [n for n, tensor in enumerate(_tensors(result)) if not tensor.is_cuda] == []
        found = _values(result)
    assert _same(expected, found)


def net(*sizes):
    """Return a network of linear layers."""
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(item for layer in layers for item in (layer, nn.Tanh())))


def one_step(model, optimizer, x):
    """Train once and return the loss."""
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def _values(result):
    if isinstance(result, torch.Tensor):
        return result.detach().cpu()
    return [_values(item) for item in result]


def _same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return len(one) == len(other) and all(map(_same, one, other))


def _tensors(result):
    if isinstance(result, torch.Tensor):
        yield result
    else:
        for item in result:
            yield from _tensors(item)
