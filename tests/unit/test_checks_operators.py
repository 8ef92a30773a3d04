import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from cudassert_ipy.checks.inspect import check_operands
from cudassert_ipy.checks.operators import lookup, table
from cudassert_ipy.decode.catalog import catalog


class Seen(TorchDispatchMode):
    """Notes the range of each checked operand, and the assertion its kernel has."""

    def __init__(self):
        super().__init__()
        self.ranges = []
        self.keys = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        row = lookup(func)
        if row is not None:
            arguments = row.arguments(args, kwargs or {})
            for item in check_operands(row, arguments):
                operand = item.operand
                self.ranges.append((operand.name, operand.low, operand.high, operand.special))
            self.keys.append(row.assertion_key(arguments))
        return func(*args, **(kwargs or {}))


SCORES = torch.zeros(4, 5)
LABELS = torch.tensor([0, 1, 2, 3])
X = torch.zeros(3, 7)
I = torch.tensor([0, 1])  # noqa: E741

CASES = {
    "embedding": (lambda: F.embedding(I, torch.zeros(9, 2)), [("input", 0, 8, ())], "embedding"),
    "index_select": (lambda: X.index_select(1, I), [("index", 0, 6, ())], "embedding"),
    "x[i]": (lambda: X[I], [("index", -3, 2, ())], "index"),
    "x[:, i]": (lambda: X[:, I], [("index", -7, 6, ())], "index"),
    "x[i, j]": (lambda: X[I, I], [("index", -3, 2, ()), ("index", -7, 6, ())], "index"),
    "mask then index": (
        lambda: torch.zeros(2, 3, 4)[torch.ones(2, 3, dtype=torch.bool).nonzero()[:2, 0], :, I],
        [("index", -2, 1, ()), ("index", -4, 3, ())],
        "index",
    ),
    "bool mask": (lambda: X[X > 1], [], "index"),
    "mask skips its dimensions": (
        lambda: torch.zeros(2, 2, 5)[torch.tensor([[True, True], [False, False]]), I],
        [("index", -5, 4, ())],
        "index",
    ),
    "setitem": (lambda: X.clone().__setitem__(I, 1.0), [("index", -3, 2, ())], "index"),
    "cross_entropy": (
        lambda: F.cross_entropy(SCORES, LABELS),
        [("target", 0, 4, (-100,))],
        "nll_loss",
    ),
    "label smoothing": (
        lambda: F.cross_entropy(SCORES, LABELS, label_smoothing=0.1),
        [("target", 0, 4, (-100,))],
        "nll_loss",
    ),
    "weight": (
        lambda: F.cross_entropy(SCORES, LABELS, weight=torch.ones(5)),
        [("target", 0, 4, (-100,))],
        "nll_loss",
    ),
    "ignore_index": (
        lambda: F.cross_entropy(SCORES, LABELS, ignore_index=-1),
        [("target", 0, 4, (-1,))],
        "nll_loss",
    ),
    "ignore_index in range": (
        lambda: F.cross_entropy(SCORES, LABELS, ignore_index=0),
        [("target", 0, 4, ())],
        "nll_loss",
    ),
    "no reduction": (
        lambda: F.cross_entropy(SCORES, LABELS, reduction="none"),
        [("target", 0, 4, (-100,))],
        "nll_loss_no_reduce",
    ),
    "one sample": (
        lambda: F.cross_entropy(SCORES[0], LABELS[0]),
        [("target", 0, 4, (-100,))],
        "nll_loss",
    ),
    "sequence": (
        lambda: F.cross_entropy(torch.zeros(2, 5, 3), torch.zeros(2, 3, dtype=torch.int64)),
        [("target", 0, 4, (-100,))],
        "nll_loss2d",
    ),
    "sequence, no reduction": (
        lambda: F.cross_entropy(
            torch.zeros(2, 5, 3), torch.zeros(2, 3, dtype=torch.int64), reduction="none"
        ),
        [("target", 0, 4, (-100,))],
        "nll_loss2d_no_reduce",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_user_calls_reach_a_row_with_the_right_range(case):
    """What users call is found by its overload, with the closed range that the kernel asserts."""
    call, ranges, key = CASES[case]
    with Seen() as seen:
        call()
    assert seen.ranges == ranges
    assert set(seen.keys) == {key}


def test_every_row_has_its_assertion_in_the_catalogue():
    """The table names no assertion that the catalogue does not know."""
    arguments = {"reduction": 1}
    for row in table().values():
        catalog().by_key(row.assertion_key(arguments))


def test_probability_targets_are_not_class_indices():
    """Cross-entropy with probabilities has no index operand."""
    with Seen() as seen:
        F.cross_entropy(SCORES, torch.full((4, 5), 0.2))
    assert seen.ranges == []
