"""Nothing is left behind when the stand-in device is removed."""

import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _len_torch_dispatch_stack

import cudassert_ipy
from cudassert_ipy.standin.device import StandinDevice, is_device_tensor
from cudassert_ipy.standin.patches import Patches
from cudassert_ipy.standin.simulate import SimulatePolicy

OWNERS = [
    torch,
    torch.Tensor,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.random,
    torch.cuda.streams,
    torch.cuda.graphs,
    torch.cuda.nccl,
    torch.cuda.nvtx,
    torch.cuda.profiler,
    torch.utils.dlpack,
    torch.nn.parallel.DistributedDataParallel,
    torch.accelerator,
    torch.autograd,
    torch.autograd.graph,
    torch.nn.parallel._functions,
    torch.amp.autocast_mode.autocast,
    torch.backends.cuda,
    torch.backends.cudnn,
    torch.overrides,
    torch.serialization,
    torch._C,
    torch._C._nn,
    threading.Thread,
]


def names():
    return [{name: id(value) for name, value in vars(owner).items()} for owner in OWNERS]


def stacks():
    return torch._C._len_torch_function_stack(), _len_torch_dispatch_stack()


def train():
    model = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2).cuda()).sum().backward()
    optimizer.step()
    torch.manual_seed(0)
    return model


def test_every_name_is_put_back():
    """All replaced names are the very objects from before, and new ones are gone."""
    train_on_cpu = nn.Linear(2, 2)  # lazily set names of torch itself are set now
    torch.optim.Adam(train_on_cpu.parameters()).step()
    before, depth = names(), stacks()
    with StandinDevice(SimulatePolicy(blocking=False)):
        assert names() != before
        train()
    assert stacks() == depth
    for owner, old, new in zip(OWNERS, before, names(), strict=True):
        assert {k: v for k, v in new.items() if old.get(k) != v} == {}, owner
        assert old.keys() == new.keys()


def test_after_an_error_everything_is_put_back():
    """A KeyboardInterrupt inside undoes the same."""
    before, depth = names(), stacks()

    def interrupted():
        with StandinDevice(SimulatePolicy(blocking=False)):
            torch.ones(1).cuda()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (names(), stacks()) == (before, depth)


def test_removal_twice_and_again():
    """Removing is idempotent, and the device can be installed again."""
    device = StandinDevice(SimulatePolicy(blocking=False))
    for _ in range(2):
        device.install()
        assert torch.ones(1).cuda().item() == 1.0
        device.remove()
        device.remove()
        assert not torch.cuda.is_available()


def test_removal_below_other_modes():
    """Modes that were entered later stay; ours is taken out from under them."""
    device = StandinDevice(SimulatePolicy(blocking=False))
    device.install()
    depth = stacks()
    with cudassert_ipy.guard():
        guarded = stacks()
        device.remove()
        assert stacks() == (guarded[0] - 1, guarded[1] - 1)
        with pytest.raises(cudassert_ipy.OperandError):
            torch.zeros(3)[torch.tensor([3])]
    assert stacks() == (depth[0] - 1, depth[1] - 1)


def test_threads_that_still_run_see_the_cpu_again():
    """A thread's own modes do nothing once the device is removed."""
    installed, removed = threading.Event(), threading.Event()
    seen = []

    def work():
        x = torch.ones(1).cuda()
        installed.set()
        removed.wait(10)
        seen.append((x + 1).device.type)

    with StandinDevice(SimulatePolicy(blocking=False)):
        thread = threading.Thread(target=work)
        thread.start()
        assert installed.wait(10)
    removed.set()
    thread.join()
    assert seen == ["cpu"]


def test_tensors_keep_their_tag():
    """A tensor made on the device is remembered as one: the replay needs that."""
    with StandinDevice(SimulatePolicy(blocking=False)):
        model = train()
    assert is_device_tensor(model.weight)
    assert model.weight.device.type == "cpu"


def test_tags_die_with_their_storage():
    """A new tensor at a re-used address is not on the device."""
    with StandinDevice(SimulatePolicy(blocking=False)):
        old = [torch.ones(1000, device="cuda") for _ in range(200)]
        addresses = {x.data_ptr() for x in old}
        del old
        new = [torch.ones(1000) for _ in range(400)]
        assert any(y.data_ptr() in addresses for y in new)
        assert not any(y.is_cuda for y in new)


def test_what_others_replaced_since_then_stays_theirs():
    """Undoing does not overwrite a later change of somebody else."""

    class Owner:
        a = 1

    patches = Patches()
    patches.set(Owner, "a", 2)
    patches.set(Owner, "b", 3)
    Owner.a = 4
    patches.remove()
    assert Owner.a == 4
    assert not hasattr(Owner, "b")


def test_user_modes_work_inside():
    """A dispatch mode of the user sees operations on the stand-in."""
    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with StandinDevice(SimulatePolicy(blocking=False)):
        x = torch.ones(1).cuda()
        with Log():
            assert (x + 1).is_cuda
    assert torch.ops.aten.add.Tensor in seen
