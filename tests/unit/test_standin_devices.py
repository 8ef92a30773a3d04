"""Two stand-in devices, as in the replay of a machine with two GPUs."""

import pytest
import torch
from torch import nn

from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy


@pytest.fixture(autouse=True)
def two_devices():
    with StandinDevice(ReplayPolicy(Collector(), device_count=2)):
        yield


def test_operands_on_two_devices_do_not_mix():
    """They are refused in torch's words, and copies between them are made."""
    one, other = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cuda:1!"):
        one + other
    with pytest.raises(RuntimeError, match="at least two devices, cuda:1 and cuda:0!"):
        torch.cat([other, one])
    assert str(one.copy_(other * 3).device) == "cuda:0"
    assert str(other.device) == "cuda:1"
    assert one.tolist() == [3.0, 3.0]
    assert str((one.to(other) + other).device) == "cuda:1"


def test_data_parallel_on_two_devices():
    """nn.DataParallel deals out the batch, gathers on the first device, and has gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    x = torch.randn(8, 3)
    with torch.no_grad():
        expected = model.eval()(x)
    parallel = nn.DataParallel(model.cuda())
    assert parallel.device_ids == [0, 1]
    seen = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(str(out.device)))
    out = parallel(x.cuda())
    assert str(out.device) == "cuda:0"
    assert sorted(seen) == ["cuda:0", "cuda:1"]
    assert torch.allclose(out.cpu(), expected, atol=1e-6)
    out.sum().backward()
    assert str(model[0].weight.grad.device) == "cuda:0"
    assert torch.allclose(model[2].bias.grad.cpu(), torch.full((2,), 8.0))


def test_each_device_has_its_streams():
    """A stream context makes the stream's device the current one."""
    stream = torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream(0) == torch.cuda.default_stream(0)
    assert torch.cuda.current_device() == 0
    assert torch.cuda.can_device_access_peer(0, 1)
    assert len(torch.cuda.get_rng_state_all()) == 2


def test_a_model_split_over_two_devices():
    """Layers on different devices train together when the user moves the activations."""
    first, second = nn.Linear(3, 4).to("cuda:0"), nn.Linear(4, 2).to("cuda:1")
    out = second(first(torch.ones(2, 3, device="cuda:0")).to("cuda:1"))
    out.sum().backward()
    assert str(first.weight.grad.device) == "cuda:0"
    assert str(second.weight.grad.device) == "cuda:1"
    with pytest.raises(RuntimeError, match="at least two devices"):
        second(first(torch.ones(2, 3, device="cuda:0")))
