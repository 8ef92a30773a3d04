"""Real C++ cuda tensors become CPU tensors in place: who held them goes on holding them."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref

import pytest
import torch
from torch import nn

from cudassert_ipy.errors import OperandError
from cudassert_ipy.replay.find import Heap
from cudassert_ipy.replay.replacement import CannotReplaceError, replace_device_tensors
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from cudassert_ipy.standin.tags import tag_of


@pytest.fixture
def replace(device):
    """Return a function that replaces every device tensor of the process, as the child does."""

    def run():
        replaced = replace_device_tensors(Heap().tensors(), device)
        assert not [tensor for tensor in Heap().tensors() if tensor.is_cuda]
        return replaced

    yield run
    gc.collect()


@pytest.fixture
def replay(replace):
    """Return a function that does the same and then puts the stand-in device under the tensors."""
    with contextlib.ExitStack() as stack:

        def run():
            replace()
            collector = Collector()
            stack.enter_context(StandinDevice(ReplayPolicy(collector)))
            return collector

        yield run


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def holders(x):
    """Return functions that read ``x`` back out of every kind of holder."""
    slots, cell = Slots(x), {"deep": [({"x": x},)]}
    frozen = (x, frozenset([x]))

    def generator():
        held = x
        while True:
            yield held

    running = generator()
    next(running)
    weak = weakref.ref(x)
    default = lambda y=x: y  # noqa: E731
    partial = functools.partial(lambda y: y, x)
    iterator = iter([x])
    closure = lambda: x  # noqa: E731
    return {
        "slots": lambda: slots.x,
        "nested": lambda: cell["deep"][0][0]["x"],
        "tuple": lambda: frozen[0],
        "frozenset": lambda: next(iter(frozen[1])),
        "generator": lambda: next(running),
        "weakref": lambda: weak(),
        "default": default,
        "partial": partial,
        "iterator": lambda: next(iterator),
        "closure": closure,
    }


def test_every_holder_has_the_replaced_tensor(device, replace):
    """Slots, tuples, generators, closures, defaults, weak references hold the same object still."""
    x = device.move(torch.arange(4))
    reads = holders(x)
    assert x.is_cuda
    replace()
    for name, read in reads.items():
        assert read() is x, name
    assert not x.is_cuda
    assert x.tolist() == [0, 1, 2, 3]


def test_views_go_on_sharing_memory(device, replace):
    """Views, reshapes, transposes and expanded tensors of one storage still share one."""
    base = device.move(torch.arange(12.0).reshape(3, 4))
    views = {
        "flat": base.view(12),
        "transposed": base.t(),
        "strided": base.as_strided((2, 2), (4, 1), 5),
        "expanded": base.view(3, 1, 4).expand(3, 5, 4),
        "detached": base.detach(),
    }
    strides = {name: view.stride() for name, view in views.items()}
    replace()
    base[1, 1] = 100.0
    assert views["flat"][5] == 100
    assert views["transposed"][1, 1] == 100
    assert views["strided"][0, 0] == 100
    assert views["expanded"][1, 4, 1] == 100
    assert views["detached"][1, 1] == 100
    assert {name: view.stride() for name, view in views.items()} == strides
    assert views["flat"]._base is base


def test_tensors_on_one_storage_that_are_no_views_share_it_too(device, replace):
    """Two tensors made apart on one storage (`set_`, a deserialized file) alias after it."""
    host = torch.zeros(6)
    whole, part = device.move(host), device.move(host[2:4])
    replace()
    part.fill_(7)
    assert whole.tolist() == [0, 0, 7, 7, 0, 0]


def test_values_that_were_not_copied_are_substitutes(device, replace):
    """A storage without a copy holds zeros, says so in its tag, and is counted."""
    known, lost = device.move(torch.tensor([5])), device.move(torch.tensor([6]), known=False)
    replaced = replace()
    assert (known.tolist(), lost.tolist()) == ([5], [0])
    assert (tag_of(known).substitute, tag_of(lost).substitute) == (False, True)
    assert (replaced.tensors, replaced.substituted, replaced.cells) == (2, 1, (3,))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.complex64]
)
def test_every_dtype_keeps_its_values(device, replace, dtype):
    """Bits are moved, not converted; conjugated and negated views stay so."""
    host = torch.tensor([0, 1, 1]).to(dtype)
    x = device.move(host)
    lazy = x.conj() if dtype.is_complex else x
    replace()
    assert torch.equal(x, host)
    assert torch.equal(lazy, host.conj())


def test_odd_tensors(device, replace):
    """Empty, 0-d, inference and subclassed tensors are replaced like others."""

    class Mine(torch.Tensor):
        pass

    with torch.inference_mode():
        inference = device.move(torch.tensor([1, 2]))
    mine = torch.zeros(2).as_subclass(Mine)
    device.put(mine)
    odd = [device.move(torch.empty(0, 3)), device.move(torch.tensor(4)), inference, mine]
    replace()
    assert [tensor.tolist() for tensor in odd] == [[], 4, [1, 2], [0, 0]]
    assert type(mine) is Mine
    assert inference.is_inference()


def test_leaves_keep_gradients_hooks_and_flags(device, replay):
    """`.grad`, hooks, `requires_grad` and `is_leaf` of a parameter stay, and backward runs."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    calls = []
    weight.register_hook(lambda grad: calls.append(grad.tolist()))
    (weight * 3).sum().backward()
    grad = weight.grad
    device.put(weight)
    assert weight.grad.is_cuda
    replay()
    assert weight.grad is grad
    assert weight.is_leaf
    assert weight.requires_grad
    (weight * 2).sum().backward()
    assert grad.tolist() == [5, 5]
    assert calls == [[3, 3], [2, 2]]
    assert weight.is_cuda  # as the cell sees it


def test_a_gradient_nobody_looked_at_is_replaced(device, replace):
    """`.grad` that only C++ holds, and which the garbage collector does not know, is found."""
    weight = nn.Parameter(torch.ones(2))
    (weight * 3).sum().backward()
    device.put(weight)
    gc.collect()
    assert replace().tensors == 2
    assert weight.grad.tolist() == [3, 3]


def test_a_tensor_in_a_graph_keeps_its_node(device, replace):
    """A non-leaf tensor of an earlier cell stays in its graph, its value readable."""
    leaf = torch.ones(2, requires_grad=True)
    out = leaf * 2
    out.data = device.move(torch.tensor([2.0, 2.0]))
    node = out.grad_fn
    replace()
    assert out.grad_fn is node
    assert not out.is_leaf
    assert out.tolist() == [2, 2]


def test_tied_weights_stay_tied(device, replay):
    """An embedding whose weight is the head's as well remains one parameter."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    device.module(model)
    replay()
    assert model[1].weight is model[0].weight
    model(torch.tensor([1], device="cuda")).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert torch.equal(model[0].weight, model[1].weight)


def test_the_flat_weights_of_an_lstm_follow(device, replay):
    """The weight list and the weak references that `nn.LSTM` keeps are those of its parameters."""
    model = device.module(nn.LSTM(3, 4, num_layers=2, bidirectional=True))
    replay()
    names = dict(model.named_parameters())
    for name, flat, weak in zip(
        model._flat_weights_names, model._flat_weights, model._flat_weight_refs, strict=True
    ):
        assert flat is names[name]
        assert weak() is flat
    out, _ = model(torch.zeros(2, 1, 3, device="cuda"))
    out.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_scripted_module_is_replaced(device, replay):
    """Parameters that TorchScript holds in C++ are found and replaced."""
    script = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    device.module(script)
    replay()
    assert not any(tensor.is_cuda and tag_of(tensor) is None for tensor in script.parameters())
    script(torch.ones(3, 2, device="cuda")).sum().backward()


def test_a_training_step_goes_on_after_it(device, replay):
    """Forward, backward, clipping and Adam run on; the step count and moments are the old ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 3), nn.LayerNorm(3))
    optimizer = torch.optim.Adam(model.parameters())
    step = lambda ids, labels: nn.functional.cross_entropy(model(ids), labels)  # noqa: E731
    step(torch.tensor([[1, 2]]), torch.tensor([0])).backward()
    optimizer.step()
    expected = [weight.tolist() for weight in model.parameters()]
    moments = [state for group in optimizer.state.values() for state in group.values()]
    device.module(model)
    device.put(*moments)
    ids, labels = device.move(torch.tensor([[3, 6]])), device.move(torch.tensor([2]))
    replay()
    assert [weight.tolist() for weight in model.parameters()] == expected
    optimizer.zero_grad()
    loss = step(ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert loss.is_cuda
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}
    assert all(set(group["params"]) <= set(optimizer.state) for group in optimizer.param_groups)
    assert [weight.tolist() for weight in model.parameters()] != expected


def test_a_bad_index_is_found_in_replaced_tensors(device, replay):
    """The finding of a replay on replaced tensors has the values that were on the device."""
    model = device.module(nn.Embedding(10, 3))
    ids = device.move(torch.tensor([[1, 2], [3, 10]]))
    collector = replay()
    with pytest.raises(OperandError):
        model(ids)
    [finding] = collector.findings
    assert (finding.bad_values, finding.bad_positions) == ((10,), ((1, 1),))
    assert finding.certainty == "exact"


def test_a_subclass_without_a_storage_is_refused(device):
    """A wrapper whose device is cuda and which has no memory is named, not left on the device."""
    values, offsets = device.move(torch.ones(4, 2)), device.move(torch.tensor([0, 1, 4]))
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert jagged.is_cuda
    with pytest.raises(CannotReplaceError, match="NestedTensor"):
        replace_device_tensors([values, offsets, jagged], device)
