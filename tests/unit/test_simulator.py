"""The simulated device fails, prints and dies as CUDA does."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cudassert_ipy.decode.assertions import AssertionParser
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.standin import simulator
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.simulate import MAX_LINES, SimulatePolicy

DEAD = "CUDA error: device-side assert triggered"


@pytest.fixture
def policy():
    policy = SimulatePolicy(blocking=False)
    with StandinDevice(policy):
        yield policy


def assertions(text):
    parser = AssertionParser()
    parser.feed(text.encode())
    return parser.close()


def lookup(bad=10):
    return nn.Embedding(10, 4).cuda()(torch.tensor([1, 2, bad], device="cuda"))


def cross_entropy():
    scores = torch.randn(3, 5, device="cuda", requires_grad=True)
    return F.cross_entropy(scores, torch.tensor([0, 5, 1], device="cuda"))


def cross_entropy_2d():
    scores = torch.randn(2, 5, 3, device="cuda", requires_grad=True)
    return F.cross_entropy(scores, torch.full((2, 3), -1, device="cuda"))


def index():
    return torch.zeros(3, device="cuda", requires_grad=True)[torch.tensor([3], device="cuda")]


def assign():
    x = torch.zeros(3, device="cuda")
    x[torch.tensor([-4], device="cuda")] = 1.0
    return (x * torch.ones(3, device="cuda", requires_grad=True)).sum()


FAULTS = {
    "embedding": (lookup, "srcIndex < srcSelectDimSize", (3, 4)),
    "cross_entropy": (cross_entropy, "t >= 0 && t < n_classes", ()),
    "cross_entropy_2d": (cross_entropy_2d, "t >= 0 && t < n_classes", ()),
    "x[i]": (
        index,
        '-sizes[i] <= index && index < sizes[i] && "index out of bounds"',
        (1,),
    ),
    "x[i] = v": (
        assign,
        '-sizes[i] <= index && index < sizes[i] && "index out of bounds"',
        (),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_operand_shows_at_the_next_synchronizing_call(policy, capfd, fault):
    """Shapes, later operations and backward go on; text and error come when the host waits."""
    run, expression, shape = FAULTS[fault]
    out = run()
    assert policy.failed
    assert out.shape == shape
    assert out.is_cuda
    loss = out.sum()
    loss.backward()
    assert capfd.readouterr().err == ""
    with pytest.raises(RuntimeError, match=DEAD) as caught:
        loss.item()
    assert type(caught.value) is torch.AcceleratorError
    assert caught.value.error_code == 710
    found = assertions(capfd.readouterr().err)
    assert {item.expression for item in found} == {expression}
    assert all(item.known for item in found)


def test_optimizers_and_clipping_go_on_until_the_host_waits(policy):
    """A whole training step passes after the failing kernel."""
    model = nn.Linear(4, 5).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(lookup()).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert policy.failed
    assert not policy.noticed


WAITS = {
    "item": lambda x: x[0, 0].item(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "tolist": lambda x: x.tolist(),
    "print": str,
    "format": lambda x: f"{x.sum():.3f}",
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.sum()),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "to the device": lambda x: torch.ones(1).cuda(),
    "copy to a CPU tensor": lambda x: torch.zeros(3, 4).copy_(x),
    "copy from a CPU tensor": lambda x: x.copy_(torch.zeros(3, 4)),
    "tensor on the device": lambda x: torch.tensor([1.0], device="cuda"),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "accelerator": lambda x: torch.accelerator.synchronize(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "event": lambda x: torch.cuda.Event().synchronize(),
    "save": lambda x: torch.save(x, os.devnull),
}


@pytest.mark.parametrize("wait", WAITS)
def test_every_call_that_waits_reports(policy, capfd, wait):
    """Each synchronizing call prints the text once and raises."""
    x = lookup().detach()
    with pytest.raises(torch.AcceleratorError, match=DEAD):
        WAITS[wait](x)
    assert "srcIndex < srcSelectDimSize" in capfd.readouterr().err
    with pytest.raises(torch.AcceleratorError, match=DEAD):
        torch.cuda.synchronize()
    assert capfd.readouterr().err == ""


def test_a_pinned_non_blocking_copy_does_not_wait(policy):
    """Only copies that really are asynchronous pass by the error."""
    host = torch.ones(1).pin_memory()
    lookup()
    assert host.to("cuda", non_blocking=True).is_cuda
    with pytest.raises(torch.AcceleratorError):
        torch.ones(1).to("cuda", non_blocking=True)


AFTER_DEATH = {
    "kernel": lambda x: x + 1,
    "allocation": lambda x: torch.zeros(2, device="cuda"),
    "empty": lambda x: torch.empty(2, device="cuda"),
    "copy": lambda x: x.cpu(),
    "copy in": lambda x: torch.ones(1).cuda(),
    "print": str,
    "tolist": lambda x: x.tolist(),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "query": lambda x: torch.cuda.current_stream().query(),
    "event": lambda x: torch.cuda.Event().record(),
    "memory": lambda x: torch.cuda.mem_get_info(),
    "empty_cache": lambda x: torch.cuda.empty_cache(),
    "deepcopy": lambda x: x.clone(),
}


def test_after_death_every_call_fails_and_the_cpu_works(policy):
    """The context is gone; metadata, views and CPU tensors are as before."""
    x = lookup().detach()
    cpu = torch.ones(2)
    with pytest.raises(torch.AcceleratorError):
        torch.cuda.synchronize()
    for call in AFTER_DEATH.values():
        with pytest.raises(torch.AcceleratorError, match=DEAD):
            call(x)
    assert (x.shape, x.dtype, str(x.device)) == ((3, 4), torch.float32, "cuda:0")
    assert x.view(-1)[1:].shape == (11,)
    assert (cpu + 1).tolist() == [2.0, 2.0]
    assert torch.cuda.is_available()
    assert "Simulated" in torch.cuda.get_device_name()


def test_a_query_tells_of_the_death_without_text(policy, capfd):
    """``query`` raises and prints nothing; the text comes with the next synchronize."""
    lookup()
    with pytest.raises(torch.AcceleratorError, match=DEAD):
        torch.cuda.current_stream().query()
    assert capfd.readouterr().err == ""
    with pytest.raises(torch.AcceleratorError, match=DEAD):
        torch.cuda.synchronize()
    assert "Assertion `srcIndex < srcSelectDimSize` failed." in capfd.readouterr().err


def test_the_text_is_one_line_for_each_failing_thread(policy, capfd):
    """Blocks and threads follow the positions of the bad values; a flood is cut."""
    nn.Embedding(10, 4).cuda()(torch.full((20, 100), 99).cuda())
    with pytest.raises(torch.AcceleratorError):
        torch.cuda.synchronize()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(set(lines)) == MAX_LINES


def test_with_blocking_launches_the_operation_raises(capfd):
    """The error is at the operation, and its text has no hint about asynchronous reporting."""
    with StandinDevice(SimulatePolicy(blocking=True)):
        with pytest.raises(torch.AcceleratorError, match=DEAD) as caught:
            lookup()
        assert caught.traceback[-1].path.name != "test_simulator.py"
        assert "asynchronously" not in str(caught.value)
        assert "srcIndex" in capfd.readouterr().err


def test_blocking_is_read_from_the_environment(monkeypatch):
    """CUDA_LAUNCH_BLOCKING counts when the simulator is switched on."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert SimulatePolicy().blocking
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    assert not SimulatePolicy().blocking
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")
    assert not SimulatePolicy().blocking


def test_latency():
    """With a latency the error is noticed by a launch, after that many further ones."""
    with StandinDevice(SimulatePolicy(blocking=False, latency=2)):
        x = lookup()
        x = x + 1
        x = x + 1
        with pytest.raises(torch.AcceleratorError, match=DEAD):
            x + 1


def test_out_of_memory_leaves_the_context_alive(policy):
    """More than the simulated memory is CUDA's out-of-memory error, and nothing else happens."""
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 372"):
        torch.empty(10**11, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"GPU 0 has a total capacity of 16.00 GiB"):
        torch.zeros(1).cuda().new_zeros((10**6, 10**6))
    assert not policy.failed
    assert torch.zeros(2, device="cuda").tolist() == [0.0, 0.0]


def test_memory_is_counted_as_long_as_it_lives(policy):
    """memory_allocated follows storages, not views."""
    before = torch.cuda.memory_allocated()
    x = torch.empty(2**20, device="cuda")
    view = x[1:]
    assert torch.cuda.memory_allocated() - before == 2**22
    del x
    assert torch.cuda.memory_allocated() - before == 2**22
    del view
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= 2**22


def test_small_tensors_add_up():
    """Many allocations fill the memory; freeing makes room again."""
    with StandinDevice(SimulatePolicy(blocking=False, total_bytes=1000)):
        kept = [torch.zeros(100, device="cuda"), torch.zeros(100, device="cuda")]
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(100, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            kept[0] + 1
        kept.pop()
        assert (kept[0] + 1).sum().item() == 100.0


def test_on_and_off():
    """The simulator can be switched, repeatedly, and says its state."""
    assert not simulator.is_on()
    simulator.on()
    try:
        simulator.on()
        assert simulator.is_on()
        assert simulator.context() == "alive"
        lookup()
        assert simulator.context() == "dead"
        simulator.off()
        assert not torch.cuda.is_available()
        simulator.on()
        assert simulator.context() == "alive"
        assert torch.ones(1).cuda().item() == 1.0
    finally:
        simulator.off()
    assert not simulator.is_on()
    assert simulator.context() == "alive"


def test_only_the_main_thread_switches():
    """Modes belong to a thread: from another one, both ways are refused and change nothing."""
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(CudassertError, match="main thread"):
            pool.submit(simulator.on).result()
        assert not simulator.is_on()
        assert not torch.cuda.is_available()
        pool.submit(simulator.off).result()  # nothing to do
        simulator.on()
        try:
            pool.submit(simulator.on).result()  # nothing to do
            with pytest.raises(CudassertError, match="main thread"):
                pool.submit(simulator.off).result()
            assert simulator.is_on()
            assert torch.ones(1, device="cuda").is_cuda
        finally:
            simulator.off()
    assert not simulator.is_on()


@pytest.mark.parametrize("stderr", ["closed", "a pipe nobody reads", "a full pipe"])
def test_the_error_comes_also_where_its_text_cannot_be_written(stderr):
    """Whatever becomes of the assertion text, the synchronizing call raises CUDA's error."""
    script = """
        import os, sys, torch
        from cudassert_ipy.standin import simulator
        simulator.on()
        torch.zeros(1, device="cuda")[torch.tensor([1], device="cuda")]
        reader, writer = os.pipe()
        if sys.argv[1] == "closed":
            os.close(2)
        else:
            os.dup2(writer, 2)
            os.set_blocking(2, False)
            if sys.argv[1] == "a full pipe":
                os.write(2, bytes(2**22))
            else:
                os.close(reader)
        try:
            torch.cuda.synchronize()
        except torch.AcceleratorError as error:
            print(error.error_code)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), stderr],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "710\n"


def test_text_and_error_of_a_script():
    """A script on the simulator leaves what a CUDA script leaves: assertion lines, a traceback."""
    script = """
        from cudassert_ipy.standin import simulator
        simulator.on()
        import torch
        emb = torch.nn.Embedding(1000, 128).cuda()
        out = emb(torch.tensor([[1000]]).cuda())
        loss = out.sum()
        print(loss.item())
    """
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_LAUNCH_BLOCKING"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 1
    first, *_, last = done.stderr.strip().splitlines()
    assert first.endswith("Assertion `srcIndex < srcSelectDimSize` failed.")
    assert "torch.AcceleratorError: CUDA error: device-side assert triggered" in done.stderr
    assert last == "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"
