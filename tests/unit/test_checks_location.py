import functools
import linecache
import operator
import os
import sysconfig
from collections import UserDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cudassert_ipy.checks.frames import is_user_file
from cudassert_ipy.checks.guard import guard
from cudassert_ipy.errors import OperandError

CELL = "/tmp/ipykernel_4711/123456.py"


def finding_of(source, filename=CELL, **names):
    """Run ``source`` as a cell under the guard and return what it found."""
    namespace = {"torch": torch, "nn": nn, "F": nn.functional, **names}
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    with guard(), pytest.raises(OperandError) as caught:
        exec(compile(source, filename, "exec"), namespace)
    return caught.value.finding


def marked(finding):
    return finding.source[finding.column : finding.end_column]


def emb():
    return nn.Embedding(10, 4)


BAD = torch.tensor([[1, 2], [10, 3]])
GOOD = torch.tensor([[1, 2]])


def test_the_line_is_that_of_the_cell_as_typed():
    """Lines count from the first line of the cell, blanked magic lines included."""
    finding = finding_of("\n# comment\ny = emb(ids)\n", emb=emb(), ids=BAD)
    assert finding.line == 3
    assert finding.source == "y = emb(ids)"
    assert marked(finding) == "emb(ids)"


def test_two_lookups_on_one_line_are_told_apart():
    """The mark is on the call that failed, not on the first of the line."""
    finding = finding_of("y = emb(good) + emb(bad)\n", emb=emb(), good=GOOD, bad=BAD)
    assert marked(finding) == "emb(bad)"
    assert finding.expression == "bad"


def test_columns_count_characters_not_bytes():
    """Text before the call that takes several bytes a character does not move the mark."""
    finding = finding_of("s = 'größe 🎉'; y = emb(ids)\n", emb=emb(), ids=BAD)
    assert marked(finding) == "emb(ids)"
    assert finding.expression == "ids"


Batch = namedtuple("Batch", "ids labels")


class Module(nn.Module):
    def __init__(self, ids):
        super().__init__()
        self.register_buffer("ids", ids)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("ids", BAD),
        ('batch["ids"]', {"ids": BAD}),
        ("batch[0]", (BAD, 1)),
        ("batch[-1]", [1, BAD]),
        ("batch.ids", SimpleNamespace(ids=BAD)),
        ("batch.ids", Batch(BAD, 1)),
        ("batch.ids", Module(BAD)),
        ('batch["x"].ids[0]', {"x": SimpleNamespace(ids=[BAD])}),
        ('batch["ids"]', UserDict(ids=BAD)),
    ],
    ids=str,
)
def test_the_operand_is_named_as_the_user_wrote_it(expression, value):
    """Names, attributes and constant subscripts are followed to the operand."""
    name = "ids" if expression == "ids" else "batch"
    finding = finding_of(f"y = emb({expression})\n", emb=emb(), **{name: value})
    assert finding.expression == expression


def test_temporaries_are_named_where_the_signature_is_certain():
    """``emb(ids.clone())`` can only have looked up its one argument."""
    assert finding_of("emb(ids.clone())\n", emb=emb(), ids=BAD).expression == "ids.clone()"
    assert finding_of("x[ids + 0]\n", x=torch.zeros(3), ids=BAD).expression == "ids + 0"
    finding = finding_of(
        "F.cross_entropy(scores, target=labels.view(-1) * 1)\n",
        scores=torch.zeros(4, 5),
        labels=BAD,
    )
    assert finding.expression == "labels.view(-1) * 1"


def test_temporaries_that_a_module_handed_on_are_named():
    """``net(ids.clone())``: the module's argument is the very operand, so its text is certain."""
    net = nn.Sequential(emb())
    assert finding_of("net(ids.clone())\n", net=net, ids=BAD).expression == "ids.clone()"
    owner = SimpleNamespace(net=nn.Sequential(nn.Sequential(emb())))
    finding = finding_of("y = owner.net(ids + 0)\n", owner=owner, ids=BAD)
    assert finding.expression == "ids + 0"
    finding = finding_of(
        "net(ids.flatten(0) + 0)\n", net=nn.Sequential(nn.Unflatten(0, (2, 2)), emb()), ids=BAD
    )
    assert (finding.expression, finding.shape) == ("ids.flatten(0) + 0", (4,))
    assert finding.bad_positions == ((2,),)


def test_temporaries_inside_unknown_calls_are_not_named():
    """What was done with the arguments on the way is not guessed."""
    model = nn.Sequential(nn.ReLU(), emb())
    assert finding_of("model(ids + 0)\n", model=model, ids=BAD).expression is None
    finding = finding_of("list(map(net, [ids + 0]))\n", net=nn.Sequential(emb()), ids=BAD)
    assert finding.expression is None
    finding = finding_of("net(*[ids + 0])\n", net=nn.Sequential(emb()), ids=BAD)
    assert finding.expression is None


def test_no_user_code_runs_to_find_a_name():
    """Properties, ``__getattr__`` and ``__getitem__`` of user classes are never called."""
    calls = []

    class Hostile:
        @property
        def ids(self):
            calls.append("property")
            return BAD

        def __getattr__(self, name):
            calls.append(name)
            return BAD

        def __getitem__(self, key):
            calls.append(key)
            return BAD

    finding_of("ids = h.ids; emb(ids); h.ids\n", emb=emb(), h=Hostile())
    assert calls == ["property"]
    finding_of("emb(h['a'] if h.x is not None else 0)\n", emb=emb(), h=Hostile())
    assert calls == ["property", "x", "a"]


def test_a_reshaped_view_is_the_operand():
    """Torch reshapes sequence labels before the kernel sees them: they are still ``labels``."""
    finding = finding_of(
        "F.cross_entropy(torch.zeros(2, 5, 3), labels)\n",
        labels=torch.full((2, 3), 5),
    )
    assert finding.expression == "labels"


SEQUENCE = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
SEQUENCE[2, 3] = 5
IMAGES = torch.zeros(2, 3, 2, 2, dtype=torch.int64)
IMAGES[1, 2, 0, 1] = 9


@pytest.mark.parametrize(
    ("source", "names", "expected"),
    [
        (
            'F.cross_entropy(logits.transpose(1, 2), batch["labels"])',
            {"logits": torch.zeros(3, 4, 5), "batch": {"labels": SEQUENCE}},
            ('batch["labels"]', (3, 4), (2, 3)),
        ),
        (
            "loss(logits, labels)",
            {"loss": nn.CrossEntropyLoss(), "logits": torch.zeros(2, 5, 3, 2, 2), "labels": IMAGES},
            ("labels", (2, 3, 2, 2), (1, 2, 0, 1)),
        ),
        (
            "F.nll_loss(logits, labels.t())",
            {"logits": torch.zeros(4, 5, 3), "labels": SEQUENCE},
            ("labels.t()", (4, 3), (3, 2)),
        ),
        (
            "F.cross_entropy(logits, labels.t() * 1)",
            {"logits": torch.zeros(4, 5, 3), "labels": SEQUENCE},
            ("labels.t() * 1", (4, 3), (3, 2)),
        ),
        (
            "F.cross_entropy(logits, labels)",
            {"logits": torch.zeros(3, 5, 1, 4), "labels": SEQUENCE[:, None]},
            ("labels", (3, 1, 4), (2, 0, 3)),
        ),
        (
            "F.cross_entropy(logits.reshape(-1, 5), labels.reshape(-1))",
            {"logits": torch.zeros(3, 4, 5), "labels": SEQUENCE},
            ("labels", (3, 4), (2, 3)),
        ),
        (
            "F.cross_entropy(logits.reshape(-1, 5), labels.t().reshape(-1))",
            {"logits": torch.zeros(3, 4, 5), "labels": SEQUENCE},
            ("labels.t().reshape(-1)", (12,), (11,)),
        ),
        (
            "emb(labels.view(4, 3))",
            {"emb": nn.Embedding(5, 2), "labels": SEQUENCE},
            ("labels", (3, 4), (2, 3)),
        ),
        (
            "emb(labels.view(1))",
            {"emb": nn.Embedding(5, 2), "labels": torch.tensor(5)},
            ("labels", (), ()),
        ),
    ],
)
def test_positions_are_those_of_the_tensor_as_written(source, names, expected):
    """What torch reshapes on the way to the kernel is told in the shape the user knows."""
    finding = finding_of(source + "\n", **names)
    assert (finding.expression, finding.shape) == expected[:2]
    assert finding.bad_positions == (expected[2],)
    assert finding.batch_rows == expected[2][:1]


def test_a_reshape_that_is_not_certain_stays():
    """A loss that no Python function of torch called shows what the operation saw."""
    finding = finding_of(
        "torch._C._nn.nll_loss_nd(logits, labels * 1)\n",
        logits=torch.zeros(3, 5, 4),
        labels=SEQUENCE,
    )
    assert (finding.shape, finding.bad_positions) == ((3, 1, 4), ((2, 0, 3),))


LIBRARY = """
class Flipped(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.nn.functional.cross_entropy:
                return torch._C._nn.nll_loss_nd(args[0], args[1].flip(0))
            return func(*args, **(kwargs or {}))
"""


def test_labels_that_a_library_changed_on_the_way_are_not_taken_for_the_operand():
    """Positions in other values than the user's are not told as if they were in the user's."""
    names = {"torch": torch}
    exec(compile(LIBRARY, os.path.join(sysconfig.get_path("purelib"), "l.py"), "exec"), names)  # noqa: PTH118
    logits = torch.zeros(3, 5, 4).as_subclass(names["Flipped"])
    finding = finding_of("F.cross_entropy(logits, labels)\n", logits=logits, labels=SEQUENCE)
    assert (finding.shape, finding.bad_positions) == ((3, 1, 4), ((0, 0, 3),))


def test_rows_of_the_table_have_the_shape_as_written():
    """The table and the finding agree, also when a later batch is shorter."""
    with guard() as running:
        for size in (4, 3, 3, 2):
            labels = torch.zeros(size, 6, dtype=torch.int64)
            nn.functional.cross_entropy(torch.zeros(size, 5, 6), labels)
            (row,) = running.rows
            assert (row.name, row.shape) == ("labels", (size, 6))


@pytest.mark.parametrize("filename", ["<timed exec>", "<timed eval>"])
def test_the_body_of_a_timed_cell_is_the_users(filename):
    """``%%time`` compiles the cell under a name of its own."""
    finding = finding_of("\ny = emb(ids)\n", filename, emb=emb(), ids=BAD)
    assert (finding.line, finding.expression, marked(finding)) == (2, "ids", "emb(ids)")
    assert finding.frames[-1].file == filename


def test_timed_code_without_its_source_has_a_line_and_a_name():
    """Where nobody kept the source there is a line number, and a variable that is the operand."""
    linecache.cache.pop("<timed exec>", None)
    is_user_file.cache_clear()
    with guard(), pytest.raises(OperandError) as caught:
        exec(compile("\nemb(ids)", "<timed exec>", "exec"), {"emb": emb(), "ids": BAD})
    finding = caught.value.finding
    assert (finding.line, finding.source, finding.expression) == (2, "", "ids")
    assert "  where   line 2\n" in str(caught.value)


def test_starters_of_programs_are_skipped():
    """The script that started ``pytest`` or ``torchrun`` is not where the user called anything."""
    starter = os.path.join(sysconfig.get_path("scripts"), "torchrun")  # noqa: PTH118
    assert not is_user_file(starter)


def test_modules_of_torch_are_skipped():
    """The user's call is marked, not a line of torch's Embedding.forward or Sequential."""
    finding = finding_of("model = nn.Sequential(nn.Embedding(10, 4))\nmodel(ids)\n", ids=BAD)
    assert (finding.line, marked(finding), finding.expression) == (2, "model(ids)", "ids")


def test_frames_go_from_the_cell_inwards():
    """Functions between the cell and the operation are listed, with their lines."""
    source = (
        "class M(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return F.embedding(x, torch.zeros(10, 4))\n"
        "def step(batch):\n"
        "    return M()(batch['ids'])\n"
        "step({'ids': ids})\n"
    )
    finding = finding_of(source, ids=BAD)
    assert [(f.function, f.line) for f in finding.frames][-3:] == [
        ("<module>", 6),
        ("step", 5),
        ("M.forward", 3),
    ]
    assert finding.expression == "x"
    assert {f.file for f in finding.frames[-3:]} == {CELL}


def test_the_cell_is_listed_however_deep_the_call():
    """The frames are bounded; the outermost is never left out."""
    source = "def f(n):\n    return f(n - 1) if n else emb(ids)\n\nf(50)\n"
    linecache.cache[CELL] = (len(source), None, source.splitlines(keepends=True), CELL)
    cell = compile(source, CELL, "exec")
    shell = compile("run()", "/anywhere/IPython/core/interactiveshell.py", "exec")
    names = {"emb": emb(), "ids": BAD}
    with guard(), pytest.raises(OperandError) as caught:
        exec(shell, {"run": functools.partial(exec, cell, names)})
    frames = caught.value.finding.frames
    assert len(frames) == 20
    assert (frames[0].line, frames[0].source) == (4, "f(50)")
    assert {f.line for f in frames[1:]} == {2}


def test_in_a_shell_frames_start_at_the_cell():
    """What started the shell is not listed, here: this test."""
    source = "emb(ids)\n"
    linecache.cache[CELL] = (len(source), None, [source], CELL)
    cell = compile(source, CELL, "exec")
    shell = compile("run()", "/anywhere/IPython/core/interactiveshell.py", "exec")
    names = {"emb": emb(), "ids": BAD}
    with guard(), pytest.raises(OperandError) as caught:
        exec(shell, {"run": lambda: exec(cell, names)})
    started, cell_frame = caught.value.finding.frames
    assert started.function.endswith("<lambda>")
    assert (cell_frame.function, cell_frame.source) == ("<module>", "emb(ids)")


def test_a_call_over_several_lines_is_marked_to_the_end_of_its_first():
    """The mark never leaves the line that is shown."""
    finding = finding_of("y = emb(\n    ids,\n)\n", emb=emb(), ids=BAD)
    assert finding.line == 1
    assert marked(finding) == "emb("
    assert finding.expression == "ids"


def test_source_that_does_not_parse_gives_no_name():
    """A file that changed since it was compiled costs the name, not the finding."""
    source = "y = emb(ids + 0)\n"
    namespace = {"emb": emb(), "ids": BAD}
    linecache.cache[CELL] = (3, None, ["(((\n"], CELL)
    with guard(), pytest.raises(OperandError) as caught:
        exec(compile(source, CELL, "exec"), namespace)
    assert caught.value.finding.expression is None
    assert caught.value.finding.line == 1


def test_assignment_by_index_is_marked():
    """``x[ids] = 0`` marks the target, and names the index."""
    finding = finding_of("x[ids] = 0.0\n", x=torch.zeros(3, 4), ids=BAD)
    assert (marked(finding), finding.expression) == ("x[ids]", "ids")
    assert finding.operation == "x[index] = value"


def test_an_index_among_others_is_found_by_identity():
    """With several indices the bad one is named."""
    finding = finding_of("x[a, b]\n", x=torch.zeros(3, 4), a=GOOD[0], b=BAD[1])
    assert finding.expression == "b"


@pytest.mark.parametrize(
    ("source", "expression"),
    [
        ("nn.CrossEntropyLoss()(logits, bad - 1)", "bad - 1"),
        ("nn.CrossEntropyLoss()(target=bad - 1, input=logits)", "bad - 1"),
        ("emb.to('cpu')(bad + 0)", "bad + 0"),
        ("nn.ModuleList([emb])[0](bad + 0)", "bad + 0"),
        ("table.index_add_(0, bad + 0, torch.ones(2, 4))", "bad + 0"),
        ("table.gather(dim=0, index=bad[None] + 0)", "bad[None] + 0"),
        ("functools.partial(emb)(bad + 0)", "bad + 0"),
        ("list(map(emb, [bad + 0]))", None),
        ("sorted([bad + 0], key=emb)", None),
        ("operator.methodcaller('__call__', bad + 0)(emb)", None),
        ("functools.partial(emb, bad + 0)()", None),
        ("Odd(table).gather(0, 'x')", None),
    ],
)
def test_temporaries_are_named_only_where_the_call_is_certain(source, expression):
    """A module or tensor made on the way still tells its argument; a call through C tells none."""

    class Odd:
        def __init__(self, table):
            self.table = table

        def gather(self, dim, _name):
            return self.table.gather(dim, torch.full((1, 4), 10))

    finding = finding_of(
        source,
        emb=emb(),
        bad=torch.tensor([1, 10]),
        logits=torch.zeros(2, 5),
        table=torch.zeros(10, 4),
        functools=functools,
        operator=operator,
        Odd=Odd,
    )
    if expression is not None or "Odd" not in source:
        assert finding.expression == expression
