"""The body of a loop that failed, cut out and run with the frame's variables."""

import ast
import linecache
import textwrap

import pytest
import torch
from torch.utils.data import DataLoader

from cudassert_ipy.model import Finding
from cudassert_ipy.notebook.cell_names import names_moved_on
from cudassert_ipy.replay.batches import BatchLog
from cudassert_ipy.replay.loop_body import failed_frames, find_bodies
from cudassert_ipy.replay.loop_run import BodyRun, NothingRanError

FINDING = Finding(operation="f", aten="aten.f", operand="input")


class FailedError(Exception):
    """Stands for the error at which a device is found dead."""


class Notebook:
    """Cells that share their variables, with ``fail()`` and ``note(value)`` in them."""

    def __init__(self):
        self.noted = []
        self.failing = True
        self.names = {"fail": self.fail, "note": self.noted.append, "DataLoader": DataLoader}
        self.names["torch"] = torch
        self.log = BatchLog()
        self.count = 0

    def fail(self):
        if self.failing:
            raise FailedError

    def define(self, source):
        self.count += 1
        name = f"<ipython-input-{self.count}-x>"
        source = textwrap.dedent(source)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), self.names)

    def bodies(self, source):
        """Run a cell that fails, and return what is to be run of its loops."""
        self.log.begin()
        try:
            with pytest.raises(FailedError) as caught:
                self.define(source)
        finally:
            loaders = self.log.end()
        frames = failed_frames(caught.value)
        return find_bodies(frames, loaders, self.names)

    def run(self, body):
        """Run a body as the child does; return what it noted."""
        self.noted.clear()
        self.failing = False
        run = BodyRun(body, lambda code: code())
        run("")
        self.runs = run._runs
        return list(self.noted)


@pytest.fixture
def notebook():
    """A notebook without a kernel."""
    notebook = Notebook()
    yield notebook
    notebook.log.remove()


PLAIN = [
    ("for i in range(10):\n    if i == 7: fail()\n    note(i)", [7]),
    ("for i in range(10):\n    if i == 7: fail()\n    if i: continue\n    note(i)", []),
    ("for i in range(10):\n    note(i)\n    if i == 7:\n        fail()\n        break", [7]),
    ("i = 0\nwhile i < 9:\n    i += 1\n    note(i)\n    if i == 7: fail()", [8]),
    (
        "for i in range(3):\n  for j in range(4):\n    note((i, j))\n    if j == 2: fail()",
        [(0, 2)],
    ),
    ("for i in range(3):\n    for j in range(2): note(j)\n    note(i)\n    fail()", [0, 1, 0]),
    (
        (
            "with torch.no_grad():\n    for i in range(3):\n        note(torch.is_grad_enabled())\n"
            "        fail()\n"
        ),
        [False],
    ),
    ("try:\n    for i in range(3):\n        note(i)\n        fail()\nfinally:\n    done = 1", [0]),
    ("for i in range(3):\n    note(i)\n    fail()\nelse:\n    note('else')", [0]),
]


@pytest.mark.parametrize(("source", "noted"), PLAIN)
def test_the_body_runs_once_with_the_variables_of_then(notebook, source, noted):
    """The innermost loop around the line, its variables as they were, nothing around it."""
    [body] = notebook.bodies(source)
    assert notebook.run(body) == noted
    assert body.batches == ()
    assert notebook.runs == 1


WHOLE = [
    "fail()",
    "[fail() for i in range(3)]",
    "def f():\n    for i in range(3):\n        fail()\n        return i\nf()",
    "def f():\n    for i in range(3):\n        fail()\n        yield i\nlist(f())",
    (
        "class A:\n    def f(self):\n        self.__x = 1\n        for i in range(3):\n"
        "            fail(); note(self.__x)\nA().f()"
    ),
    (
        "class A(dict):\n    def f(self):\n        for i in range(3):\n            fail()\n"
        "            super().clear()\nA().f()"
    ),
    (
        "def f():\n    n = 0\n    def g():\n        nonlocal n\n        for i in range(3):\n"
        "            n += 1; fail()\n            def h():\n                nonlocal n\n"
        "    g()\nf()"
    ),
]


@pytest.mark.parametrize("source", WHOLE)
def test_what_cannot_run_alone_is_left_to_the_whole_cell(notebook, source):
    """No loop, or one with ``return``, ``yield``, private names, ``super``: nothing is cut out."""
    assert notebook.bodies(source) == ()


def test_a_function_of_another_cell_runs_with_its_own_variables(notebook):
    """Locals, closure and globals of the frame are there; frames lead from the cell to it."""
    notebook.define(
        """
        def outer(scale):
            def train(items):
                total = 5
                for item in items:
                    fail()
                    note((item, scale, total, [scale for _ in range(2)], factor))
            return train
        """
    )
    [body] = notebook.bodies("factor = 3\nouter(2)([10, 20])")
    assert notebook.run(body) == [(10, 2, 5, [2, 2], 3)]
    assert (body.outer[-1].function, body.outer[-1].line) == ("<module>", 2)
    assert body.code.co_qualname == "outer.<locals>.train"
    assert body.line == 5


def test_lines_and_columns_are_those_of_the_cell(notebook):
    """Instructions of the body keep the positions of the source."""
    [body] = notebook.bodies("x = 1\n\nfor i in range(3):\n    y = (x +\n         i)\n    fail()\n")
    lines = {line for _, _, line in body.code.co_lines() if line}
    assert {4, 5, 6} <= lines <= {3, 4, 5, 6}
    positions = {p for p in body.code.co_positions() if p[0] == 6}
    assert any(p[2:] == (4, 10) for p in positions)


def test_later_cells_do_not_change_what_the_body_runs_with(notebook):
    """A name bound anew after the failure is put back for the replay."""
    [body] = notebook.bodies("for i in range(9):\n    note(i)\n    if i == 7: fail()")
    notebook.define("i = 100")
    assert notebook.run(body) == [7]


def test_an_edited_module_is_not_cut_from_its_new_source(notebook):
    """Where the source no longer compiles to the code that ran, the whole cell is replayed."""
    notebook.define("def f():\n    for i in range(3):\n        fail()\n        note(i)\n")
    name = f"<ipython-input-{notebook.count}-x>"
    text = "def f():\n    for i in range(3):\n        fail()\n        note(-i)\n        note(9)\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    assert notebook.bodies("f()") == ()


FED = [
    "for x in loader:\n    note(int(x[0]))\n    if x[0] >= 24: fail()",
    "for step, x in enumerate(loader):\n    note(int(x[0]))\n    if step == 12: fail()",
    "for x in loader:\n    note(int(x[0]))\nfail()",
    "for epoch in range(2):\n    for x in loader:\n        note(int(x[0]))\n    fail()",
    (
        "it = iter(loader)\nwhile True:\n    x = next(it)\n    note(int(x[0]))\n"
        "    if x[0] >= 24: fail()"
    ),
    (
        "it = iter(loader)\nfor _ in range(50):\n    x = next(it)\n    note(int(x[0]))\n"
        "    if x[0] >= 24: fail()"
    ),
    (
        "def batches():\n    for x in loader:\n        yield x\n"
        "for x in batches():\n    note(int(x[0]))\n    if x[0] >= 24: fail()"
    ),
    (
        "def get(it):\n    return next(it)\nit = iter(loader)\nwhile True:\n    x = get(it)\n"
        "    note(int(x[0]))\n    if x[0] >= 24: fail()"
    ),
    (
        "def ahead():\n    it = iter(loader)\n    now = next(it)\n    while True:\n        try:\n"
        "            following = next(it)\n        except StopIteration:\n            yield now\n"
        "            return\n        yield now\n        now = following\n"
        "for x in ahead():\n    note(int(x[0]))\n    if x[0] >= 24: fail()"
    ),
    "while True:\n    for x in loader:\n        note(int(x[0]))\n        if x[0] >= 24: fail()",
    "for x, y in zip(loader, loader2):\n    note(int(x[0]))\n    if x[0] >= 24: fail()",
    (
        "def train():\n    for x in loader:\n        note(int(x[0]))\n        inner(x)\n"
        "def inner(x):\n    for part in x:\n        if part >= 24: fail()\ntrain()"
    ),
]


@pytest.mark.parametrize("source", FED)
def test_a_loader_gives_its_last_batches_again(notebook, source):
    """Whatever stands between the loader and the loop: the last batches come, and nothing else."""
    notebook.names["loader"] = DataLoader(torch.arange(40), 2)
    notebook.names["loader2"] = DataLoader(torch.arange(40), 2)
    body = notebook.bodies(source)[0]
    given = [int(batch.value[0]) for batch in body.batches]
    assert notebook.run(body) == given
    assert len(given) == 4
    assert given[-1] >= 24


def test_enumerate_counts_on(notebook):
    """The number that ``enumerate`` gives is that of the batch, with its own start too."""
    notebook.names["loader"] = DataLoader(torch.arange(40), 2)
    for call in ("enumerate(loader, 1)", "enumerate(loader, start=1)"):
        source = f"for step, x in {call}:\n    note(step)\n    if step == 13: fail()"
        body = notebook.bodies(source)[0]
        notebook.failing = True
        assert body.batches[-1].number == 12
        assert notebook.run(body) == [10, 11, 12, 13]
        notebook.failing = True


def test_the_batch_is_named(notebook):
    """Notes name the batch, or only the range where the loop runs ahead of its batches."""
    notebook.names["loader"] = DataLoader(torch.arange(40), 2)
    [body] = notebook.bodies(FED[0])
    run = BodyRun(body, lambda code: code())
    notebook.names["note"] = lambda value: value == 22 and run.found(FINDING)
    notebook.failing = False
    run("")
    [note] = run.notes()
    assert "batch 11 (counted from 0) of `for x in loader:`" in note
    assert "items 22, 23." in note


def test_a_loop_ahead_of_its_batches_names_a_range(notebook):
    """With prefetching, the last batch taken is not the one that the body works on."""
    notebook.names["loader"] = DataLoader(torch.arange(40), 2)
    body = notebook.bodies(FED[8])[0]
    run = BodyRun(body, lambda code: code())
    notebook.names["note"] = lambda value: value == 22 and run.found(FINDING)
    notebook.failing = False
    run("")
    assert "one of the batches 10 to 13" in run.notes()[0]


def test_a_loader_made_in_the_loop_itself_is_not_run_through(notebook):
    """Another loader than the kept one would give all its batches: that decides nothing."""
    source = (
        "for x in DataLoader(torch.arange(40), 2):\n    note(int(x[0]))\n    if x[0] >= 24: fail()"
    )
    body = notebook.bodies(source)[0]
    with pytest.raises(NothingRanError):
        notebook.run(body)
    assert notebook.noted == [0]


def test_a_loop_after_the_loader_comes_first(notebook):
    """A failure in another loop than the loader's is looked for there, then in the batches."""
    notebook.names["loader"] = DataLoader(torch.arange(40), 2)
    plain, fed = notebook.bodies(
        "for x in loader:\n    note(int(x[0]))\nfor i in range(5):\n    note(i)\n    fail()"
    )
    assert notebook.run(plain) == [0]
    assert notebook.run(fed) == [32, 34, 36, 38]


INERT = {"losses", "total", "queue", "self.losses"}


@pytest.mark.parametrize(
    ("body", "line", "moved"),
    [
        ("x = ids[i]\nloss = f(x)", 2, ()),
        ("i += 1\nx = ids[i]\nloss = f(x)", 3, ("i",)),
        ("i += 1\nx = ids[j]\nloss = f(x)", 3, ()),
        ("loss = f(x)\ntotal += loss.item()", 1, ()),
        ("x = queue.pop(0)\nloss = f(x)", 2, ("queue",)),
        ("x = next(it)\nloss = f(x)", 2, ("it",)),
        ("labels[0] = 1\nloss = f(x, labels)", 2, ("labels",)),
        ("self.step += 1\nloss = f(self.step)", 2, ("self.step",)),
        ("self.step += 1\nloss = self.f(x)", 2, ()),
        ("y = y - 1\nloss = f(y)", 2, ("y",)),
        ("for k in d:\n    e[k] = d[k]\nloss = f(x)", 3, ()),
        ("losses.append(f(x))", 1, ()),
        ("losses.append(f(losses))", 1, ("losses",)),
        ("losses.append(f(x, queue.pop(0)))", 1, ("losses", "queue")),
        ("y = losses.append(f(x))", 1, ("losses",)),
        ("memory.append(f(x))", 1, ("memory",)),
        ("self.losses.append(f(x))", 1, ()),
        ("total += f(x)", 1, ()),
        ("total += f(x, total)", 1, ("total",)),
        ("h = net(x, h)\nloss = f(h)", 2, ("h",)),
    ],
)
def test_what_a_loop_moves_on(body, line, moved):
    """A finding that goes by what earlier rounds or half a round changed is told apart."""
    assert names_moved_on(ast.parse(body).body, line, (), INERT) == moved
