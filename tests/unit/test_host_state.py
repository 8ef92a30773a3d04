from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch

from cudassert_ipy.notebook.cell_names import names_read_first
from cudassert_ipy.notebook.inert import Inert
from cudassert_ipy.replay.host_state import HostState


def check(namespace, cell):
    """Run ``cell`` as source on the namespace; return what is lost and put the rest back."""
    state = HostState.take(namespace)
    exec(cell, namespace)
    lost = state.lost(namespace)
    state.restore(namespace)
    return lost


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (5, "x += 3"),
        ("a", "x = 'b'"),
        (None, "x = 1"),
        ([0, 1, 2], "x.pop(0)"),
        ([0, 1, 2], "x = []"),
        ({"a": 1}, "x['b'] = 2; del x['a']"),
        ({1, 2}, "x.add(3)"),
        (deque([1, 2]), "x.popleft()"),
        (torch.tensor([1, 2, 3]), "x -= 1"),
        (torch.tensor([1, 2, 3]), "x = x - 1"),
        (torch.tensor([True, False]), "x[0] = False"),
        (np.array([1, 2]), "x += 1"),
        (np.array([1, 2]), "x = x + 1"),
    ],
)
def test_small_values_are_put_back(value, cell):
    """What the cell changed, in place or by a new binding, is as it was."""
    expected = repr(value)
    namespace = {"x": value}
    assert check(namespace, cell) == ()
    assert repr(namespace["x"]) == expected


def test_what_is_changed_in_place_stays_the_object_it_is():
    """Whoever else holds the tensor or the list sees the old values again, too."""
    labels, queue = torch.tensor([1, 2, 3]), [1, 2]
    namespace = {"labels": labels, "queue": queue}
    check(namespace, "labels -= 1; queue.pop()")
    assert namespace["labels"] is labels
    assert labels.tolist() == [1, 2, 3]
    assert queue == [1, 2]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (torch.zeros(4), "x += 1"),
        (torch.zeros(300_000, dtype=torch.int64), "x += 1"),
        ([torch.zeros(2, dtype=torch.int64)], "x[0] += 1"),
        ({"ids": torch.zeros(2)}, "x['ids'] = None"),
        (object(), "x = object()"),
        ([0] * 5000, "x.append(1)"),
        (iter([1]), "x = iter([2])"),
    ],
)
def test_what_cannot_be_put_back_is_named(value, cell):
    """Changes of larger or other values are known as changes."""
    assert check({"x": value}, cell) == ("x",)


def test_an_unchanged_namespace_has_lost_nothing():
    """Reading changes nothing, NaN included."""
    namespace = {"a": float("nan"), "b": [float("nan")], "t": torch.ones(3), "m": torch.nn.ReLU()}
    assert check(namespace, "y = t.sum() + a; z = m(t)") == ()


def test_what_the_cell_deleted_comes_back():
    """A small variable that the cell deleted is bound again; a large one is named."""
    namespace = {"x": 1, "big": object()}
    assert check(namespace, "del x, big") == ("big",)
    assert namespace["x"] == 1


def test_copies_of_unchanged_tensors_are_used_again():
    """The next state does not copy a tensor that has not changed."""
    namespace = {"x": torch.arange(5)}
    first = HostState.take(namespace)
    second = HostState.take(namespace, first)
    assert second._entries["x"] is first._entries["x"]
    namespace["x"] += 1
    assert HostState.take(namespace, second)._entries["x"] is not first._entries["x"]


def test_nothing_large_is_kept_alive():
    """A state holds no reference to what a cell may want to replace."""
    import weakref

    namespace = {"x": torch.zeros(1000), "m": torch.nn.Linear(2, 2), "l": [torch.zeros(2)]}
    references = [weakref.ref(namespace["x"]), weakref.ref(namespace["m"])]
    state = HostState.take(namespace)
    namespace.clear()
    assert [reference() for reference in references] == [None, None]
    assert set(state.lost(namespace)) == {"x", "m", "l"}


def test_no_user_code_runs():
    """Hostile objects are only looked at from outside."""

    class Hostile:
        def __getattribute__(self, name):
            raise AssertionError(name)

        def __eq__(self, other):
            raise AssertionError

        __hash__ = None

        def __len__(self):
            raise AssertionError

    namespace = {"x": Hostile(), "l": [Hostile()], "d": {"k": Hostile()}}
    state = HostState.take(namespace)
    assert state.lost(namespace) == ()
    state.restore(namespace)


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("x = y\nz = x", {"y"}),
        ("x += 1", {"x"}),
        ("x = x + 1", {"x"}),
        ("for a in b:\n    c = a\nprint(c)", {"b", "print"}),
        ("[i for i in r]", {"r", "i"}),
        ("def f():\n    return g\nf()", {"g", "f"}),
        ("if (n := m) > 1: n", {"m"}),
        ("x: int = y", {"y"}),
        ("not python at all", {"not", "python", "at", "all"}),
    ],
)
def test_names_that_a_cell_takes_from_before(cell, names):
    """Names count that are read before the cell assigns them."""
    assert names_read_first(cell) >= names - {"i", "f"}
    assert "z" not in names_read_first(cell)


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ("losses.append(x)", {"x"}),
        ("total += x", {"x"}),
        ("total += x\nf(total)", {"x", "f", "total"}),
        ("losses.append(losses[0])", {"losses"}),
        ("other.append(x)", {"other", "x"}),
    ],
)
def test_what_only_receives_values_is_not_read(cell, read):
    """A list that is only appended to gives nothing to an operand; anything else may."""
    assert names_read_first(cell, {"losses", "total"}) == read


def test_inert_names_are_plain_and_read_by_no_function_that_is_called():
    """Classes of the user run code of theirs, and a called function may give a value back."""
    space: dict[str, object] = {"Trainer": type("Trainer", (), {}), "__name__": "__main__"}
    exec(
        "def learn(): return step()\ndef step(): return read[-1]\ndef plot(): return losses\n"
        "losses, read, total, own = [], [], 0.0, Trainer()\nown.history = []",
        space,
    )
    inert = Inert(space, {"learn", "losses", "read"})
    assert "losses" in inert
    assert "total" in inert
    assert "own.history" in inert
    assert "read" not in inert
    assert "own" not in inert
    assert "losses" not in Inert(space, {"plot"})
