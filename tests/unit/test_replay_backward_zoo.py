"""Our own backward on much of what torch can differentiate: the gradients of torch's engine."""

import copy
import threading
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everybody has it
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from cudassert_ipy.replay.backward import own_backward

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def leaf(*shape, **options):
    return torch.randn(*shape, **options).requires_grad_()


@case
def sdpa():
    q, k, v = leaf(2, 2, 5, 4), leaf(2, 2, 5, 4), leaf(2, 2, 5, 4)
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    return q.grad, k.grad, v.grad


@case
def ctc():
    x = leaf(10, 2, 5)
    F.ctc_loss(
        x.log_softmax(-1), torch.randint(1, 5, (2, 3)), torch.tensor([10, 9]), torch.tensor([3, 2])
    ).backward()
    return x.grad


@case
def linalg():
    x = leaf(3, 3)
    y = x @ x.T + torch.eye(3)
    (
        torch.linalg.cholesky(y).sum()
        + torch.linalg.svdvals(y).sum()
        + torch.linalg.inv(y).sum()
        + torch.linalg.eigh(y)[0].sum()
    ).backward()
    return x.grad


@case
def fft():
    x = leaf(8)
    torch.fft.rfft(x).abs().sum().backward()
    return x.grad


@case
def scatter_gather():
    x = leaf(4, 3)
    i = torch.randint(0, 4, (4, 3))
    (x.gather(0, i) * x.scatter_add(0, i, x)).sum().backward()
    return x.grad


@case
def topk_sort_where():
    x = leaf(10)
    a = (
        x.topk(3)[0].sum()
        + x.sort()[0].cumsum(0).sum()
        + torch.where(x > 0, x, x * 2).sum()
        + x.max()
        + x.median()
    )
    a.backward()
    return x.grad


@case
def unbind_views():
    x = leaf(4, 3)
    a, _b, _c, d = x.clone().unbind()
    y = x.clone()
    v = y.view(-1)[2:5]
    v.mul_(2)
    (a * d).sum().add(y.sum()).backward()
    return x.grad


@case
def grid():
    x = leaf(1, 1, 4, 4)
    g = leaf(1, 3, 3, 2)
    F.grid_sample(x, g, align_corners=False).sum().backward()
    F.interpolate(x, scale_factor=2, mode="bicubic").sum().backward()
    return x.grad, g.grad


@case
def seq2seq():
    m = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    s = m(torch.randn(2, 4, 8), torch.randn(2, 3, 8)).sum()
    s.backward()
    return [p.grad for p in m.parameters()]


@case
def packed():
    m = nn.LSTM(3, 4, bidirectional=True)
    p = nn.utils.rnn.pack_padded_sequence(leaf(5, 2, 3), [5, 3])
    o, _ = m(p)
    nn.utils.rnn.pad_packed_sequence(o)[0].sum().backward()
    return [p.grad for p in m.parameters()]


@case
def param_list():
    m = nn.ModuleDict({"a": nn.Bilinear(3, 3, 2), "b": nn.ConvTranspose1d(2, 3, 2)})
    m["b"](m["a"](torch.randn(4, 3), torch.randn(4, 3)).T.unsqueeze(0)).sum().backward()
    return [p.grad for p in m.parameters()]


@case
def spectral():
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    m(torch.randn(2, 4)).sum().backward()
    m2 = nn.utils.spectral_norm(nn.Linear(3, 3))
    m2(torch.randn(2, 3)).sum().backward()
    return [p.grad for p in [*m.parameters(), *m2.parameters()]]


@case
def gradpen():
    d = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    x = leaf(4, 3)
    (g,) = torch.autograd.grad(d(x).sum(), x, create_graph=True)
    ((g.norm(dim=1) - 1) ** 2).mean().backward()
    return [p.grad for p in d.parameters()]


@case
def maml():
    m = nn.Linear(3, 1)
    x = torch.randn(4, 3)
    ps = dict(m.named_parameters())
    loss = torch.func.functional_call(m, ps, x).pow(2).mean()
    gs = torch.autograd.grad(loss, ps.values(), create_graph=True)
    ps = {k: p - 0.1 * g for (k, p), g in zip(ps.items(), gs, strict=False)}
    torch.func.functional_call(m, ps, x).pow(2).mean().backward()
    return [p.grad for p in m.parameters()]


@case
def gradcheck_():
    return torch.autograd.gradcheck(
        lambda x: (x.sin() * x).sum(), (torch.randn(3, dtype=torch.float64, requires_grad=True),)
    ), torch.autograd.gradgradcheck(
        lambda x: (x.sin() * x).sum(), (torch.randn(3, dtype=torch.float64, requires_grad=True),)
    )


@case
def clip():
    m = nn.Linear(3, 1)
    (m(torch.randn(8, 3)).sum() * 100).backward()
    n = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    return [n, *[p.grad for p in m.parameters()]]


@case
def sparse_mm():
    s = torch.sparse_coo_tensor(
        torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0]), (2, 2)
    ).requires_grad_()
    d = leaf(2, 2)
    torch.sparse.mm(s, d).sum().backward()
    return s.grad.to_dense(), d.grad


@case
def sparse_double():
    e = nn.Embedding(5, 2, sparse=True)
    i = torch.tensor([1, 1, 3])
    e(i).sum().backward()
    e(i).sum().backward()
    o = torch.optim.SparseAdam(e.parameters())
    o.step()
    return e.weight


@case
def nested():
    n = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], requires_grad=True)
    torch.nested.to_padded_tensor(n * 2, 0.0).sum().backward()
    return list(n.grad.unbind())


@case
def jagged():
    n = torch.nested.nested_tensor(
        [torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged, requires_grad=True
    )
    (n * 2).values().sum().backward()
    return n.grad.values()


@case
def compile_():
    torch.compiler.set_stance("force_eager")
    m = torch.compile(nn.Linear(3, 3))
    m(torch.randn(2, 3)).sum().backward()
    torch.compiler.set_stance("default")
    return [p.grad for p in m.parameters()]


@case
def deepcopy_hooks():
    m = nn.Linear(3, 3)
    m.weight.register_hook(lambda g: g * 2)
    n = copy.deepcopy(m)
    n(torch.randn(2, 3)).sum().backward()
    return n.weight.grad


@case
def leaf_root():
    x = leaf(1)
    x.register_hook(lambda g: g * 3)
    x.backward()
    return x.grad


@case
def data_parallel_threads():
    m = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    ts = [threading.Thread(target=lambda: m(x).sum().backward()) for _ in range(3)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return [p.grad for p in m.parameters()]


@case
def zero_size():
    x = leaf(0, 3)
    x.sum().backward()
    return x.grad


@case
def dtype_views():
    x = leaf(4)
    torch.view_as_real(x.to(torch.complex64)).sum().backward()
    y = leaf(3, dtype=torch.bfloat16)
    (y.float() * 2).sum().backward()
    return x.grad, y.grad


@case
def func_hooks():
    f = nn.Sequential(nn.Linear(3, 3))
    out = []
    f[0].register_full_backward_hook(lambda m, i, o: out.append((i, o)))
    x = leaf(2, 3)
    f(x).sum().backward()
    f(torch.randn(2, 3)).sum().backward()
    return [t for io in out for ts in io for t in ts if t is not None], [
        None in io[0] for io in out
    ]


@case
def jvp_double_vmap():
    return (
        torch.func.vmap(torch.func.jacrev(torch.func.jacfwd(lambda x: x.sin().prod())))(
            torch.randn(2, 3)
        ),
        torch.autograd.functional.vhp(lambda x: x.pow(3).sum(), torch.randn(3), torch.randn(3)),
        torch.autograd.functional.jacobian(lambda x: x.exp(), torch.randn(3), vectorize=True),
    )


@case
def vmap_custom():
    class C(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, i, o):
            ctx.save_for_backward(*i)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

    return torch.func.vmap(torch.func.grad(lambda x: C.apply(x).sum()))(torch.randn(2, 3))


@case
def multi_outputs():
    x = leaf(4, 4)
    _q, r = torch.linalg.qr(x)
    r.sum().backward()
    x2 = leaf(6)
    m, _i = x2.view(2, 3).max(1)
    m[0].backward()
    return x.grad, x2.grad


@case
def mod_accum():
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        x = leaf(3)
        y = x.exp()
        z = y * y
        y.add_(1)
        z.sum().backward()
    return x.grad


@case
def swa_checkpoint_seq():
    m = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    checkpoint_sequential(m, 2, leaf(2, 3), use_reentrant=False).sum().backward()
    return [p.grad for p in m.parameters()]


@case
def checkpoint_twice():
    m = nn.Linear(3, 3)
    y = checkpoint(lambda x: m(x).sin(), leaf(2, 3), use_reentrant=False).sum()
    y.backward(retain_graph=True)
    y.backward()
    return [p.grad for p in m.parameters()]


@case
def selective():
    from torch.utils.checkpoint import create_selective_checkpoint_contexts as c

    m = nn.Linear(3, 3)
    y = checkpoint(
        lambda x: m(x).sin().exp(),
        leaf(2, 3),
        use_reentrant=False,
        context_fn=partial(c, [torch.ops.aten.sin.default]),
    ).sum()
    y.backward()
    return [p.grad for p in m.parameters()]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_gradients_equal(name):
    """Bit for bit: the order of all additions is torch's."""

    def run():
        torch.manual_seed(0)
        return CASES[name]()

    told = []
    expected = run()
    with own_backward(told.append):
        walked = run()
    assert told == []
    assert expected is not None
    torch.testing.assert_close(walked, expected, rtol=0, atol=0, equal_nan=True)
