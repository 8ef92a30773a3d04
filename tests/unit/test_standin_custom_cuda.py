"""CUDA code that is not torch's: named in one sentence, with what came before still checked."""

import contextlib
import sys
import types

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cudassert_ipy.errors import OperandError
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from cudassert_ipy.standin.simulate import SimulatePolicy
from cudassert_ipy.standin.third_party import custom_cuda
from cudassert_ipy.standin.unsupported import NeedsDeviceError


@pytest.fixture
def collector():
    return Collector()


@pytest.fixture
def install(collector):
    """Install a replay's device when the test has set up what is imported already."""
    devices = []

    def install(policy=None):
        device = StandinDevice(policy or ReplayPolicy(collector))
        device.install()
        devices.append(device)

    yield install
    for device in devices:
        device.remove()


def module(monkeypatch, name, source):
    """Import a module of that name with that source."""
    made = types.ModuleType(name)
    exec(compile(source, f"/site-packages/{name}.py", "exec"), made.__dict__)
    monkeypatch.setitem(sys.modules, name, made)
    return made


TRITON = """
class JITFunction:
    def __init__(self, fn):
        self.fn, self.__name__ = fn, fn.__name__
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)
    def run(self, *args, grid, **kwargs):
        raise ValueError("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)")
"""


def test_a_triton_kernel_is_named(monkeypatch, install, collector):
    """The kernel is not launched; operands before it were checked."""
    triton = module(monkeypatch, "triton.runtime.jit", TRITON)
    original = triton.JITFunction.run

    @triton.JITFunction
    def add_kernel(x):
        """Never run."""

    install()
    table = nn.Embedding(4, 2).cuda()
    with pytest.raises(OperandError):
        table(torch.tensor([4], device="cuda"))
    with pytest.raises(NeedsDeviceError) as caught:
        add_kernel[(1,)](table.weight)
    text = custom_cuda(caught.value)
    assert text.startswith("The Triton kernel add_kernel cannot run on the CPU")
    assert "%%cuda_debug on the GPU" in text
    assert "restart and replay" in text
    assert collector.gaps == [text]
    assert len(collector.findings) == 1
    StandinDevice._installed.remove()
    assert triton.JITFunction.run is original


def test_a_triton_kernel_imported_later(monkeypatch, install):
    """Triton's own complaint about a CPU tensor is recognized by where it comes from."""
    install()
    triton = module(monkeypatch, "triton.runtime.jit", TRITON)
    with pytest.raises(ValueError, match="cannot be accessed from Triton") as caught:
        triton.JITFunction(max)[(1,)](torch.ones(1, device="cuda"))
    assert custom_cuda(caught.value).startswith("CUDA code of triton (")


PACKAGES = {
    "bitsandbytes": "def quantize_4bit(x):\n    raise RuntimeError('Error no kernel image')",
    "flash_attn": "def flash_attn_func(q):\n    raise RuntimeError('q must be on CUDA')",
    "xformers": "def attention(q):\n    raise NotImplementedError('No operator found')",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_of_kernels(monkeypatch, install, name):
    """An error out of a package of CUDA kernels names the package and its function."""
    package = module(monkeypatch, name, PACKAGES[name])
    install()
    function = next(v for k, v in vars(package).items() if isinstance(v, types.FunctionType))
    with pytest.raises(RuntimeError) as caught:
        function(torch.ones(1, device="cuda"))
    assert custom_cuda(caught.value).startswith(
        f"CUDA code of {name} ({function.__name__}) cannot run on the CPU"
    )


@pytest.fixture
def library():
    library = torch.library.Library("cudassert_test", "DEF")
    library.define("ball_query(Tensor x) -> Tensor")
    library.impl("ball_query", lambda x: x, "CUDA")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x * 2, "CPU")
    yield library
    library._destroy()


@pytest.mark.parametrize("simulated", [False, True])
def test_a_custom_operation_without_a_cpu_kernel(install, collector, library, simulated):
    """It is named; one that has a CPU kernel runs, and its result is on the device."""
    install(SimulatePolicy(blocking=False) if simulated else None)
    x = torch.ones(2, device="cuda")
    assert torch.ops.cudassert_test.doubled(x).is_cuda
    with pytest.raises(NeedsDeviceError, match="operation cudassert_test::ball_query cannot run"):
        torch.ops.cudassert_test.ball_query(x)
    assert len(collector.gaps) == (0 if simulated else 1)


def test_a_custom_operation_made_in_python(install, collector):
    """The same for ``torch.library.custom_op`` with a kernel for CUDA only."""

    @torch.library.custom_op("cudassert_test_python::fused", mutates_args=(), device_types="cuda")
    def fused(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    install()
    with pytest.raises(NeedsDeviceError, match="operation cudassert_test_python::fused cannot run"):
        fused(torch.ones(2, device="cuda"))
    assert len(collector.gaps) == 1


def test_a_swallowed_refusal_is_noted(install, collector, library):
    """A program that falls back to other code leaves a gap all the same."""
    install()
    with contextlib.suppress(RuntimeError):
        torch.ops.cudassert_test.ball_query(torch.ones(2, device="cuda"))
    assert len(collector.gaps) == 1


def test_an_extension_is_named_as_it_is_called(install):
    """A compiled function that wants a CUDA tensor is named by the call in the source."""
    install()
    extension = types.SimpleNamespace(forward=_check_cuda)
    with pytest.raises(RuntimeError) as caught:
        extension.forward(torch.ones(2, device="cuda"))
    # A compiled function has no Python frame: the traceback ends in the line that calls it.
    caught.value.__traceback__.tb_next = None
    text = custom_cuda(caught.value)
    assert text.startswith("The custom CUDA function extension.forward cannot run on the CPU")


def _check_cuda(x):
    msg = "x must be a CUDA tensor"
    raise RuntimeError(msg)


def test_ordinary_errors_are_not_custom_code(install):
    """Errors of the user and of torch are not blamed on CUDA code."""
    install()

    def of_the_user():
        msg = "shapes do not fit"
        raise RuntimeError(msg)

    x = torch.ones(2, device="cuda")
    for call in (of_the_user, lambda: x @ torch.ones(3, device="cuda"), lambda: x + torch.ones(2),
                 lambda: x.numpy(), lambda: x.no_such_method(), lambda: x[5]):  # fmt: skip
        with pytest.raises(Exception) as caught:
            call()
        assert custom_cuda(caught.value) is None


def test_the_replay_of_a_graph_is_refused(install, collector):
    """The capture runs and is checked; ``replay()`` is refused in one sentence."""
    install()
    x = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = x * 2
        with pytest.raises(OperandError):
            torch.ones(3, device="cuda")[torch.tensor([3], device="cuda")]
    assert not torch.cuda.is_current_stream_capturing()
    assert y.tolist() == [2.0, 2.0]
    with pytest.raises(NeedsDeviceError, match="replay of a CUDA graph cannot run on the CPU"):
        graph.replay()
    assert len(collector.gaps) == 1


def test_distributed_training_is_refused(install, collector):
    """DistributedDataParallel needs its processes."""
    install()
    with pytest.raises(NeedsDeviceError, match="DistributedDataParallel cannot run on the CPU"):
        nn.parallel.DistributedDataParallel(nn.Linear(2, 2).cuda(), device_ids=[0])
    assert len(collector.gaps) == 1


HALF = {
    "kthvalue": lambda x: x.kthvalue(2)[0],
    "cdist": lambda x: torch.cdist(x, x),
    "pdist": F.pdist,
    "cholesky": lambda x: torch.linalg.cholesky(torch.eye(4, dtype=x.dtype, device=x.device)),
    "labels": lambda x: F.multi_margin_loss(x, torch.arange(4, device=x.device)),
    "in place": lambda x: F.rrelu_(x, training=True),
}


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_without_a_cpu_kernel(install, collector, name, dtype):
    """It is computed in float32, cast back, and said once where the CPU cannot."""
    x = torch.arange(16.0).view(4, 4)
    torch.manual_seed(0)
    expected = HALF[name](x.clone()).to(dtype)
    cpu_can = True
    try:
        HALF[name](x.to(dtype))
    except RuntimeError:
        cpu_can = False
    install()
    y = x.to("cuda", dtype)
    torch.manual_seed(0)
    out = HALF[name](y)
    assert (out.dtype, out.is_cuda) == (dtype, True)
    assert torch.allclose(out.cpu().float(), expected.float(), rtol=0.02)
    if name == "in place":
        assert out is y
    if not cpu_can:
        HALF[name](y)
        assert len(collector.remarks) == 1
        assert str(dtype).removeprefix("torch.") in collector.remarks[0]
    assert collector.gaps == []


def test_gradients_in_half(install, collector):
    """The backward kernel that is missing as well is computed in float32."""
    x = torch.arange(16.0).view(4, 4)
    leaf = x.clone().requires_grad_()
    torch.cdist(leaf, leaf + 1).sum().backward()
    install()
    half = x.to("cuda", torch.float16).requires_grad_()
    torch.cdist(half, half + 1).sum().backward()
    assert (half.grad.dtype, half.grad.is_cuda) == (torch.float16, True)
    assert torch.allclose(half.grad.cpu().float(), leaf.grad, atol=0.02)
    assert len(collector.remarks) == 1


def test_a_transform_in_half(install, collector):
    """Complex results are complex half, and what is computed from them is half."""
    x = torch.arange(16.0)
    window = torch.hann_window(4)
    expected = torch.stft(x, 4, window=window, return_complex=True).abs()
    install()
    x, window = x.to("cuda", torch.float16), window.to("cuda", torch.float16)
    out = torch.stft(x, 4, window=window, return_complex=True)
    assert (out.dtype, out.abs().dtype) == (torch.complex32, torch.float16)
    assert torch.allclose(out.abs().cpu().float(), expected, atol=0.05)


def test_some_half_operations_have_no_cpu_kernel():
    """The test above tests something: at least one of its operations is missing."""
    missing = 0
    for function in HALF.values():
        try:
            function(torch.ones(4, 4).half())
        except RuntimeError:
            missing += 1
    assert missing >= 4


def test_errors_that_both_devices_raise_stay(install):
    """An error of another kind is the user's."""
    install()
    with pytest.raises(RuntimeError, match="Low precision dtypes not supported"):
        torch.linalg.inv(torch.eye(2, device="cuda").half())
