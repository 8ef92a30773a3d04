"""Healthy cells with models of other people's libraries: the CPU's results, and no finding."""

import linecache

import pytest
import torch

from cudassert_ipy.checks.guard import Guard
from cudassert_ipy.standin import simulator
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from tests.models.zoo import HEALTHY


def run(name, device):
    setup, cell = HEALTHY[name]
    names = {"device": device}
    for part, source in (("setup", setup), ("cell", cell)):
        filename = f"<{part} of {name} on {device}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        exec(compile(source, filename, "exec"), names)
    return names["result"]


@pytest.fixture(scope="module")
def on_the_cpu():
    results = {}

    def result(name):
        if name not in results:
            results[name] = run(name, "cpu")
        return results[name]

    return result


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("name", HEALTHY)
def test_replay(name, on_the_cpu):
    """A replay gives the CPU's numbers, finds nothing, and has nothing that it could not run."""
    collector = Collector()
    with StandinDevice(ReplayPolicy(collector)):
        found = run(name, "cuda")
        assert all(tensor.is_cuda for tensor in found)
        found = [tensor.detach().cpu() for tensor in found]
    assert collector.findings == []
    assert collector.gaps == []
    assert_equal(found, on_the_cpu(name))


@pytest.mark.parametrize("name", HEALTHY)
def test_simulator(name, on_the_cpu):
    """The simulated device lives, and computes what the CPU does."""
    simulator.on()
    try:
        found = [tensor.detach().cpu() for tensor in run(name, "cuda")]
        torch.cuda.synchronize()
        assert simulator.context() == "alive"
    finally:
        simulator.off()
    assert_equal(found, on_the_cpu(name))


@pytest.mark.parametrize("name", HEALTHY)
def test_guard(name, on_the_cpu):
    """The guard changes no result, and looks at the ids, labels and edges."""
    guard = Guard()
    with guard:
        found = run(name, "cpu")
    assert guard.rows
    assert not any(row.bad_count for row in guard.rows)
    assert_equal(found, on_the_cpu(name))
