"""What a replay says of code that is run differently on the CPU, or cannot run there at all."""

import sys
import types

import psutil
import pytest
import torch

from cudassert_ipy.standin import simulator
from tests.unit.test_replay_outcomes import Notebook


@pytest.fixture
def notebook(capfd):
    simulator.on()
    notebook = Notebook()
    yield notebook
    simulator.off()
    assert not [pid for pid in notebook.children if psutil.pid_exists(pid)]


@pytest.fixture
def kernels(notebook):
    """Give the notebook a package of CUDA kernels, a custom operation and a Triton kernel."""
    library = torch.library.Library("cudassert_replayed", "DEF")
    library.define("knn(Tensor x) -> Tensor")
    library.impl("knn", lambda x: x, "CUDA")
    package = types.ModuleType("flash_attn")
    source = "def flash_attn_func(q):\n    raise RuntimeError('q must be on CUDA')"
    exec(compile(source, "/site-packages/flash_attn/interface.py", "exec"), package.__dict__)
    triton = types.ModuleType("triton.runtime.jit")
    source = "class JITFunction:\n    def __init__(self, fn): self.fn = fn\n    def run(self): pass"
    exec(compile(source, "/site-packages/triton/jit.py", "exec"), triton.__dict__)
    sys.modules["triton.runtime.jit"] = triton
    kernel = triton.JITFunction(types.SimpleNamespace(__name__="add_kernel"))
    notebook.names |= {"flash_attn": package, "add_kernel": kernel}
    yield
    del sys.modules["triton.runtime.jit"]
    library._destroy()


SETUP = "emb = nn.Embedding(10, 4).cuda()\nids = torch.tensor([1, 2]).cuda()"
REFUSED = {
    "torch.ops.cudassert_replayed.knn(x)": "The custom CUDA operation cudassert_replayed::knn",
    "flash_attn.flash_attn_func(x)": "CUDA code of flash_attn (flash_attn_func)",
    "add_kernel.run()": "The Triton kernel add_kernel",
    "nn.parallel.DistributedDataParallel(emb, [0])": "DistributedDataParallel",
}


@pytest.mark.parametrize("call", REFUSED)
def test_custom_cuda_code_ends_the_replay(notebook, kernels, call):
    """The outcome is inconclusive, with one sentence and the operands that were checked before."""
    notebook.cell(SETUP)
    result = notebook.replay(f"x = emb(ids)\n{call}")
    assert result.replay.outcome == "inconclusive"
    assert result.replay.note.startswith(f"{REFUSED[call]} cannot run on the CPU, so nothing after")
    assert "%%cuda_debug" in result.replay.note
    assert result.replay.note.count(". ") <= 1  # the second sentence is about the copies
    assert [row.name for row in result.tensors] == ["ids"]


def test_a_finding_before_it_is_kept(notebook, kernels):
    """A bad operand before the custom code is the outcome, also where the user goes on."""
    notebook.cell(SETUP.replace("2]", "10]"))
    cell = "try:\n    emb(ids)\nexcept IndexError:\n    pass\ntorch.ops.cudassert_replayed.knn(ids)"
    result = notebook.replay(cell)
    assert result.replay.outcome == "raised"
    assert result.finding.bad_values == (10,)


def test_a_swallowed_refusal_is_not_clean(notebook, kernels):
    """Where the cell goes on without the custom code, what it did then proves nothing."""
    notebook.cell(SETUP)
    cell = "try:\n    torch.ops.cudassert_replayed.knn(ids)\nexcept RuntimeError:\n    emb(ids)"
    result = notebook.replay(cell)
    assert result.replay.outcome == "inconclusive"
    assert "cudassert_replayed::knn cannot run" in result.replay.note


def test_half_precision_and_compiled_code_are_said(notebook):
    """A clean replay says what it computed otherwise, once each."""
    notebook.cell(SETUP)
    result = notebook.replay(
        "x = torch.arange(8.0, device='cuda').view(2, 4).half()\n"
        "for _ in range(3):\n    torch.cdist(x, x)\n"
        "torch.compile(emb)(ids)"
    )
    assert result.replay.outcome == "clean"
    assert result.replay.note.count("no float16 kernel, it computed in float32") == 1
    assert result.replay.note.count("ran eagerly") == 1


def test_a_compiled_function_of_an_earlier_cell(notebook):
    """A function that was compiled before the replay runs eagerly in it, and is checked."""
    notebook.cell(SETUP)
    notebook.names["fast"] = torch.compile(lambda emb, ids: emb(ids) * 2)
    notebook.cell("bad = torch.tensor([3, 10]).cuda()")
    result = notebook.replay("y = fast(emb, ids)\ny = fast(emb, bad)")
    assert result.replay.outcome == "raised"
    assert "y = fast(emb, bad)" in [frame.source for frame in result.finding.frames]
    assert result.finding.bad_values == (10,)
