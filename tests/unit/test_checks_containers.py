"""Operands in what a call was given: containers, ``**batch``, wrappers of torch, graphs."""

import collections
import inspect
import linecache
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import cudassert_ipy
from cudassert_ipy.checks.frames import is_user_file
from cudassert_ipy.checks.variables import tensors_inside
from cudassert_ipy.errors import OperandError

WORDS = torch.tensor([1, 7])
PLACES = torch.tensor([0, 1])


class Library(nn.Module):
    """Stands for a model of a library: its own names must not be the user's."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 2)

    def forward(self, batch=None, *, words=None, places=None, data=None):
        if batch is not None:
            words = batch["words"] if isinstance(batch, dict | collections.UserDict) else batch[0]
        return self.table(data.words if data is not None else words)

    @torch.no_grad()
    def generate(self, words):
        return self.table(words)


class _Store:
    def __init__(self, **tensors):
        self._mapping = tensors


class Graph:
    """Has its attributes where ``torch_geometric.data.Data`` has them."""

    def __init__(self, **tensors):
        self._store = _Store(**tensors)

    def __getattr__(self, name):
        if name == "_store":
            raise AttributeError
        return self._store._mapping[name]


Pair = collections.namedtuple("Pair", "words places")

CALLS = {
    "model(**batch)": 'batch["words"]',
    "model(**{k: v for k, v in batch.items()})": "model(words=...)",
    "model(batch)": 'batch["words"]',
    "model(encoding)": 'encoding["words"]',
    "model(words=encoding['words'])": "encoding['words']",
    "model(pair)": "pair.words",
    "model([words, 1])": "words",
    "model(*single)": "single[0][0]",
    "model(data=graph)": "graph.words",
    "model(words=words.clone().long())": "words.clone().long()",
    "model.generate(words.clone())": "words.clone()",
    "model.generate(words=words.clone())": "words.clone()",
    "model.generate(**dict(words=words.clone()))": "model.generate(words=...)",
}


@pytest.fixture(scope="module")
def library():
    """Make ``Library`` out of a file that is no user's, as an installed package's is."""
    source = "import collections, torch\nfrom torch import nn\n\n" + inspect.getsource(Library)
    made = {"__name__": "library"}
    exec(compile(source, "<frozen library>", "exec"), made)
    return made["Library"]


def finding_of(code, names):
    name = f"<call {code}>"
    linecache.cache[name] = (len(code), None, [code + "\n"], name)
    with pytest.raises(OperandError) as caught, cudassert_ipy.guard():
        exec(compile(code, name, "exec"), names)
    return caught.value.finding


@pytest.mark.parametrize("code", CALLS)
def test_an_operand_in_a_container_is_named(code, library):
    """What the call was given names the operand, however it was packed."""
    words = WORDS.clone()
    names = {
        "model": library(),
        "words": words,
        "batch": {"places": PLACES, "words": words},
        "encoding": collections.UserDict(words=words),
        "pair": Pair(words, PLACES),
        "single": ([words],),
        "graph": Graph(words=words),
    }
    finding = finding_of(code, names)
    assert (finding.expression, finding.bad_values) == (CALLS[code], (7,))


def test_a_wrapper_of_the_users_names_nothing():
    """Only the wrappers of torch are known to hand on what they were given."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 2)

        def forward(self, words):
            words = words + 5
            return self.table(words)

    names = {"model": Model(), "words": PLACES}
    finding = finding_of("model(words.clone())", names)
    assert finding.expression == "words"  # the line in Model.forward, a user's
    assert finding.bad_values == (5, 6)


def test_no_code_of_the_users_runs():
    """Properties, iterators and item getters of the user's classes are left alone."""

    class Trap(dict):
        def __iter__(self):
            raise AssertionError

        def __getitem__(self, key):
            raise AssertionError

        def items(self):
            raise AssertionError

        @property
        def words(self):
            raise AssertionError

    found = dict(tensors_inside("trap", Trap(a=WORDS)))
    assert list(found) == ['trap["a"]']
    assert dict(tensors_inside("model", nn.Embedding(5, 2))) == {}
    endless = []
    endless.append(endless)
    assert dict(tensors_inside("x", endless)) == {}
    assert len(dict(tensors_inside("x", [WORDS] * 10_000))) == 100
    huge = [[[[WORDS] * 100] * 100] * 100] * 100
    assert len([*tensors_inside("x", huge)]) < 2_000


def test_code_that_a_library_generated_is_not_the_users():
    """torch_geometric writes the code of its layers to files in the temporary directory."""
    directory = Path(tempfile.gettempdir())
    made = "torch_geometric.nn.conv.sage_conv_SAGEConv_propagate_k3v_9xa1.py"
    assert not is_user_file(str(directory / made))
    assert is_user_file(str(directory / "propagate.py"))
    assert is_user_file(str(directory / "elsewhere" / "my_propagate_step.py"))
