"""Programs see CPU tensors as CUDA tensors; each test is one group of patterns users write."""

import copy
import io
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch import zeros as early_zeros
from torch.utils.data import DataLoader, TensorDataset

from cudassert_ipy.standin.device import StandinDevice, device_index, is_device_tensor
from cudassert_ipy.standin.simulate import SimulatePolicy

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def standin():
    with StandinDevice(SimulatePolicy(blocking=False)) as device:
        yield device


FACTORIES = {
    "zeros": lambda: torch.zeros(3, device="cuda"),
    "imported early": lambda: early_zeros(2, device="cuda"),
    "randn": lambda: torch.randn(3, device="cuda:0"),
    "arange, ordinal": lambda: torch.arange(3, device=0),
    "tensor": lambda: torch.tensor([1, 2], device="cuda"),
    "as_tensor, list": lambda: torch.as_tensor([1.0], device="cuda"),
    "as_tensor, numpy": lambda: torch.as_tensor(np.ones(2), device="cuda"),
    "as_tensor, cpu": lambda: torch.as_tensor(torch.zeros(2), device="cuda"),
    "as_tensor, cuda": lambda: torch.as_tensor(torch.zeros(2).cuda()),
    "asarray, list": lambda: torch.asarray([1.0], device="cuda"),
    "asarray, cpu": lambda: torch.asarray(torch.zeros(2), device="cuda"),
    "full": lambda: torch.full((2,), 1.0, device=CUDA),
    "eye": lambda: torch.eye(3, device="cuda"),
    "linspace": lambda: torch.linspace(0, 1, 3, device="cuda"),
    "randint": lambda: torch.randint(0, 3, (2,), device="cuda"),
    "randperm": lambda: torch.randperm(3, device="cuda"),
    "normal": lambda: torch.normal(0.0, 1.0, (2,), device="cuda"),
    "tril_indices": lambda: torch.tril_indices(2, 2, device="cuda"),
    "empty": lambda: torch.empty(0, device="cuda"),
    "pin_memory": lambda: torch.zeros(2, device="cuda", pin_memory=False),
    "zeros_like": lambda: torch.zeros_like(torch.zeros(2), device="cuda"),
    "rand_like": lambda: torch.rand_like(torch.zeros(2, device="cuda")),
    "new_zeros": lambda: torch.zeros(2).new_zeros(3, device="cuda"),
    "new_ones": lambda: torch.zeros(2).cuda().new_ones(3),
    "new_empty": lambda: torch.zeros(2).cuda().new_empty(3),
    "new_tensor": lambda: torch.zeros(2, device="cuda").new_tensor([1.0]),
    "one_hot": lambda: F.one_hot(torch.tensor([1, 2]).cuda(), 4),
    "pad_sequence": lambda: nn.utils.rnn.pad_sequence([torch.ones(2).cuda(), torch.ones(3).cuda()]),
    "block_diag": lambda: torch.block_diag(torch.ones(2, 2).cuda()),
    "where": lambda: torch.where(torch.ones(2).cuda() > 0, 1.0, 0.0),
    "sampled": lambda: torch.distributions.Categorical(logits=torch.ones(3).cuda()).sample(),
    "parameter": lambda: nn.Linear(2, 2, device="cuda").weight,
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name):
    """What is made on or from the device is on it."""
    tensor = FACTORIES[name]()
    assert (tensor.device, tensor.is_cuda, tensor.is_cpu) == (CUDA, True, False)
    assert is_device_tensor(tensor)
    assert device_index(tensor) == 0


def test_cpu_factories_stay_on_the_cpu():
    """Nothing comes onto the device unasked."""
    cuda = torch.zeros(2).cuda()
    for tensor in (
        torch.zeros(2),
        torch.zeros(2, device="cpu"),
        cuda.new_zeros(2, device="cpu"),
        torch.zeros_like(cuda, device="cpu"),
        torch.tensor([1]),
        torch.as_tensor(cuda, device="cpu"),
    ):
        assert not tensor.is_cuda
        assert tensor.device.type == "cpu"
        assert not is_device_tensor(tensor)


def test_default_devices():
    """``with torch.device`` and ``set_default_device`` reach factories, modules and tensor()."""
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
        assert torch.tensor(1.0).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
        assert not torch.zeros(2, device="cpu").is_cuda
    assert not torch.zeros(2).is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).is_cuda
        assert nn.Linear(2, 2)(torch.randn(1, 2)).is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(2).is_cuda


def test_moving():
    """``to``, ``cuda`` and ``cpu`` take the arguments that they take on CUDA."""
    x = torch.randn(3)
    y = x.to("cuda", torch.float16)
    assert (y.device, y.dtype, y.type()) == (CUDA, torch.float16, "torch.cuda.HalfTensor")
    for same in (y.to("cuda"), y.to(CUDA), y.cuda(), y.cuda(0), y.to(y), y.to(device="cuda:0")):
        assert same is y
    assert x.cpu() is x
    assert x.to("cpu") is x
    assert torch.device(0) == CUDA
    for moved in (
        x.to(0),
        x.to(torch.device(0)),
        x.cuda(0),
        x.to(device="cuda"),
        x.to(y),
        x.cuda(non_blocking=True),
    ):
        assert moved.is_cuda
    assert x.to(y).dtype == torch.float16
    copied = y.to("cuda", copy=True)
    assert copied is not y
    assert copied.is_cuda
    assert y.float().is_cuda
    assert y.to(torch.float64).is_cuda
    back = y.cpu()
    assert not back.is_cuda
    assert torch.equal(back, x.half())
    assert (y.get_device(), x.get_device()) == (0, -1)


def test_a_moved_tensor_is_a_copy():
    """Writing to one side does not show on the other."""
    x = torch.zeros(2)
    y = x.cuda()
    y += 1
    assert x.tolist() == [0.0, 0.0]
    x += 5
    assert y.tolist() == [1.0, 1.0]


def test_gradients_cross_the_border():
    """A CPU leaf used on the device gets its gradient on the CPU, and the other way round."""
    x = torch.ones(3, requires_grad=True)
    (x.cuda(non_blocking=True) * 2).cpu().sum().backward()
    assert not x.grad.is_cuda
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    w = torch.ones(3, device="cuda", requires_grad=True)
    (w.cpu() * 3).sum().backward()
    assert w.grad.is_cuda


def test_numpy_needs_a_cpu_tensor():
    """The TypeError is torch's own text."""
    x = torch.zeros(2, device="cuda")
    text = (
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
        "host memory first."
    )
    for call in (x.numpy, lambda: np.asarray(x), lambda: np.add(x, 1)):
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == text
    assert x.cpu().numpy().tolist() == [0.0, 0.0]


def test_operands_on_two_devices():
    """CPU and device operands do not mix, in torch's words; scalars do."""
    cuda, cpu = torch.zeros(3).cuda(), torch.zeros(3)
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        cuda + cpu
    with pytest.raises(RuntimeError, match="got mat1 is on cpu, different from other tensors on"):
        nn.Linear(3, 2).cuda()(torch.zeros(1, 3))
    with pytest.raises(RuntimeError, match=r"got index is on cpu.*wrapper_CUDA__index_select"):
        nn.Embedding(3, 2).cuda()(torch.tensor([1]))
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        cpu[torch.tensor([0]).cuda()]
    with pytest.raises(RuntimeError, match="got values is on cpu"):
        cuda[torch.tensor([0, 1, 2])] = cpu
    assert (cuda + torch.tensor(1.0)).is_cuda
    assert cuda[torch.tensor([0])].is_cuda
    cuda[torch.tensor([0])] = 5.0
    assert cuda[0].item() == 5.0
    assert not cpu.copy_(cuda).is_cuda
    assert cuda.copy_(cpu).is_cuda


def test_printing():
    """Values and the device are printed."""
    x = torch.arange(3.0, device="cuda")
    assert str(x) == "tensor([0., 1., 2.], device='cuda:0')"
    assert f"{x.sum():.2f}" == "3.00"
    assert f"{x}" == str(x)
    assert repr(nn.Parameter(x)).startswith("Parameter containing:\ntensor([0., 1., 2.], device=")
    assert "grad_fn=<MulBackward0>" in str(x.clone().requires_grad_() * 2)
    assert str(x.cpu()) == "tensor([0., 1., 2.])"


def test_views_and_in_place_changes_stay_on_the_device():
    """Views, slices, masks, metadata changes and iteration keep the device."""
    x = torch.randn(4, 3, device="cuda")
    x.t_()
    assert x.shape == (3, 4)
    assert x.is_cuda
    x = x.contiguous()
    for view in (x, x.T, x[0], x[:, 1:], x[x > 0], x.view(-1), x.detach(), next(iter(x)), x.data):
        assert view.is_cuda
    values, places = x.sort()
    assert values.is_cuda
    assert places.is_cuda
    assert x.nonzero().is_cuda
    assert torch.einsum("ij,kj->ik", x, x).is_cuda


def test_copies_and_files():
    """deepcopy, state_dict, save and load keep the device; map_location changes it."""
    model = nn.Linear(2, 3).cuda()
    twin = copy.deepcopy(model)
    assert twin.weight.is_cuda
    assert twin.weight is not model.weight
    x = torch.ones(2).cuda()
    first, second = copy.deepcopy([x, x])
    assert first is second
    assert first.is_cuda
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "cpu": torch.ones(2)}, file)

    def load(**options):
        file.seek(0)
        return torch.load(file, **options)

    loaded = load()
    assert loaded["model"]["weight"].is_cuda
    assert not loaded["cpu"].is_cuda
    assert load(map_location="cuda")["cpu"].is_cuda
    assert load(map_location=CUDA)["cpu"].is_cuda
    on_cpu = load(map_location="cpu")["model"]["weight"]
    assert not on_cpu.is_cuda
    assert torch.equal(on_cpu, model.weight.cpu())
    other = nn.Linear(2, 3)
    other.load_state_dict(model.state_dict())
    assert not other.weight.is_cuda
    assert torch.equal(other.weight, model.weight.cpu())


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders(workers):
    """Loaders with and without workers feed the device; pin_memory is accepted."""
    data = TensorDataset(torch.arange(10).float(), torch.arange(10))
    seen = []
    for x, y in DataLoader(data, 4, pin_memory=True, num_workers=workers):
        assert x.is_pinned()
        assert not x.is_cuda
        seen += (x.to("cuda", non_blocking=True) + y.cuda()).tolist()
    assert seen == [2.0 * n for n in range(10)]


def test_questions_about_the_device():
    """The usual queries of torch.cuda and torch.accelerator have answers."""
    cuda = torch.cuda
    assert cuda.is_available()
    assert (cuda.device_count(), cuda.current_device()) == (1, 0)
    assert "Simulated" in cuda.get_device_name()
    assert "Simulated" in cuda.get_device_properties(0).name
    assert cuda.get_device_capability() == (9, 0)
    free, total = cuda.mem_get_info()
    assert 0 < free <= total
    for call in (cuda.synchronize, cuda.empty_cache, cuda.reset_peak_memory_stats, cuda.init):
        call()
    with cuda.device(0), cuda.stream(cuda.Stream()):
        assert torch.zeros(2, device="cuda").is_cuda
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert cuda.current_stream().query()
    assert not cuda.is_current_stream_capturing()
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    torch.accelerator.synchronize()
    assert not torch.accelerator.current_stream().is_capturing()


def test_is_initialized_after_first_use():
    """CUDA counts as initialized once a tensor was put on it."""
    assert not torch.cuda.is_initialized()
    assert torch.cuda.is_available()
    assert not torch.cuda.is_initialized()
    torch.zeros(1).cuda()
    assert torch.cuda.is_initialized()


def test_a_device_that_is_not_there():
    """An ordinal out of range is CUDA's error 101; the context lives."""
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal") as caught:
        torch.zeros(2, device="cuda:3")
    assert caught.value.error_code == 101
    assert torch.zeros(2, device="cuda").is_cuda


def test_seeds_and_generators():
    """Seeding makes device draws repeatable; generators know their device."""
    torch.cuda.manual_seed_all(3)
    first = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(3)
    assert torch.equal(first, torch.rand(3, device="cuda"))
    state = torch.cuda.get_rng_state()
    second = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(second, torch.rand(3, device="cuda"))
    generator = torch.Generator(device="cuda").manual_seed(1)
    assert generator.device == CUDA
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.randn(3, device="cuda", generator=generator).is_cuda


def test_autocast_and_grad_scaler():
    """autocast("cuda") computes in half precision, and GradScaler works with it."""
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert model(torch.randn(2, 4).cuda()).dtype == torch.bfloat16
    with torch.autocast("cuda"):
        out = model(torch.randn(2, 4).cuda())
    assert out.dtype == torch.float16
    assert out.is_cuda
    scaler.scale(out.float().sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def test_hooks_and_custom_functions_see_the_device():
    """Code of the user that runs during backward sees device tensors and can use factories."""
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(x.is_cuda)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient.is_cuda)
            return gradient * 2 + torch.zeros(3, device=gradient.device)

    x = torch.ones(3, device="cuda", requires_grad=True)
    x.register_hook(lambda gradient: seen.append(gradient.is_cuda))
    Double.apply(x).sum().backward()
    torch.autograd.grad(Double.apply(x).sum(), x)
    assert seen == [True] * 6


def test_transforms_and_checkpoint():
    """vmap, func.grad, checkpoint, inference mode and attention work on device tensors."""
    x = torch.randn(4, 3, device="cuda", requires_grad=True)
    plain = x.detach()
    assert torch.vmap(lambda row: row * 2 + torch.ones(3, device=row.device))(plain).is_cuda
    assert torch.func.grad(lambda value: (value**2).sum())(plain).is_cuda
    out = torch.utils.checkpoint.checkpoint(lambda v: v * 2, x, use_reentrant=False)
    out.sum().backward()
    assert x.grad.is_cuda
    with torch.inference_mode():
        assert (torch.zeros(3, device="cuda") + plain).is_cuda
    q = torch.randn(1, 2, 3, 4).cuda()
    assert F.scaled_dot_product_attention(q, q, q).is_cuda
    assert torch.stft(torch.randn(100).cuda(), 16, return_complex=True,
                      window=torch.hann_window(16, device="cuda")).is_cuda  # fmt: skip


def test_threads_started_afterwards():
    """A thread started while the device is there sees it too."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.zeros(2, device="cuda").is_cuda))
    thread.start()
    thread.join()
    assert seen == [True]


def test_compiled_functions():
    """torch.compile runs eagerly on the stand-in."""
    double = torch.compile(lambda x: x * 2 + 1, backend="eager")
    assert double(torch.ones(2).cuda()).tolist() == [3.0, 3.0]


def test_data_parallel():
    """nn.DataParallel on the one device moves CPU batches to it."""
    model = nn.DataParallel(nn.Linear(2, 2).cuda())
    assert model(torch.ones(1, 2)).is_cuda
    assert model(torch.ones(1, 2).cuda()).is_cuda


def test_cpu_tensors_made_inside_an_operation():
    """What torch itself makes on the way counts as the device's, in C++ and in TorchScript."""
    scores = torch.randn(5, 2, 4).log_softmax(2).cuda()
    lengths = torch.tensor([5, 5]), torch.tensor([3, 3])
    assert nn.CTCLoss()(scores, torch.randint(1, 4, (2, 3)).cuda(), *lengths).is_cuda

    @torch.jit.script
    def add_ones(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(2, device=x.device)

    assert add_ones(torch.ones(2).cuda()).is_cuda


def test_packed_sequences():
    """Lengths stay on the CPU, data is on the device."""
    lstm = nn.LSTM(4, 5, batch_first=True).cuda()
    lengths = torch.tensor([3, 2])
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.ones(2, 3, 4).cuda(), lengths, batch_first=True
    )
    out, sizes = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    assert out.is_cuda
    assert not sizes.is_cuda
    assert sizes.tolist() == [3, 2]
