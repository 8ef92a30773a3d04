"""The user's tensor behind an operand that a library made of it."""

import linecache
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import cudassert_ipy
from cudassert_ipy.checks.holder import find_holder
from cudassert_ipy.errors import OperandError
from cudassert_ipy.model import Diagnosis, Finding
from cudassert_ipy.report.text import render_text

LABELS = torch.tensor([[4, 8, 15, 16], [23, 42, 99, 7]])


def held(operand, given):
    """Find the holder of every 99 in ``operand``."""
    positions = [tuple(p) for p in torch.nonzero(operand == 99).tolist()]
    found = find_holder(operand, positions, given.items())
    return None if found is None else (found.expression, found.positions)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[1],
        lambda x: x[:, 1:],
        lambda x: x.t(),
        lambda x: x.unsqueeze(-1).expand(2, 4, 3),
        lambda x: F.pad(x, (0, 1), value=-100)[:, 1:].reshape(-1),
        lambda x: torch.cat([x[1], torch.arange(3)]),
        lambda x: x.clone().view(-1),
        lambda x: x.int(),
    ],
    ids=["row", "slice", "transposed", "expanded", "shifted", "joined", "copied", "cast"],
)
def test_the_values_are_found_where_the_user_has_them(make):
    """Views by their memory, copies by equal neighbors; the positions are those in the holder."""
    labels = LABELS.clone()
    given = {"mask": torch.ones(2, 4, dtype=torch.int64), "labels": labels}
    assert held(make(labels), given) == ("labels", ((1, 2),))


def test_equal_values_alone_accuse_nobody():
    """A tensor that has the bad value by chance is not named, nor are two that are alike."""
    by_chance = torch.tensor([1, 99, 5, 6, 8, 9, 1, 1])
    assert held(LABELS.clone(), {"other": by_chance}) is None
    assert held(LABELS.clone(), {"a": LABELS.clone(), "b": LABELS.clone()}) is None
    assert held(torch.tensor([99]), {"a": torch.tensor([1, 99])}) is None
    assert held(torch.tensor([99]), {"a": torch.tensor([99])}) == ("a", ((0,),))
    assert held(torch.tensor([99.0]), {"a": torch.tensor([99.0])}) is None


def test_positions_are_not_taken_for_a_copy_of_ids():
    """Ids that count up, as those of a first try often do, are not where positions come from."""
    places = torch.arange(100)
    assert held(places, {"ids": torch.arange(100).unsqueeze(0)}) is None
    assert held(places, {"places": places}) == ("places", ((99,),))


def test_odd_tensors_are_passed_by():
    """Sparse, nested and empty tensors hold nothing that can be told."""
    odd = {
        "sparse": torch.eye(3, dtype=torch.int64).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "empty": torch.empty(0, dtype=torch.int64),
        "meta": torch.empty(8, dtype=torch.int64, device="meta"),
    }
    assert held(LABELS.clone(), odd) is None


MODEL = """
import torch, torch.nn.functional as F
from torch import nn

def shift(labels): return F.pad(labels, (0, 1))[:, 1:].flatten()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(100, 4), nn.Embedding(6, 4)
        self.head = nn.Linear(4, 50)

    def forward(self, ids, labels=None):
        x = self.words(ids)
        x = x + self.positions(torch.arange(ids.shape[1]))
        if labels is not None:
            return F.cross_entropy(self.head(x).view(-1, 50), shift(labels))
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Make a model out of a file of an installed package."""
    from cudassert_ipy.checks import frames

    package = tmp_path / "site-packages" / "wordlib"
    package.mkdir(parents=True)
    (package / "model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    caches = (frames._library_roots, frames._package_roots)
    files = (frames.is_user_file, frames.is_library_file)
    for cached in (*caches, *files):
        cached.cache_clear()
    made = {"__name__": "wordlib.model"}
    exec(compile(MODEL, str(package / "model.py"), "exec"), made)
    linecache.checkcache()
    yield made["Model"]()
    for cached in (*caches, *files):
        cached.cache_clear()


def run(code, **names):
    name = f"<cell {code}>"
    linecache.cache[name] = (len(code), None, [code + "\n"], name)
    guard = cudassert_ipy.guard()
    with pytest.raises(OperandError) as caught, guard:
        exec(compile(code, name, "exec"), names)
    return caught.value, guard.rows


def test_a_finding_inside_a_library_names_the_users_tensor_and_the_librarys_line(model):
    """What is accused is the user's; the library's line says what it was used for."""
    batch = {"ids": torch.zeros(2, 4, dtype=torch.int64), "labels": LABELS % 100}
    error, _ = run("model(**batch)", model=model, batch=batch)
    finding = error.finding
    assert (finding.expression, finding.operand) == (None, "target")
    assert finding.holder.expression == 'batch["labels"]'
    assert finding.holder.positions == ((1, 2),)
    assert (finding.holder.shape, finding.holder.dtype) == ((2, 4), "int64")
    assert finding.library.file == "wordlib/model.py"
    assert finding.library.function == "Model.forward"
    assert "F.cross_entropy(" in finding.library.source
    assert 'made from `batch["labels"]`' in str(error)
    in_the_cell = replace(finding, frames=finding.frames[-1:])
    text = render_text(Diagnosis(finding=in_the_cell))
    assert text.startswith('✗ 1 of 8 values made from batch["labels"] is out of range')
    assert "holds them at [1, 2]" in " ".join(text.split())
    assert "wordlib/model.py, line 17" in " ".join(text.split())
    assert "Fix what line 1 passes on" in text
    assert Finding.from_dict(finding.to_dict()) == finding


def test_a_sequence_that_is_too_long_is_called_so(model):
    """Positions are not off by one, and the ids are not accused."""
    for length in (7, 9):
        ids = torch.arange(length).unsqueeze(0)
        error, _ = run("model(ids)", model=model, ids=ids)
        assert error.finding.holder is None
        assert error.finding.expression is None
        assert f"they need {length} places, and there are 6" in error.finding.hint


def test_two_lookups_of_one_call_are_two_rows(model):
    """The table does not add what a library looks up elsewhere to the user's tensor."""
    ids = torch.randint(0, 100, (2, 9))
    _, rows = run("model(ids)", model=model, ids=ids)
    assert [(row.name, row.bad_count) for row in rows] == [("ids", 0), ("input", 3)]


def test_labels_that_do_not_start_at_1_are_not_said_to():
    """One label too large, among others: nothing says that all of them are shifted."""
    with pytest.raises(OperandError) as caught, cudassert_ipy.guard():
        F.cross_entropy(torch.zeros(2, 50), torch.tensor([20, 50]))
    assert "Off by one" in caught.value.finding.hint
