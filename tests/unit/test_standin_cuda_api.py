"""Names of torch.cuda that have no twin on the CPU, in the simulator and in a replay."""

import threading
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from cudassert_ipy.standin.simulate import SimulatePolicy

POLICIES = {
    "simulate": lambda: SimulatePolicy(blocking=False),
    "replay": lambda: ReplayPolicy(Collector()),
}


@pytest.fixture(autouse=True, params=POLICIES)
def standin(request):
    with StandinDevice(POLICIES[request.param]()) as device:
        yield device


def test_legacy_tensor_types():
    """The types of ``torch.cuda`` make, convert and recognize device tensors."""
    x = torch.cuda.FloatTensor([1, 2])
    assert x.is_cuda
    assert x.tolist() == [1.0, 2.0]
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.LongTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert x.type() == "torch.cuda.FloatTensor"
    for kind in ("torch.cuda.LongTensor", torch.cuda.LongTensor):
        y = torch.ones(2).type(kind)
        assert (y.is_cuda, y.dtype) == (True, torch.int64)
    assert not x.type("torch.FloatTensor").is_cuda
    assert x.type(x.type()) is x


def test_default_tensor_type():
    """``set_default_tensor_type`` with a type of the device makes factories use it."""
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        assert torch.zeros(2).is_cuda
        torch.set_default_tensor_type(torch.cuda.DoubleTensor)
        assert torch.zeros(2).dtype == torch.float64
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.zeros(2).is_cuda


def test_streams():
    """A stream context makes its stream the current one; waiting and events work."""
    default, side = torch.cuda.current_stream(), torch.cuda.Stream()
    assert default == torch.cuda.default_stream()
    assert side != default
    assert isinstance(side, torch.cuda.Stream)
    assert isinstance(side, torch.Stream)
    x = torch.ones(2, device="cuda")
    side.wait_stream(default)
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        y = x * 2
        y.record_stream(side)
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == default
    default.wait_stream(side)
    event = side.record_event()
    default.wait_event(event)
    assert event.query()
    torch.cuda.set_stream(side)
    assert torch.cuda.current_stream() == side
    torch.cuda.set_stream(default)
    with side:
        assert torch.cuda.current_stream() == side
    generic = torch.Stream(device="cuda")
    generic.synchronize()
    assert generic.device == torch.device("cuda", 0)
    torch.Event(device="cuda").record()
    assert torch.cuda.ExternalStream(0).query()
    with torch.cuda.StreamContext(side):
        assert torch.cuda.current_stream() == side
    assert y.tolist() == [2.0, 2.0]


def test_events_measure():
    """Events give milliseconds, and refuse without ``enable_timing`` as on the device."""
    start, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
    start.record()
    start.wait()
    end.record(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    plain = torch.cuda.Event()
    plain.record()
    with pytest.raises(ValueError, match="enable_timing"):
        plain.elapsed_time(end)


def test_devices():
    """Device contexts, and what programs ask before they choose a device."""
    cuda = torch.cuda
    assert cuda.device_count() == 1
    with cuda.device(0), cuda.device("cuda"), cuda.device(torch.device("cuda:0")):
        assert cuda.current_device() == 0
    with cuda.device_of(torch.ones(1, device="cuda")):
        assert cuda.current_device() == 0
    cuda.set_device("cuda:0")
    properties = cuda.get_device_properties("cuda:0")
    assert properties.total_memory > 2**30
    assert (properties.major, properties.minor) == cuda.get_device_capability(0)
    assert properties.multi_processor_count > 0
    assert cuda.is_bf16_supported()
    assert cuda.get_arch_list()
    assert cuda.get_gencode_flags() is not None
    assert cuda.can_device_access_peer(0, 0) is False
    accelerator = torch.accelerator
    assert accelerator.device_count() == 1
    assert accelerator.current_accelerator().type == "cuda"
    assert str(accelerator.current_device_index()) == "0"
    accelerator.set_device_index(0)
    accelerator.synchronize()
    with accelerator.device_index(0):
        pass
    assert accelerator.current_stream() == cuda.current_stream()
    assert torch.get_device_module("cuda") is cuda
    assert torch.get_device_module() is cuda
    chosen = torch.device("cuda" if cuda.is_available() else "cpu")
    assert torch.zeros(1, device=chosen).is_cuda
    assert torch.zeros(1, device=chosen).get_device() == 0
    assert cuda.utilization() >= 0
    assert cuda.get_device_name(torch.device("cuda")) == cuda.get_device_name()


def test_memory():
    """Memory can be asked about, reset and emptied."""
    cuda = torch.cuda
    x = torch.ones(1000, device="cuda")
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
    ):
        assert getattr(cuda, name)() >= 0
        assert getattr(cuda.memory, name)("cuda") >= 0
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    cuda.reset_accumulated_memory_stats()
    cuda.ipc_collect()
    cuda.set_per_process_memory_fraction(0.9, 0)
    assert isinstance(cuda.memory_summary(), str)
    assert "allocated_bytes.all.current" in cuda.memory_stats()
    assert cuda.memory_snapshot() == []
    cuda.memory._record_memory_history(max_entries=10)
    assert "segments" in cuda.memory._snapshot()
    cuda.memory._record_memory_history(enabled=None)
    assert isinstance(cuda.list_gpu_processes(), str)
    free, total = cuda.mem_get_info(0)
    assert 0 < free <= total
    assert cuda.get_allocator_backend() == "native"
    assert x.sum() == 1000


def test_random_state():
    """Seeds and states of the device's generator can be set, saved and forked."""
    torch.cuda.manual_seed(1)
    first = torch.rand(2, device="cuda")
    with torch.random.fork_rng(devices=[0]):
        torch.rand(2, device="cuda")
    torch.cuda.seed()
    assert isinstance(torch.cuda.initial_seed(), int)
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    torch.cuda.manual_seed_all(1)
    assert torch.equal(torch.rand(2, device="cuda"), first)
    generator = torch.cuda.default_generators[0]
    generator.manual_seed(1)
    assert torch.equal(torch.rand(2, device="cuda", generator=generator), first)
    state = torch.Generator("cuda").get_state()
    torch.Generator(device="cuda:0").set_state(state)


def test_pinned_memory():
    """Pinned tensors say so, whether pinned afterwards or made so."""
    assert not torch.ones(2).is_pinned()
    assert torch.ones(2).pin_memory().is_pinned()
    made = torch.empty(3, pin_memory=True)
    assert made.is_pinned()
    assert torch.zeros_like(made, pin_memory=True).is_pinned()
    assert torch.tensor([1], pin_memory=True).is_pinned()
    assert made.cuda(non_blocking=True).is_cuda
    assert not made.cuda().is_pinned()
    back = torch.empty(2, pin_memory=True)
    back.copy_(torch.ones(2, device="cuda"), non_blocking=True)
    torch.cuda.synchronize()
    assert back.tolist() == [1.0, 1.0]


def test_autocast_is_asked_about():
    """Within autocast for the device, torch says that it is on."""
    assert not torch.is_autocast_enabled()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        assert torch.get_autocast_gpu_dtype() == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert not torch.is_autocast_enabled()
    with torch.amp.autocast("cuda"):
        assert torch.get_autocast_dtype("cuda") == torch.float16

    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x

    with torch.autocast("cuda"):
        assert (
            forward(types.SimpleNamespace(), torch.ones(1, device="cuda").half()).dtype
            == torch.float32
        )


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_older_autocast():
    """The spellings of ``torch.cuda.amp`` work, scaler and decorator included."""
    model = nn.Linear(4, 2).cuda()
    scaler = torch.cuda.amp.GradScaler(init_scale=8.0)
    optimizer = torch.optim.AdamW(model.parameters())

    @torch.cuda.amp.autocast()
    def call(x):
        return model(x)

    with torch.cuda.amp.autocast(dtype=torch.float16):
        assert call(torch.ones(1, 4, device="cuda")).dtype == torch.float16
    scaler.scale(call(torch.ones(1, 4, device="cuda")).float().sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 8.0


def test_backends():
    """cuDNN, cuBLAS and attention switches can be read and set."""
    cudnn = torch.backends.cudnn
    assert cudnn.is_available()
    assert cudnn.version() > 0
    before = cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32
    cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32 = True, True
    with cudnn.flags(enabled=False):
        assert not cudnn.enabled
        assert nn.LSTM(2, 3).cuda()(torch.ones(1, 1, 2, device="cuda"))[0].is_cuda
    cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32 = before
    torch.backends.cuda.enable_flash_sdp(True)
    assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.is_built()


def test_ranges_of_the_profiler():
    """nvtx ranges and marks do nothing."""
    nvtx = torch.cuda.nvtx
    nvtx.range_push("step")
    nvtx.mark("here")
    nvtx.range_pop()
    nvtx.range_end(nvtx.range_start("other"))
    torch.cuda.profiler.start()
    torch.cuda.cudart().cudaProfilerStop()
    with nvtx.range("all"):
        assert torch.ones(1, device="cuda").is_cuda
    with (
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        ) as profiler,
        torch.profiler.record_function("mine"),
    ):
        torch.ones(1, device="cuda")
    assert profiler.key_averages().table(row_limit=2)


def test_exchange_with_others():
    """DLPack keeps the device; NumPy gets nothing from it without ``.cpu()``."""
    x = torch.arange(3.0, device="cuda")
    assert torch.from_dlpack(x).is_cuda
    assert torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).is_cuda
    assert x.__dlpack_device__() == (2, 0)
    assert not torch.from_dlpack(x.cpu()).is_cuda
    assert not torch.from_dlpack(np.ones(2)).is_cuda
    assert torch.from_numpy(np.ones(2)).cuda().is_cuda
    for call in (np.asarray, np.array, lambda t: np.stack([t, t])):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            call(x)


def test_graphed_callables_run_eagerly():
    """``make_graphed_callables`` gives back something that computes the same."""
    model = nn.Linear(2, 2).cuda()
    x = torch.ones(1, 2, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    assert torch.equal(graphed(x).cpu(), model(x).cpu())
    pair = torch.cuda.make_graphed_callables((model, torch.sin), ((x,), (x,)))
    assert len(pair) == 2


def test_threads_of_the_user():
    """A thread has its own current device, stream and modes."""
    seen = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()), torch.device("cuda"):
            seen.append(torch.zeros(1).is_cuda)

    for kind in (threading.Thread, type("Mine", (threading.Thread,), {"run": lambda self: work()})):
        thread = kind(target=work)
        thread.start()
        thread.join()
    assert seen == [True, True]


def test_capturable_optimizers():
    """``capturable=True`` demands state on the device, which it is."""
    parameter = torch.ones(3, device="cuda", requires_grad=True)
    for options in ({"foreach": True}, {"foreach": False}, {"fused": True}):
        optimizer = torch.optim.Adam([parameter], lr=0.1, capturable=True, **options)
        parameter.grad = torch.ones(3, device="cuda")
        optimizer.step()
        optimizer.step()
        assert optimizer.state[parameter]["step"].is_cuda


def test_mixtures_in_more_operations():
    """CPU operands beside device operands are refused in the device's words."""
    cuda, cpu = torch.ones(2, 2, device="cuda"), torch.ones(2, 2)
    labels, places = torch.tensor([0, 1]), torch.zeros(2, 1, dtype=torch.int64)
    for call in (
        lambda: torch.cat([cuda, cpu]),
        lambda: torch.stack([cpu, cuda]),
        lambda: torch.where(cuda > 0, cuda, cpu),
        lambda: torch.dot(cuda[0], cpu[0]),
        lambda: torch.einsum("ij,jk", cuda, cpu),
        lambda: cuda @ cpu,
        lambda: cuda.add_(cpu),
        lambda: cuda.gather(1, places),
        lambda: F.mse_loss(cuda, cpu),
        lambda: F.cross_entropy(cuda, labels),
        lambda: nn.Linear(2, 2)(cuda),
        lambda: nn.LSTM(2, 2)(cuda),
        lambda: nn.Conv1d(2, 2, 1).cuda()(cpu),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call()
