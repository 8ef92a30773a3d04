"""Which statements a failing one needs: by hand-written cases, and for random programs."""

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudassert_ipy.replay.slicing import CannotSliceError, needed, statements

EXAMPLES = int(os.environ.get("SLICES", "200"))


def kept(*cells, target=-1):
    """Return the texts that are needed for a statement (the last one)."""
    items = statements(cells)
    return [item.text for item in needed(items, [target % len(items)])]


TWICE = """\
def twice(f):
    @functools.wraps(f)
    def g(x):
        return f(f(x))
    return g"""

CASES = {
    "aliases": (
        ["a = []", "b = [a]", "c = 5", "b[0].append(c)", "d = [1]", "d.append(2)", "use = a[0]"],
        {"d = [1]", "d.append(2)"},
    ),
    "a global defined after the function": (
        ["def f(x):\n    return x * SCALE", "SCALE = 2", "OTHER = 3", "y = f(1)"],
        {"OTHER = 3"},
    ),
    "an attribute of a class": (
        ["class A:\n    n = 1", "a = A()", "A.n = 7", "k = 3", "y = a.n"],
        {"k = 3"},
    ),
    "augmented": (["x = 1", "z = 9", "x += 2", "y = x"], {"z = 9"}),
    "augmented through an alias": (["x = [1]", "w = x", "w += [2]", "z = 1", "y = x"], {"z = 1"}),
    "del": (["sum = 3", "w = sum", "del sum", "y = sum([1, 2])"], {"w = sum"}),
    "global": (
        ["n = 0", "def f():\n    global n\n    n += 1", "m = 2", "f()", "y = n"],
        {"m = 2"},
    ),
    "comprehension": (
        ["x = 5", "k = 2", "q = 1", "y = [k * x for x in range(3)]"],
        {"x = 5", "q = 1"},
    ),
    "decorators": (
        [
            "import functools",
            TWICE,
            "w = 1",
            "@twice\ndef inc(x):\n    return x + 1",
            "y = inc(1)",
        ],
        {"w = 1"},
    ),
    "imports": (["import math", "import json", "x = math.pi", "y = x"], {"import json"}),
    "a redefinition": (["x = [1]", "x = [2]", "y = x"], {"x = [1]"}),
    "print": (["x = 1", "print(x)", "y = x"], {"print(x)"}),
    "semicolons": (["a = 1; b = 2", "y = a"], {"b = 2"}),
    "two in a tuple": (["a, b = [], []", "b.append(1)", "y = a"], {"b.append(1)"}),
    "a seed": (["import torch", "torch.manual_seed(0)", "z = 1", "y = torch.rand(1)"], {"z = 1"}),
    "training": (
        [
            "import torch",
            "from torch import nn",
            "import matplotlib.pyplot as plt",
            "history = []",
            "model = nn.Linear(2, 2)",
            "opt = torch.optim.SGD(model.parameters(), lr=1)",
            "x = torch.ones(1, 2)",
            "loss = model(x).sum()",
            "loss.backward()",
            "opt.step()",
            "history.append(loss.item())",
            "plt.plot(history)",
            "y = model(x)",
        ],
        {
            "import matplotlib.pyplot as plt",
            "history = []",
            "history.append(loss.item())",
            "plt.plot(history)",
        },
    ),
    "with": (
        ["import io", "f = io.StringIO()", "z = 2", "with f as g:\n    h = 1", "y = h"],
        {"z = 2"},
    ),
    "a loop": (["xs = []", "k = 1", "for i in range(3):\n    xs.append(i)", "y = xs"], {"k = 1"}),
    "an iterator": (["it = iter([1, 2])", "a = next(it)", "z = 3", "y = next(it)"], {"z = 3"}),
    "a closure": (
        [
            "box = []",
            "def put(x):\n    box.append(x)",
            "z = []",
            "put(1)",
            "z.append(3)",
            "y = box",
        ],
        {"z = []", "z.append(3)"},
    ),
    "a setting": (
        ["import os", "os.environ['Q'] = '1'", "z = 1", "y = os.environ['Q']"],
        {"z = 1"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_left_out(name):
    """Exactly the statements without influence are left out."""
    cells, out = CASES[name]
    every = [item.text for item in statements(cells)]
    assert kept(*cells) == [text for text in every if text not in out]


@pytest.mark.parametrize("name", CASES)
def test_the_kept_statements_give_the_same_value(name):
    """Run alone, they bind `y` (or `use`) to what the whole program does."""
    cells, _ = CASES[name]
    whole, part = {}, {}
    if "training" in name:
        pytest.skip("needs packages that need not be there")
    exec("\n".join(cells), whole)
    exec("\n".join(kept(*cells)), part)
    goal = "use" if "use" in whole else "y"
    assert repr(part[goal]) == repr(whole[goal])


@st.composite
def programs(draw):
    """Return the statements of a small program over a few names; the last one binds ``y``."""
    names = st.sampled_from("abcd")
    number = st.integers(0, 3).map(str)
    functions = st.sampled_from(["f", "g", "h"])
    name = draw(st.permutations("abcd"))
    start = [f"{name[0]} = [1]", f"{name[1]} = {{'k': 0}}", f"{name[2]} = 3", f"{name[3]} = [[2]]"]
    kinds = [
        "{a} = {b}",
        "{a} = [{b}, {c}]",
        "{a} = [{n}]",
        "{a} = {n}",
        "{a} = [x for x in {b}]",
        "{a} = {f}({b})",
        "{a} += {b}",
        "{a}.append({b})",
        "{a}[0] = {b}",
        "{a}[0].append({n})",
        "{a}['k'] = {b}",
        "{a}, {b} = {b}, {a}",
        "{f}({a})",
        "del {a}",
        "for {a} in list({b})[:3]:\n    {c}.append({a})",
        "if {a}:\n    {b} = {c}\nelse:\n    {b}.append({n})",
        "def {f}(p):\n    return p",
        "def {f}(p):\n    p.append({n})\n    return [p]",
        "def {f}(p):\n    {a}.append(p)\n    return {b}",
        "def {f}(p):\n    global {a}\n    {a} = p\n    return {n}",
        "def {f}(p):\n    return {g}({a})",
        "{f} = lambda p: [p, {a}]",
        "class T:\n    k = {a}",
        "T.k = {a}",
        "{a} = T",
        "{a} = {b}.k",
        "{a} = iter({b})",
        "{a} = next({b})",
        "with_ = {a}; {b} = with_",
    ]
    body = [
        draw(st.sampled_from(kinds)).format(
            a=draw(names),
            b=draw(names),
            c=draw(names),
            n=draw(number),
            f=draw(functions),
            g=draw(functions),
        )
        for _ in range(draw(st.integers(1, 14)))
    ]
    defined = ["def f(p):\n    return p", "def g(p):\n    return [p]", "def h(p):\n    return 1"]
    return [*defined, "class T:\n    k = 0", *start, *body, f"y = {draw(names)}"]


def run(texts):
    """Run statements one by one as cells are; return those that worked, and the last value."""
    space = {}
    good = []
    for text in texts:
        try:
            exec(text, space)
        except Exception:
            continue
        good.append(text)
    return good, space.get("y", "nothing")


def shown(value, depth=6):
    """Return a value as text without addresses."""
    if isinstance(value, list | dict) and depth:
        items = value.values() if isinstance(value, dict) else value
        return f"{type(value).__name__}({', '.join(shown(item, depth - 1) for item in items)})"
    return repr(value) if isinstance(value, int | str) else type(value).__name__


@settings(max_examples=EXAMPLES, deadline=None)
@given(programs())
def test_a_slice_of_a_random_program_gives_the_same_value(program):
    """The kept statements of the cells that ran well bind ``y`` to the same value."""
    good, _ = run(program)
    again, whole = run(good)
    if not good or not good[-1].startswith("y =") or again != good:
        return
    _, part = run(kept(*good))
    assert shown(part) == shown(whole), kept(*good)


def test_a_name_that_is_used_again_joins_nothing():
    """Loops of cells that reuse `loss` need only their own model; long notebooks take no time."""
    cells = ["class M:\n    def __init__(self):\n        self.w = []"]
    for n in range(100):
        cells += [f"model{n} = M()", f"loss = model{n}.w", "loss.append(1)", f"hist{n} = []"]
        cells.append(f"hist{n}.append(len(loss))")
    started = time.monotonic()
    found = kept(*cells, "y = model7")
    assert found == [cells[0], "model7 = M()", "loss = model7.w", "loss.append(1)", "y = model7"]
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("line", ["from math import *", "exec('x = 1')", "globals()['x'] = 1"])
def test_names_that_come_unseen(line):
    """Nothing is cut where names may come from anywhere."""
    with pytest.raises(CannotSliceError):
        kept("x = 0", line, "y = x")
