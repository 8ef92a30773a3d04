"""Our own backward: the gradients, hooks and errors of torch's engine, and where that refuses."""

import os
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from cudassert_ipy.replay.backward import can_walk, own_backward, torch_engine_works
from cudassert_ipy.replay.iterators import NeedsParentError


def both(build):
    """Return what ``build`` returns with torch's engine and with our walk, with the same seed."""
    told = []
    torch.manual_seed(0)
    expected = build()
    with own_backward(told.append):
        torch.manual_seed(0)
        walked = build()
    assert told == []
    return expected, walked


def assert_same(build):
    """The results are equal bit for bit: the order of all additions is torch's."""
    expected, walked = both(build)
    torch.testing.assert_close(walked, expected, rtol=0, atol=0, equal_nan=True)
    return walked


def train(module, *inputs, loss=None):
    """Return the gradients after two accumulated steps of ``module``."""
    for _ in range(2):
        output = module(*inputs)
        output = output[0] if isinstance(output, tuple) else output
        (output.square().sum() if loss is None else loss(output)).backward()
    return [parameter.grad for parameter in module.parameters()]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=True)[0]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 4, padding_idx=0)
        self.inner = nn.LSTM(4, 4, num_layers=2, dropout=0.3)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.inner(self.embedding(ids))[0])


def ids():
    return torch.randint(0, 11, (5, 3))


ZOO = {
    "linear": lambda: train(nn.Sequential(nn.Linear(3, 4), nn.GELU()), torch.randn(5, 3)),
    "embedding": lambda: train(nn.Embedding(11, 4), ids()),
    "embedding_sparse": lambda: [
        gradient.coalesce().to_dense()
        for gradient in train(nn.Embedding(11, 4, sparse=True), ids())
    ],
    "embedding_sparse_used_twice": lambda: train_sparse_and_dense(),
    "embedding_bag": lambda: train(nn.EmbeddingBag(11, 4, mode="max"), ids()),
    "lstm": lambda: train(nn.LSTM(3, 4, num_layers=2, bidirectional=True), torch.randn(5, 2, 3)),
    "gru": lambda: train(nn.GRU(3, 4), torch.randn(5, 2, 3)),
    "rnn": lambda: train(nn.RNN(3, 4), torch.randn(5, 2, 3)),
    "attention": lambda: train(Attention(), torch.randn(2, 5, 8)),
    "encoder": lambda: train(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)
    ),
    "conv": lambda: train(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        torch.randn(2, 3, 8, 8),
    ),
    "tied": lambda: train(
        Tied(),
        ids(),
        loss=lambda out: nn.functional.cross_entropy(out.flatten(0, 1), ids().flatten()),
    ),
    "script": lambda: train(
        torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Tanh())), torch.randn(2, 3)
    ),
    "autocast": lambda: train_autocast(),
    "parametrized": lambda: train(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), torch.randn(5, 3)
    ),
}


def train_sparse_and_dense():
    first, last = nn.Embedding(5, 2, sparse=True), nn.Embedding(5, 2, sparse=True)
    ids = torch.tensor([1, 1, 4])
    (first(ids).sum() + first.weight.square().sum()).backward()
    (last.weight.square().sum() + last(ids).sum()).backward()
    return first.weight.grad, last.weight.grad


def train_autocast():
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with torch.autocast("cpu", torch.bfloat16):
        loss = module(torch.randn(5, 3)).float().square().sum()
    loss.backward()
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("name", ZOO)
def test_gradients_of_modules(name):
    """Parameters get the gradients that torch's engine gives them, over two steps."""
    assert_same(ZOO[name])


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor, y):
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * factor + y, x - y

    @staticmethod
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        return first * ctx.factor * x + second, None, (first * y - second).sum_to_size(y.shape)


class NoZeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ranks = x.argsort()
        ctx.mark_non_differentiable(ranks)
        return x * 2, x * 3, ranks

    @staticmethod
    def backward(ctx, first, second, _):
        NoZeros.seen.append((first is None, second is None))
        return first * 2 if second is None else second * 3


class SavesNothing(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + len(ctx.saved_tensors))


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * 3


def test_custom_functions():
    """Several outputs, None, saved tensors, an output that is not used, dirty inputs."""

    def build():
        x, y = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
        a, b = Scale.apply(x, 2.0, y)
        (a * b).sum().backward()
        a, b = Scale.apply(x, 2.0, y)
        a.sum().backward()
        a, b = Scale.apply(x, 2.0, torch.ones(3))
        b.sum().backward()
        NoZeros.seen = []
        a, b, _ = NoZeros.apply(x)
        a.sum().backward()
        a, b, _ = NoZeros.apply(x)
        b.sum().backward()
        InPlace.apply(x.sin()).sum().backward()
        return x.grad, y.grad, torch.tensor(NoZeros.seen)

    assert_same(build)


def test_in_place_views_and_double_use():
    """Rebased histories, views of leaves and one tensor used many times."""

    def build():
        x = torch.randn(4, 4, requires_grad=True)
        y = x * 1
        y[1:3] += x[:2]
        y.t()[0] *= x[1]
        z = y.relu_() + y + y.sigmoid() * x.expand(2, 4, 4).sum(0)
        torch.stack(z.unbind()).cumsum(0).prod(1).sum().backward()
        return x.grad

    assert_same(build)


def test_mixed_dtypes_complex_and_broadcast():
    """A gradient is cast and summed to what it belongs to."""

    def build():
        x = torch.randn(3, requires_grad=True)
        d = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        c = torch.randn(3, dtype=torch.complex64, requires_grad=True)
        h = torch.randn(3).half().requires_grad_()
        (x * d + h).mul(c).abs().sum().backward()
        return x.grad, d.grad, c.grad, h.grad

    assert_same(build)


def test_grad_of_grad():
    """``create_graph`` gives gradients that can be differentiated, in ``grad`` and ``backward``."""

    def build():
        x = torch.randn(3, requires_grad=True)
        w = torch.randn(3, 3, requires_grad=True)
        (first,) = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)
        first.square().sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (x.sin() * x).sum().backward(create_graph=True)
        x.grad.sum().backward(inputs=[w, x])
        hessian = torch.autograd.functional.hessian(lambda v: v.pow(3).sum(), x)
        return first, x.grad.detach(), w.grad, hessian

    assert_same(build)


def test_grad_of_chosen_inputs():
    """Leaves, tensors in between, edges, unused inputs, batched gradients, several roots."""

    def build():
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        h = x * y
        z = (h.sin() * x).sum()
        edge = torch.autograd.graph.get_gradient_edge(h)
        found = [
            *torch.autograd.grad(z, [h, x, y], retain_graph=True),
            *torch.autograd.grad(z, [edge], retain_graph=True),
            *torch.autograd.grad([z, h], [y], [None, torch.ones(3)], retain_graph=True),
            *torch.autograd.grad(
                z, [y, torch.ones(1, requires_grad=True)], retain_graph=True, materialize_grads=True
            ),
            *torch.autograd.grad(h, [x], torch.eye(3), is_grads_batched=True, retain_graph=True),
        ]
        assert torch.autograd.grad(x * 1, y, torch.ones(3), allow_unused=True) == (None,)
        z.backward(inputs=[h, y], retain_graph=True)
        assert x.grad is None
        torch.autograd.backward([z, x], [None, torch.ones(3)])
        return [*found, h.grad, y.grad, x.grad]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `.grad` of a tensor that is no leaf
        assert_same(build)


def test_func_transforms():
    """``torch.func`` and ``vmap`` go through the engine as well."""

    def build():
        x, w = torch.randn(4, 3), torch.randn(3)

        def loss(w, row):
            return (w * row).sin().sum()

        per_row = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
        return (
            per_row,
            torch.func.jacrev(lambda w: w.exp() * w.sum())(w),
            torch.func.hessian(loss)(w, x[0]),
            torch.func.vjp(torch.sin, w)[1](w)[0],
        )

    assert_same(build)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    """Recomputed segments, nested and with dropout, give the same gradients."""

    def build():
        block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
        outer = nn.Linear(4, 4)

        def segment(x):
            return outer(checkpoint(block, x, use_reentrant=reentrant))

        x = torch.randn(2, 4, requires_grad=True)
        y = checkpoint(segment, x * 1, use_reentrant=reentrant)
        checkpoint(block, y, use_reentrant=reentrant).sum().backward()
        return [x.grad, *(p.grad for p in (*block.parameters(), *outer.parameters()))]

    assert_same(build)


def test_a_reentrant_checkpoint_in_grad_is_refused_as_by_torch():
    """``is_checkpoint_valid`` is answered."""

    def build():
        x = torch.randn(2, requires_grad=True)
        y = checkpoint(torch.sin, x, use_reentrant=True).sum()
        with pytest.raises(RuntimeError, match="use_reentrant") as raised:
            torch.autograd.grad(y, x)
        return str(raised.value)

    expected, walked = both(build)
    assert walked == expected


def test_saved_tensor_hooks():
    """Pack and unpack hooks run as often as with torch's engine."""

    def build():
        seen = []

        def pack(tensor):
            seen.append("pack")
            return tensor.numpy(force=True).copy()

        def unpack(array):
            seen.append("unpack")
            return torch.from_numpy(array)

        x = torch.randn(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = (x.exp() * x).sum()
        y.backward()
        with torch.autograd.graph.save_on_cpu():
            x.pow(2).sum().backward()
        return x.grad, torch.tensor([name == "pack" for name in seen])

    assert_same(build)


def test_hooks_run_in_torchs_order():
    """Hooks of leaves, tensors, nodes and modules, with what they get and what they change."""

    def build():
        calls = []

        def log(name, factor=None):
            def hook(*values):
                shown = [
                    None if value is None else round(value.sum().item(), 3)
                    for value in torch.utils._pytree.tree_leaves(values)
                    if value is None or isinstance(value, torch.Tensor)
                ]
                calls.append((name, torch.is_grad_enabled(), *shown))
                return None if factor is None else values[0] * factor

            return hook

        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        net[1].register_full_backward_hook(lambda _, gi, go: log("module")(gi, go))
        net[2].register_full_backward_pre_hook(lambda _, go: (log("before")(go), (go[0] * 2,))[1])
        for name, parameter in net.named_parameters():
            parameter.register_hook(log(name))
            parameter.register_post_accumulate_grad_hook(log(f"after {name}"))
        first = net[0](torch.randn(4, 3))
        first.register_hook(log("dropped", 3))
        removed = first.register_hook(log("removed"))
        middle = net[1](first.relu())
        removed.remove()
        del first
        middle.retain_grad()
        middle.register_hook(log("middle", 0.5))
        middle.grad_fn.register_prehook(lambda go: (log("prehook")(go), (go[0] + 1,))[1])
        middle.grad_fn.register_hook(log("posthook"))
        last = net[3](net[2](middle))
        a, b = last.chunk(2, 1)
        b.register_hook(log("unused"))
        torch.autograd.graph.register_multi_grad_hook((middle, last), log("multi"))
        torch.autograd.graph.register_multi_grad_hook((middle, last), log("any"), mode="any")
        a.grad_fn.register_prehook(log("chunk"))
        a.sum().backward()
        return calls, [middle.grad, *(parameter.grad for parameter in net.parameters())]

    (calls, expected), (walked_calls, walked) = both(build)
    assert walked_calls == calls
    assert len(calls) > 20
    torch.testing.assert_close(walked, expected, rtol=0, atol=0)


@pytest.mark.parametrize("count", range(2, 12))
def test_leaves_that_are_ready_together(count):
    """Their hooks run in the order of torch's queue, in which they are all equal."""

    def build():
        calls = []
        leaves = [torch.ones(1, requires_grad=True) for _ in range(count)]
        for number, leaf in enumerate(leaves):
            leaf.register_hook(lambda _, number=number: calls.append(number))
        torch.cat(leaves).sum().backward()
        return calls

    expected, walked = both(build)
    assert walked == expected
    assert sorted(walked) == list(range(count))


def test_retained_gradients_follow_in_place_changes():
    """``retain_grad`` of a tensor that is changed in place is that of the new value."""

    def build():
        x = torch.randn(3, requires_grad=True)
        y = x * 2
        y.register_hook(lambda gradient: gradient * 10)
        y.retain_grad()
        y.mul_(3)
        y.register_hook(lambda gradient: gradient * 100)
        (y * 5).sum().backward(retain_graph=True)
        (y * 5).sum().backward()
        return x.grad, y.grad

    assert_same(build)


def test_backward_in_a_hook_and_callbacks():
    """A backward inside a backward, and callbacks at the end of the outer one."""

    def build():
        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        calls = []

        def hook(gradient):
            number = torch._C._current_graph_task_id()
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: calls.append("end"))
            with torch.enable_grad():
                (w * gradient).sin().sum().backward()
            calls.append(torch._C._current_graph_task_id() == number)
            calls.append(torch._C._current_autograd_node().name())

        y = x * 2
        y.register_hook(hook)
        y.sum().backward()
        calls.append(torch._C._current_graph_task_id())
        return calls, x.grad, w.grad

    (calls, *expected), (walked_calls, *walked) = both(build)
    assert walked_calls == calls == [True, "MulBackward0", "end", -1]
    torch.testing.assert_close(walked, expected)


def twice(function):
    x = torch.ones(3, requires_grad=True)
    y = function(x)
    y.backward()
    y.backward()
    return x.grad


def returning(gradients):
    class Custom(Function):
        @staticmethod
        def forward(ctx, x, factor):
            return x * factor

        @staticmethod
        def backward(ctx, gradient):
            return gradients(gradient)

    def run():
        x = torch.ones(2, 3, requires_grad=True)
        Custom.apply(x, 2).sum().backward()
        return x.grad

    return run


def hooked(result, register="register_hook"):
    def run():
        x = torch.ones(2, 3, requires_grad=True)
        y = x * 2
        getattr(y if register == "register_hook" else y.grad_fn, register)(lambda _: result)
        y.sum().backward()
        return x.grad

    return run


def changed_in_place():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    z = y * y
    y.add_(1)
    z.sum().backward()


def nan_in_anomaly_mode():
    with torch.autograd.detect_anomaly():
        x = torch.zeros(2, requires_grad=True)
        (x.sqrt() * 0).sum().backward()


def differentiated_twice():
    x = torch.ones(2, requires_grad=True)
    (g,) = torch.autograd.grad(InPlace.apply(x * 1).sum(), x, create_graph=True)
    (g * x).sum().backward()
    InPlace.apply(x.exp()).sum().backward(create_graph=True)
    x.grad.sum().backward()


def mixed(function):
    def run():
        a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
        return function(a, b)

    return run


ERRORS = {
    "twice": lambda: twice(lambda x: (x * x).sum()),
    "twice saved number": lambda: twice(lambda x: (x * 2).sum()),
    "twice nothing saved": lambda: twice(lambda x: (x + 1).sum()),
    "twice half saved": lambda: twice(lambda x: (x * torch.ones(3)).sum()),
    "twice custom": lambda: twice(lambda x: Scale.apply(x, 2.0, torch.ones(3))[0].sum()),
    "twice custom nothing saved": lambda: twice(lambda x: SavesNothing.apply(x).sum()),
    "twice list": lambda: twice(lambda x: torch.cat([x, x]).sum()),
    "twice einsum": lambda: twice(lambda x: torch.einsum("i,i->", x, x)),
    "twice index": lambda: twice(lambda x: x[torch.tensor([0, 1])].sum()),
    "no grad": lambda: torch.ones(1).backward(),
    "not a scalar": lambda: torch.ones(2, requires_grad=True).mul(1).backward(),
    "unused": mixed(lambda a, b: torch.autograd.grad(a * 2, b)),
    "no grad input": mixed(lambda a, b: torch.autograd.grad(a * 2, b.detach())),
    "callback": lambda: torch.autograd.Variable._execution_engine.queue_callback(print),
    "count": returning(lambda g: g),
    "count of list": returning(lambda g: [g, None]),
    "too many": returning(lambda g: (g, None, None, None)),
    "too many tensors": returning(lambda g: (g, None, g)),
    "no variable": returning(lambda g: (g, g)),
    "no tensor": returning(lambda g: (1.0, None)),
    "shape": returning(lambda g: (torch.ones(4), None)),
    "smaller shape": returning(lambda g: (torch.ones(3), None)),
    "larger shape": returning(lambda g: (torch.ones(4, 2, 3), None)),
    "integer": returning(lambda g: (g.long(), None)),
    "complex": returning(lambda g: (g.to(torch.complex64), None)),
    "device": returning(lambda g: (g.to("meta"), None)),
    "none": returning(lambda g: (None, None)),
    "raises": returning(lambda g: (g[5], None)),
    "hook shape": hooked(torch.ones(4)),
    "hook dtype": hooked(torch.ones(2, 3).double()),
    "hook type": hooked(3),
    "prehook shape": hooked((torch.ones(4),), "register_prehook"),
    "prehook type": hooked(3, "register_prehook"),
    "prehook count": hooked((None, None), "register_prehook"),
    "prehook none": hooked((None,), "register_prehook"),
    "posthook type": hooked(3, "register_hook"),
    "in place": changed_in_place,
    "anomaly": nan_in_anomaly_mode,
    "once differentiable": differentiated_twice,
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.filterwarnings("ignore")
def test_errors_are_torchs(name):
    """The type and text of the exception, or the gradient where there is none."""

    def run():
        try:
            return None, ERRORS[name]()
        except Exception as error:
            text = str(error).partition("  (Could this error")[0]
            return (type(error), text), None

    (error, expected), (walked_error, walked) = both(run)
    assert walked_error == error
    torch.testing.assert_close(walked, expected)


def test_anomaly_mode_tells_the_forward_line():
    """The warning of the node that failed has the traceback of its forward."""
    with (
        own_backward(print),
        pytest.warns(UserWarning, match="Error detected in") as warned,
        pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values in its 0th"),
    ):
        nan_in_anomaly_mode()
    (text,) = [str(w.message) for w in warned if "Error detected in" in str(w.message)]
    assert "Error detected in SqrtBackward0." in text
    assert "(x.sqrt() * 0).sum().backward()" in text


def test_what_cannot_be_done_rightly_is_refused():
    """A second pass through a C++ function, which may have freed its values, has no gradient."""
    told = []
    script = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    for _ in range(3):
        loss = script(torch.ones(1, 2)).sum()
    if type(next(iter(loss.grad_fn.next_functions))[0]).__name__ != "CppFunction":
        pytest.skip("this torch does not differentiate a script as one node")
    with own_backward(told.append):
        loss.backward()
        with pytest.raises(NeedsParentError):
            loss.backward()
    assert len(told) == 1
    assert "PyTorch refuses backward in a forked process" in told[0]


def test_everything_is_put_back():
    """After the walk torch has its own engine, methods and answers."""
    from torch.autograd.function import BackwardCFunction

    def state():
        return (
            torch.autograd.Variable._execution_engine,
            torch.Tensor.register_hook,
            torch.Tensor.retain_grad,
            torch._C._current_graph_task_id,
            sorted(vars(BackwardCFunction)),
        )

    before = state()
    with own_backward(print):
        assert state()[0] is not before[0]
    assert state() == before


def test_what_was_saved_is_freed():
    """A loss that is kept holds no activations, so that a loop that sums losses stays small."""

    class Saves(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            ctx.save_for_backward(y)
            return y + 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    def build(retain=False):
        x = torch.ones(3, requires_grad=True)
        exp, mul = x.exp(), x * 2
        saved = Saves.apply(exp)
        loss = torch.einsum("i,i->", saved * mul, torch.stack([exp, mul]).prod(0))
        storages = [StorageWeakRef(t.untyped_storage()) for t in (exp, mul, saved)]
        storages.append(StorageWeakRef(saved.grad_fn.saved_tensors[0].untyped_storage()))
        del exp, mul, saved
        assert not any(storage.expired() for storage in storages)
        loss.backward(retain_graph=retain)
        return [storage.expired() for storage in storages]

    with own_backward(print):
        assert build() == [True] * 4
        assert build(retain=True) == [False] * 4


def test_a_deep_graph():
    """Tens of thousands of nodes in a row need no deep recursion."""

    def build():
        x = torch.ones(1, requires_grad=True)
        y = x
        for _ in range(20_000):
            y = y + 1e-4
        y.backward()
        return x.grad

    assert_same(build)


BACKEND = """
import sys, torch
from torch import nn
from torch.utils import backend_registration as registration
if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
    print("no python backends in this torch"); sys.exit()
registration._setup_privateuseone_for_python_backend("npy")
from cudassert_ipy.replay import backward
from cudassert_ipy.replay.checkpoint import Checkpoint, ReplayRequest
from cudassert_ipy.replay.state import HostCopies
from cudassert_ipy.standin import simulator
names = {"torch": torch, "nn": nn}
copies = HostCopies()
def execute(source):
    exec(compile(source, "<string>", "exec"), names)
def replay(source, **request):
    checkpoint = Checkpoint.take(copies, execute=execute)
    return checkpoint.start(ReplayRequest(source=source, state="after_failure", **request)).wait()
execute("w = torch.ones(3, requires_grad=True); old = (w * 2).sum()")
"""
LAST = 'execute("(w * 2).sum().backward()")\n'


def with_device(body, tmp_path, *, before_fork=True):
    """Run ``body`` in a process with a device whose presence makes torch refuse after a fork."""
    script = tmp_path / "script.py"
    script.write_text(BACKEND + LAST * before_fork + textwrap.dedent(body), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("no python backends"):
        pytest.skip(done.stdout)
    return done.stdout


STEP = """
torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    optimizer.zero_grad()
    x = torch.randint(0, 9, (5,)).cuda()
    loss = nn.functional.cross_entropy(net(x), torch.tensor([0, 1, 2, 0, 1]).cuda())
    loss.backward()
    optimizer.step()
print(loss.item(), net[1].weight.grad.sum().item(), net[0].weight.is_cuda)
"""


def test_a_training_step_where_torch_refuses(tmp_path):
    """The child trains as the kernel does; with torch's engine it stops at the backward."""
    output = with_device(
        f"""
        step = {STEP!r}
        print(backward.torch_engine_works())
        result = replay(step)
        print(result.replay.outcome, "|", result.replay.note, "|", result.output.strip())
        simulator.on()
        execute(step)
        simulator.off()
        backward.can_walk = lambda: False
        result = replay(step)
        print(result.replay.outcome, "|", result.replay.note)
        """,
        tmp_path,
    )
    works, walked, expected, refused = output.splitlines()
    assert works == "False"
    assert walked == f"clean | None | {expected}"
    assert refused.startswith("inconclusive | PyTorch refuses backward in a forked process")


def test_a_bad_index_inside_backward(tmp_path):
    """The finding has the user's lines: the call of backward and the custom function."""
    output = with_device(
        """
        names["Function"] = torch.autograd.Function
        result = replay('''
        class Pick(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, gradient):
                where = torch.tensor([0, 7]).cuda()
                return gradient[where].sum() + gradient
        x = torch.ones(3).cuda().requires_grad_()
        y = Pick.apply(x).sum()
        y.backward()
        ''')
        finding = result.finding
        print(result.replay.outcome, finding.bad_values, finding.expression, finding.line)
        print(*[(frame.function, frame.line) for frame in finding.frames])
        """,
        tmp_path,
    )
    first, frames = output.splitlines()
    assert first == "raised (7,) where 9"
    assert frames.endswith(" ('<module>', 12) ('Pick.backward', 9)")


@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.parametrize("walks", [False, True])
def test_the_node_of_a_finding_is_named(tmp_path, anomaly, walks):
    """Where no code of the user runs in the backward: the node, and its forward line if known."""
    output = with_device(
        f"""
        if not {walks}:
            backward.torch_engine_works = lambda: True
        cell = '''
        x = torch.ones(3, 4).cuda().requires_grad_()
        picked = torch.tensor([0, 2]).cuda()
        with torch.autograd.set_detect_anomaly({anomaly}):
            y = x.index_select(0, picked)
            picked.data.add_(1)
            y.sum().backward()
        '''
        finding = replay(cell).finding
        print(finding.line, finding.expression, finding.bad_values, finding.hint)
        """,
        tmp_path,
        before_fork=walks,
    )
    where = " of line 5." if anomaly else "."
    said = "Off by one: with size 3 the last index is 2. It is in the backward pass "
    assert output == f"7 picked (3,) {said}(IndexSelectBackward0){where}\n"


def test_the_graph_of_an_earlier_cell_is_forward_only(tmp_path):
    """Its hooks do not show, so that the replay says that it stopped there."""
    output = with_device(
        """
        for cell in ("old.backward()", "(old * w.sum()).backward()", "print(old.item())"):
            result = replay(cell)
            print(result.replay.outcome, "|", result.replay.note)
        """,
        tmp_path,
    )
    alone, joined, forward = output.splitlines()
    assert alone == joined
    assert alone.startswith("inconclusive | The cell runs backward through the graph of an earlier")
    assert forward == "clean | None"


def test_where_no_device_can_be_torchs_engine_is_kept():
    """A CPU build without other devices has no threads to lose; this torch can be walked."""
    assert torch_engine_works() == (
        not (torch.version.cuda or torch.version.hip) and sys.platform != "darwin"
    )
    assert can_walk()
