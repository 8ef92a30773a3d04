"""check_batch with rules: what a batch may be, how its parts are named, and what is bad."""

import collections
import dataclasses
import doctest
import importlib

import numpy as np
import pytest
import torch

import cudassert_ipy
from cudassert_ipy import CudassertError, OperandError, Rule, check_batch
from cudassert_ipy.checks.paths import find, path_text, walk
from cudassert_ipy.checks.wording import describe

Pair = collections.namedtuple("Pair", "ids labels")


@dataclasses.dataclass
class Sample:
    ids: torch.Tensor
    mask: object = None


class Graph:
    """Like torch_geometric's Data: attributes behind __getattr__, names from keys()."""

    def __init__(self, **tensors):
        self.__dict__["_store"] = tensors

    def __getattr__(self, name):
        try:
            return self.__dict__["_store"][name]
        except KeyError:
            raise AttributeError(name) from None

    def keys(self):
        return list(self._store)

    def __call__(self, *names):
        """Data can be called, for its tensors."""
        return iter(self._store.items())


class Encoding(collections.UserDict):
    """Like transformers' BatchEncoding."""


IDS = torch.tensor([[1, 2], [3, 9]])


@pytest.mark.parametrize("module", ["rules", "batch", "scan"])
def test_the_examples_of_the_docstrings_are_true(module):
    """Every example in a public docstring prints what it says."""
    outcome = doctest.testmod(importlib.import_module(f"cudassert_ipy.checks.{module}"))
    assert outcome.attempted > 3
    assert outcome.failed == 0


@pytest.mark.parametrize(
    ("batch", "key", "name"),
    [
        ({"ids": IDS}, "ids", 'batch["ids"]'),
        ({"a.b": IDS}, "a.b", 'batch["a.b"]'),
        ({"a": {"b": [0, IDS]}}, "a.b[1]", 'batch["a"]["b"][1]'),
        ({"a": {"b": [0, IDS]}}, ("a", "b", 1), 'batch["a"]["b"][1]'),
        ({"a": {"b c": IDS}}, '["a"]["b c"]', 'batch["a"]["b c"]'),
        ({3: IDS}, 3, "batch[3]"),
        ([None, IDS], 1, "batch[1]"),
        ((0.5, IDS), -1, "batch[-1]"),
        (Pair(IDS, None), "ids", "batch.ids"),
        (Pair(IDS, None), 0, "batch[0]"),
        (Sample(IDS), "ids", "batch.ids"),
        (Graph(edge_index=IDS), "edge_index", "batch.edge_index"),
        (Encoding(input_ids=IDS), "input_ids", 'batch["input_ids"]'),
        ([{"labels": IDS}, {"labels": IDS - 9}], "[*].labels", 'batch[0]["labels"]'),
        ({"ids": IDS.numpy()}, "ids", 'batch["ids"]'),
        ({"ids": IDS.numpy()[:, ::-1]}, "ids", 'batch["ids"]'),
        ({"ids": IDS.numpy().astype(">i4")}, "ids", 'batch["ids"]'),
        ({"ids": [[1, 2], [3, 9]]}, "ids", 'batch["ids"]'),
        ({"ids": [[1, 2], [3, 9, 4]]}, "ids", 'batch["ids"][1]'),
        ({"id": 9}, "id", 'batch["id"]'),
        ({"id": np.int32(9)}, "id", 'batch["id"]'),
    ],
)
def test_every_kind_of_batch_and_path(batch, key, name):
    """A rule finds its tensor in any nesting, and the finding names it as one would type it."""
    with pytest.raises(OperandError) as caught:
        check_batch(batch, {key: (-100, 8)})
    assert caught.value.finding.expression == name
    assert caught.value.finding.bad_values == (9,)
    if "-" not in str(key):  # a negative position is named as the user wrote it
        assert name in [path_text(leaf.path) for leaf in walk(batch).found] or "[0]" in name


@pytest.mark.parametrize(
    ("values", "rule", "bad"),
    [
        ([0, 9, 10, -1], range(10), (10, -1)),
        ([0, 9, 10, -1], 10, (10, -1)),
        ([0, 9, 10, -1], (0, 9), (10, -1)),
        ([0, 9, 10, -1], Rule(high=9), (10,)),
        ([0, -100, 2], Rule(0, 1, ignore=-100), (2,)),
        ([0, -100, -1, 2], Rule(0, 1, ignore=(-1, -100)), (2,)),
        ([0, 1, 2], (0.5, 1.5), (0, 2)),
        ([0, 1], 0, (0, 1)),
        ([0.0, 1.0, 1.5], (0, 1), (1.5,)),
        ([0.0, float("inf")], Rule(finite=True), (float("inf"),)),
        ([0.0, float("-inf")], Rule(high=1, finite=True), (float("-inf"),)),
        ([0.0, float("inf"), 3.0], Rule(), ()),
        ([float("nan"), 0.5, 2.0], Rule(0, 1, nan=True), (2.0,)),
        ([float("nan"), 7.0], Rule(5, nan=True), ()),
        ([2**62, -(2**62)], (-(2**70), 2**70), ()),
        ([1, 2], (float("-inf"), float("inf")), ()),
    ],
)
def test_what_a_rule_allows(values, rule, bad):
    """Ranges are closed, marks and NaN can be allowed, infinities refused."""
    report = check_batch(torch.tensor(values), rule, raise_error=False)
    assert tuple(value for finding in report for value in finding.bad_values) == bad


def test_a_rule_that_allows_only_nan_is_refused():
    """It would be a mistake, and no value could stand for a NaN."""
    with pytest.raises(CudassertError, match="nothing but NaN"):
        Rule(3, 2, nan=True)


def test_nan_is_in_no_range():
    """A NaN is bad unless the rule allows it, and is counted."""
    report = check_batch({"p": torch.tensor([0.5, float("nan")])}, {"p": (0, 1)}, raise_error=False)
    assert (report[0].nan_count, report[0].bad_positions) == (1, ((1,),))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_refuses_infinity_of_every_width(dtype):
    """The largest number is finite and infinity is not, in every float type."""
    largest = torch.finfo(dtype).max
    values = torch.tensor([largest, float("inf")], dtype=dtype)
    report = check_batch(values, Rule(finite=True), raise_error=False)
    assert [finding.bad_positions for finding in report] == [((1,),)]


def test_a_small_dtype_does_not_wrap_a_bound():
    """A bound that the dtype cannot hold is compared as the number it is."""
    values = torch.tensor([0, 200], dtype=torch.uint8)
    assert not check_batch(values, (-100, 30522))
    assert check_batch(values, (-100, 150), raise_error=False)[0].bad_values == (200,)


def test_the_exception_tells_all_findings_and_where():
    """It names each bad tensor and the line that called, and carries the first finding."""
    batch = {"ids": torch.tensor([[1, 10]]), "y": torch.tensor([5])}
    with pytest.raises(OperandError) as caught:
        check_batch(batch, {"ids": 10, "y": 3})
    text = str(caught.value)
    assert '1 of 2 values of `batch["ids"]` is outside 0 to 9' in text
    assert '1 of 1 value of `batch["y"]` is outside 0 to 2' in text
    assert 'check_batch(batch, {"ids": 10, "y": 3})' in text
    assert caught.value.finding.expression == 'batch["ids"]'


def test_a_report_is_true_where_something_is_bad():
    """It is a sequence of findings, and raises on request."""
    report = check_batch([IDS], {0: 9}, raise_error=False)
    assert report
    assert len(report) == 1
    assert list(report) == [report[0]]
    with pytest.raises(OperandError):
        report.raise_if_bad()
    good = check_batch([IDS], {0: 10}, raise_error=False)
    assert not good
    good.raise_if_bad()


def test_a_rule_may_depend_on_the_batch():
    """A function is given the batch and returns the rule; its own error is one clear line."""
    graph = Graph(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 3], [1, 2]]))
    report = check_batch(graph, {"edge_index": lambda g: g.x.shape[0]}, raise_error=False)
    assert report[0].bad_positions == ((0, 1),)
    with pytest.raises(CudassertError, match="AttributeError: nodes"):
        check_batch(graph, {"edge_index": lambda g: g.nodes})


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"idz": 3}, r'no tensor \'idz\'. It has batch\["ids"\]'),
        ({"ids[7]": 3}, "no tensor"),
        ({}, "no rules"),
        ({"ids": "0..9"}, "is not a rule"),
        ({"ids": range(0, 9, 2)}, "is not a rule"),
        ({"ids": True}, "is not a rule"),
        ({"ids": ("0", "9")}, "must be a number"),
        ({"text": 3}, "without tensors or numbers"),
        ({2.5: 3}, "not a key path"),
    ],
)
def test_rules_that_mean_nothing_are_refused(rules, message):
    """A typo in a path or a rule is one clear error, never a silent pass."""
    with pytest.raises(CudassertError, match=message):
        check_batch({"ids": IDS, "text": ["a", "b"]}, rules)


def test_tensors_without_values_are_listed_as_unchecked():
    """A meta tensor is not called good."""
    report = check_batch({"ids": IDS.to("meta")}, {"ids": 10})
    assert (report.checked, report.unchecked) == (0, ('batch["ids"]',))
    assert "Nothing was checked" in repr(report)


def test_empty_tensors_are_good():
    """No values, no bad values."""
    assert check_batch({"ids": IDS[:0]}, {"ids": 1}).checked == 1


def test_positions_and_rows_of_a_bad_value():
    """Positions are per dimension, rows are along dimension 0, counts are true."""
    values = torch.zeros(40, 3, dtype=torch.int64)
    values[5:35, 1] = 7
    (finding,) = check_batch(values, 5, raise_error=False)
    assert finding.bad_count == 30
    assert finding.bad_positions[0] == (5, 1)
    assert finding.batch_rows == tuple(range(5, 25))


@pytest.mark.parametrize(
    ("batch", "key", "rows"),
    [
        (
            {"edge_index": torch.tensor([[0, 9, 1], [1, 0, 9]]), "y": torch.ones(2)},
            "edge_index",
            (),
        ),
        ({"edge_index": torch.tensor([[0, 9, 1], [1, 0, 9]])}, "edge_index", ()),
        ({"pairs": torch.tensor([[0, 9, 1], [1, 0, 9]]), "x": torch.ones(5, 3)}, "pairs", ()),
        ({"ids": torch.tensor([[0, 1, 1], [1, 0, 9]]), "x": torch.ones(2, 3)}, "ids", (1,)),
        ({"ids": torch.tensor([[0, 1, 1], [1, 0, 9]])}, "ids", (1,)),
        ({"y": torch.tensor([0, 9]), "x": torch.ones(5, 3)}, "y", (1,)),
    ],
)
def test_rows_are_named_only_where_they_can_be_those_of_the_batch(batch, key, rows):
    """Dimension 0 of an edge index, or of a size that nothing else has, is no batch."""
    (finding,) = check_batch(batch, {key: 5}, raise_error=False)
    assert finding.batch_rows == rows
    assert finding.bad_positions


def test_the_text_of_a_tensor_of_nan_is_short():
    """Where all values are NaN, that is said, and no positions are listed."""
    (finding,) = check_batch(torch.full((8, 5), torch.nan), Rule(low=0), raise_error=False)
    text = describe(finding)
    assert "all NaN" in text
    assert "outside the valid range (0 or more)" in text
    assert "nan at" not in text
    assert "from nan" not in text
    assert "[0, 0]" not in text
    (finding,) = check_batch(torch.tensor([0.5, torch.nan]), Rule(low=0), raise_error=False)
    assert "nan at [1]" in describe(finding)


def test_one_tensor_is_one_tensor():
    """The summary counts in good English."""
    assert repr(check_batch(IDS, 10)) == "No bad values: 1 tensor checked."


def test_a_number_as_a_key_is_told_from_its_text():
    """Who writes '1' for the position 1 is told so; other typos are not."""
    with pytest.raises(CudassertError, match="Write the number 1 instead of the string '1'"):
        check_batch((IDS, IDS), {"1": 10})
    with pytest.raises(CudassertError) as caught:
        check_batch((IDS, IDS), {"7": 10})
    assert "Write the number" not in str(caught.value)


def test_a_function_that_makes_no_rule_is_told_what_it_was_taken_for():
    """A loss in place of a model is taken for a rule, and the error says what to give instead."""
    with pytest.raises(
        CudassertError, match="taken for one that makes a rule, but it gave a Tensor"
    ):
        check_batch(IDS, lambda batch: batch.sum())


class Lazy(dict):
    """A mapping that fails when a value is read."""

    def __getitem__(self, key):
        msg = "disk is gone"
        raise OSError(msg)


class Failing:
    """An object with a property that fails."""

    def __init__(self):
        self.ids = IDS

    @property
    def labels(self):
        msg = "not today"
        raise RuntimeError(msg)


def test_a_part_that_cannot_be_read_is_one_error():
    """A lazily failing item or attribute that a rule names raises one clear line."""
    with pytest.raises(CudassertError, match="OSError: disk is gone"):
        check_batch(Lazy(ids=IDS), {"ids": 3})
    with pytest.raises(CudassertError, match="RuntimeError: not today"):
        check_batch(Failing(), {"labels": 3})
    assert not check_batch(Failing(), {"ids": 10})  # one that no rule names does no harm
    assert walk(Lazy(ids=IDS)).unread == ['batch["ids"]']


def test_a_cyclic_deep_or_huge_batch_is_bounded():
    """Cycles end, depth and number of tensors have a limit, and a rule on too much says so."""
    cyclic = {"ids": IDS}
    cyclic["self"] = cyclic
    assert len(walk(cyclic).found) == 1
    deep = IDS
    for _ in range(2_000):
        deep = [deep]
    assert walk(deep).is_cut
    with pytest.raises(CudassertError, match="too deep"):
        check_batch({"deep": deep}, {"deep": 3})
    with pytest.raises(CudassertError, match="too large"):
        check_batch({"many": [IDS] * 5_000}, {"many": 100})


def test_hostile_keys_stay_one_line():
    """A key with control characters is shown without them."""
    key = "\x1b[31mid\ns" + "x" * 500
    with pytest.raises(OperandError) as caught:
        check_batch({key: IDS}, {key: 3})
    name = caught.value.finding.expression
    assert "\n" not in name
    assert "\x1b" not in name
    assert len(name) <= 120


def test_find_takes_a_star_for_every_item():
    """``*`` stands for all items of a list, and for all values of a mapping."""
    batch = {"boxes": [{"y": IDS}, {"y": IDS}]}
    assert [path_text(path) for path, _ in find(batch, "boxes[*].y")] == [
        'batch["boxes"][0]["y"]',
        'batch["boxes"][1]["y"]',
    ]


def test_the_names_are_public():
    """All of it can be had from the package."""
    for name in ("BatchReport", "Rule", "ScanReport", "check_batch", "scan"):
        assert name in cudassert_ipy.__all__
        assert getattr(cudassert_ipy, name).__name__ == name
