"""Line, columns and operand of a finding, wherever the operation stands in the user's code."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.kernel

MODULE = """\
import torch


def pick(table, index):
    return table[index]
"""
SETUP = """\
import asyncio, functools, mymod
import torch
from torch import nn
from torch.nn import functional as F
emb = nn.Embedding(10, 4).cuda()
table = torch.zeros(10, 4).cuda()
good = torch.tensor([1, 2]).cuda()
bad = torch.tensor([1, 10]).cuda()
logits = torch.zeros(2, 5).cuda()


def earlier(index):
    x = 1
    return emb(index)


def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


class Inner(nn.Module):
    def forward(self, index):
        return table[index]


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Identity(), Inner())

    def forward(self, index):
        return self.inner(index)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.index_select(0, bad)
"""

CASES = {
    # name: (cell, line of the cell, marked text, expression, function, line in the function)
    "plain": ("x = 1\nemb(bad)", 2, "emb(bad)", "bad"),
    "earlier cell": ("x = 1\ny = earlier(bad)", 2, "emb(index)", "index", "earlier", 14),
    "imported file": ("y = mymod.pick(table, bad)", 1, "table[index]", "index", "pick", 5),
    "nested modules": (
        "net = Outer()\n\nnet(bad)", 3, "table[index]", "index", "Inner.forward", 26,
    ),
    "comprehension": (
        "ids = [good, bad]\nrows = [\n    emb(i)\n    for i in ids\n]",
        2 if sys.version_info < (3, 12) else 3,  # a function of its own before Python 3.12
        "emb(i)", "i", "<listcomp>" if sys.version_info < (3, 12) else "<module>", 3,
    ),
    "multi-line": (
        "loss = (\n  table.sum()\n  + F.embedding(\n    bad,\n    table,\n  ).sum()\n)",
        3, "F.embedding(", "bad",
    ),
    "two on a line": ("y = emb(good) + emb(bad) + emb(good)", 1, "emb(bad)", "bad"),
    "decorated": (
        "@logged\n@torch.no_grad()\ndef step(i):\n    return emb(i)\n\nstep(bad)",
        6, "emb(i)", "i", "step", 4,
    ),
    "class body": ("class C:\n    rows = table[bad]", 1, "table[bad]", "bad", "C", 2),
    "lambda": ("f = lambda i: emb(i)\n\nf(bad)", 3, "emb(i)", "i", "<lambda>", 1),
    "generator": (
        "def rows():\n    for i in (good, bad):\n        yield table[i]\n\nlist(rows())",
        5, "table[i]", "i", "rows", 3,
    ),
    "forward hook": (
        """m = nn.Identity()
def hook(m, a, out):
    return table[bad]
m.register_forward_hook(hook)
m(good)""",
        5, "table[bad]", "bad", "hook", 3,
    ),
    "tensor hook": (
        """x = torch.zeros(3, requires_grad=True, device='cuda')
x.register_hook(lambda g: g + emb(bad).sum())
(x * 2).sum().backward()""",
        3, "emb(bad)", "bad", "<lambda>", 2,
    ),
    "autograd.Function": (
        "x = torch.zeros(3, requires_grad=True, device='cuda')\nReversed.apply(x).sum().backward()",
        2, "gradient.index_select(0, bad)", "bad", "Reversed.backward", 45,
    ),
    "await": ("await asyncio.sleep(0)\ny = emb(bad)\nawait asyncio.sleep(0)", 2, "emb(bad)", "bad"),
    "async function": (
        "async def go(i):\n    await asyncio.sleep(0)\n    return emb(i)\n\nawait go(bad)",
        5, "emb(i)", "i", "go", 3,
    ),
    "with and try": (
        "with torch.no_grad():\n    try:\n        y = 1\n    finally:\n        emb(bad)",
        5, "emb(bad)", "bad",
    ),
    "wide characters": (
        't = {"größe": bad}\ny = "日本", emb(t["größe"])', 2, 'emb(t["größe"])', 't["größe"]',
    ),
    "magic above": ("%matplotlib --list\n!true\nemb(bad)", 3, "emb(bad)", "bad"),
    "%%time": ("%%time\nx = 1\nemb(bad)", 3, "emb(bad)", "bad"),
    "%%capture": ("%%capture\nx = 1\nemb(bad)", 3, "emb(bad)", "bad"),
    "blank lines above": ("\n\nemb(bad)", 3, "emb(bad)", "bad"),
    "module made in the call": (
        "y = nn.CrossEntropyLoss()(logits, bad - 1)", 1,
        "nn.CrossEntropyLoss()(logits, bad - 1)", "bad - 1",
    ),
    "module moved in the call": (
        "y = emb.to('cuda')(bad + 0)", 1, "emb.to('cuda')(bad + 0)", "bad + 0",
    ),
    "method with a temporary": (
        "table.index_add_(0, bad + 0, torch.ones(2, 4).cuda())", 1,
        "table.index_add_(0, bad + 0, torch.ones(2, 4).cuda())", "bad + 0",
    ),
    "method by keyword": (
        "table.gather(dim=0, index=bad[None] + 0)", 1,
        "table.gather(dim=0, index=bad[None] + 0)", "bad[None] + 0",
    ),
}  # fmt: skip


def check(finding, case, *, shift=0):
    """Compare a finding with a row of the table; ``shift``: lines above the cell's first."""
    cell, line, marked, expression, *inner = case
    function, inner_line = inner or ("<module>", line)
    made_here = (f"def {function}(", f"class {function}:")
    in_cell = not inner or function[0] == "<" or any(text in cell for text in made_here)
    assert finding is not None
    frames = finding["frames"]
    assert frames[0]["line"] == line + shift
    assert finding["line"] == inner_line + (shift if in_cell else 0)
    assert finding["source"][finding["column"] : finding["end_column"]] == marked
    assert finding["expression"] == expression
    if function != "<module>":
        assert frames[-1]["function"].rpartition("<locals>.")[2] == function


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """Return one kernel for all cases."""
    from tests.kernel.driver import Kernel

    folder = tmp_path_factory.mktemp("lines")
    (folder / "mymod.py").write_text(MODULE)
    kernel = Kernel(
        {
            "IPYTHONDIR": str(folder / "ipython"),
            "TMPDIR": str(folder),
            "PYTHONPATH": str(folder),
            "CUDASSERT_SIMULATOR": "1",
        }
    )
    assert kernel.run("%load_ext cudassert_ipy").status == "ok"
    yield kernel
    kernel.close()


@pytest.mark.parametrize("name", CASES)
def test_the_place_is_right(kernel, name):
    """A plain cell with a replay, and the same cell under `%%cuda_debug`, name the same place."""
    case = CASES[name]
    kernel.run("%cuda_debug simulator off")
    kernel.run("%cuda_debug simulator on")
    assert kernel.run(SETUP).status == "ok"
    outcome = kernel.run(case[0])
    assert outcome.status == ("ok" if name == "%%capture" else "error")  # the magic swallows it
    assert kernel.run("%cuda_debug replay").status == "ok"
    check(kernel.report()["finding"], case)
    kernel.run("%cuda_debug simulator off")
    kernel.run("%cuda_debug simulator on")
    assert kernel.run(SETUP).status == "ok"
    outcome = kernel.run("%%cuda_debug\n" + case[0])
    assert name == "%%capture" or outcome.reply["ename"] == "OperandError"
    check(kernel.report()["finding"], case, shift=1)


def test_origins_and_other_findings_count_lines_as_typed(kernel):
    """Under blank lines and in other cells, each place is that of the cell as typed."""
    kernel.run("%cuda_debug simulator off")
    kernel.run("%cuda_debug simulator on")
    assert kernel.run(SETUP).status == "ok"
    count = kernel.run("def later(i):\n    return i + 1").count
    cell = """\n
ids = later(bad)
for t in (ids, bad):
    try:
        y = emb(t)
    except Exception:
        pass
earlier(ids)
"""
    assert kernel.run(cell).status == "error"
    outcome = kernel.run("%cuda_debug replay")
    diagnosis = kernel.report()
    assert diagnosis["finding"]["line"] == 6
    [step] = diagnosis["finding"]["origin"]
    assert (step["line"], step["expression"], step["file"]) == (2, "i + 1", f"cell [{count}]")
    assert [(f["line"], f["frames"][0]["line"]) for f in diagnosis["more"]] == [(14, 9)]
    text = outcome.bundles[-1]["text/plain"]
    assert f"line 2 of later in cell [{count}] · `i + 1` · int64 1 to 10 → int64 2 to 11" in text
    assert "Also bad" in text
