"""Where the values of a bad operand came from."""

from __future__ import annotations

import gc
import linecache

import pytest
import torch

from cudassert_ipy.checks.history import DEPTH, Step
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy

_COUNT = [0]
SETUP = """\
import torch
from torch import nn
from torch.nn import functional as F
emb = nn.Embedding(10, 2).cuda()
"""


def run(source, names=None):
    """Run a cell on the replay's stand-in device; return the findings."""
    collector = Collector()
    device = StandinDevice(ReplayPolicy(collector))
    device.context.history = collector.history
    with device:
        names = {} if names is None else names
        exec(SETUP, names)
        _COUNT[0] += 1
        filename = f"<ipython-input-{_COUNT[0]}-history>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        try:
            exec(compile(source, filename, "exec"), names)
        except IndexError:
            assert collector.findings
    return collector.findings


def origin(source):
    [finding] = run(source)
    return finding.origin


def ranges(steps):
    return [(s.expression, s.given_minimum, s.given_maximum, s.minimum, s.maximum) for s in steps]


def test_nan_that_became_an_integer_is_seen_where_it_did():
    """The conversion is named with its line, and the operation that made the NaN before it."""
    steps = origin(
        "x = torch.tensor([3.0, 0.0]) / torch.tensor([1.0, 0.0])\nids = x.long()\nemb(ids.cuda())"
    )
    assert [(step.line, step.expression) for step in steps] == [
        (1, "torch.tensor([3.0, 0.0]) / torch.tensor([1.0, 0.0])"),
        (2, "x.long()"),
    ]
    assert steps[1].given_dtype == "float32"
    assert (steps[1].given_nan_count, steps[1].given_minimum, steps[1].given_maximum) == (1, 3, 3)
    assert "1 NaN became int64" in steps[1].note


def test_off_by_one_is_seen_where_the_range_was_left():
    """Of a chain, the step that leaves the valid range says so, and no other one."""
    steps = origin(
        "labels = torch.tensor([0, 9, 3])\nlabels = labels.cuda() + 1\n"
        "F.cross_entropy(torch.zeros(3, 10).cuda(), labels * 1)"
    )
    assert ranges(steps[1:]) == [("labels.cuda() + 1", 0, 9, 1, 10), ("labels * 1", 1, 10, 1, 10)]
    assert [bool(step.note) for step in steps] == [False, True, False]


@pytest.mark.parametrize(
    ("expression", "wraps"),
    [
        ("x - 1", True),
        ("x + 253", True),
        ("x * 100", True),
        ("2 - x", True),
        ("torch.sub(x, 1, alpha=1)", True),
        ("x + 12", False),
        ("x.long() - 1", False),
    ],
)
def test_small_types_that_wrap_are_said(expression, wraps):
    """uint8 that went below 0 or above 255 is named; a wider type is not."""
    steps = origin(
        f"x = torch.tensor([0, 3], dtype=torch.uint8).cuda()\ny = {expression}\nemb(y.long() * 1)"
    )
    assert any("uint8 holds 0 to 255" in step.note for step in steps) is wraps


def test_a_float_too_large_for_its_integer_type_is_said():
    """2e20 does not fit int32."""
    [*_, step] = origin("x = torch.arange(3.0) * 1e20\ni = x.int()\nemb(i.cuda())")
    assert "int32 holds" in step.note
    assert step.given_maximum == pytest.approx(2e20)


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        ("torch.randint(0, 500, (64,))", 0, 499),
        ("torch.randint(500, (64,))", 0, 499),
        ("torch.randperm(99)", 0, 98),
        ("torch.arange(800) % 777", 0, 776),
        ("torch.eye(40).argmax(dim=1)", 0, 39),
        ("torch.eye(40).argmax(0)", 0, 39),
        ("torch.eye(40).flip(0).argmin()[None] + 1600", None, None),
    ],
)
def test_operations_that_can_leave_the_range_say_what_they_can_give(expression, low, high):
    """randint, randperm, ``%`` and argmax tell their bounds by their own arguments."""
    [*_, step] = origin(f"ids = {expression}\nemb(ids.cuda())")
    assert step.line == 1
    assert (f"{low} to {high}" in step.note) is (low is not None)


def test_a_value_set_in_place_is_seen():
    """An assignment to an element is a step, with its line instead of a half expression."""
    steps = origin("ids = torch.zeros(4, dtype=torch.long).cuda()\nids[2] = 77\nemb(ids)")
    assert [(s.line, s.expression, s.source) for s in steps[1:]] == [(2, None, "ids[2] = 77")]
    assert (steps[1].minimum, steps[1].note != "") == (77, True)


def test_the_batch_of_a_loader_is_called_so():
    """The chain begins at the batch, on the line that takes it."""
    [step] = origin(
        "from torch.utils.data import DataLoader\n"
        "for batch in DataLoader(range(5, 15), batch_size=5):\n"
        "    emb(batch.cuda())"
    )
    assert (step.line, step.expression, step.minimum, step.maximum) == (2, None, 10, 14)
    assert "DataLoader" in step.note


def test_a_loop_is_one_step():
    """The same place again and again is one step from its first input to its last result."""
    steps = origin(
        "ids = torch.tensor([0])\nfor _ in range(30):\n    ids = ids + 1\nemb(ids.cuda())"
    )
    assert ranges(steps[1:]) == [("ids + 1", 0, 0, 30, 30)]


def test_the_chain_is_short():
    """Only the last operations are kept."""
    lines = "\n".join(f"ids = ids + {n}" for n in range(20))
    steps = origin(f"ids = torch.tensor([0])\n{lines}\nemb(ids.cuda())")
    assert [s.expression for s in steps] == [f"ids + {n}" for n in range(20 - DEPTH, 20)]


def test_values_from_before_the_cell_have_no_made_up_origin():
    """Nothing is said of a tensor that no operation of the cell made."""
    ids = torch.tensor([10])
    [finding] = run("emb(ids.cuda())", {"ids": ids})
    assert finding.origin == ()


def test_what_two_tensors_make_is_not_blamed_on_one():
    """In range before and out of range after is said only where nothing else had a say."""
    steps = origin(
        "a = torch.tensor([0]) * 1\nb = torch.tensor([40]) * 1\nids = a + b\nemb(ids.cuda())"
    )
    assert steps[-1].expression == "a + b"
    assert steps[-1].note == ""


def test_the_running_call_is_no_origin_of_itself():
    """The conversions inside the failing call do not show up as steps."""
    steps = origin(
        "t = torch.tensor([[0, 10]]).cuda()\nF.cross_entropy(torch.zeros(1, 3, 2).cuda(), t)"
    )
    assert [step.line for step in steps] == [1]


def test_a_hundred_thousand_operations_leave_no_memory():
    """What is kept does not grow with the operations of a cell."""
    source = (
        "ids = torch.tensor([0])\nfor n in range({count}):\n    ids = ids + 1\n    ids = ids - 1"
    )
    names = {}
    run(source.format(count=50_000), names)
    steps = [item for item in gc.get_objects() if type(item) is Step]
    assert 0 < len(steps) <= 2 * DEPTH


def test_odd_tensors_are_not_followed_and_not_in_the_way():
    """Sparse, nested, complex, quantized, meta and batched tensors run as they did."""
    source = """
i = torch.tensor([[0, 1], [1, 0]])
s = torch.sparse_coo_tensor(i, torch.tensor([1, 2]), (2, 2)).coalesce()
(s + s).to_dense()
n = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])])
n + n
torch.zeros(2, dtype=torch.complex64) + 1
torch.zeros(2, dtype=torch.int64, device="meta") + 1
torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8)
torch.vmap(lambda v: v + 1)(torch.zeros(2, 2, dtype=torch.int64))
"""
    assert run(source) == []


def test_large_tensors_are_not_looked_at_on_the_way():
    """Beyond a million values a step has no range; the finding itself has one."""
    [finding] = run("ids = torch.zeros(1_000_001, dtype=torch.long) + 99\nemb(ids.cuda())")
    assert [(s.expression and s.minimum) for s in finding.origin] == [None, None]
    assert finding.minimum == 99


def test_nothing_outside_a_cell_is_named():
    """What runs below IPython's shell and in no cell has no line of the user's."""
    shell = "/venv/lib/python3.11/site-packages/IPython/core/interactiveshell.py"
    names = {"torch": torch}
    exec(compile("def show(x):\n    return x + 9", shell, "exec"), names)
    [finding] = run("emb(show(torch.tensor([1])).cuda())", {"show": names["show"]})
    assert finding.origin == ()
