"""Calls with one checked operand each, for tests of the operator table and of all who read it."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


@dataclass(frozen=True)
class Case:
    """A call, a good operand for it, and what the table must say about a bad one."""

    call: Any
    good: torch.Tensor
    operation: str
    operand: str
    low: float | None
    high: float | None
    keys: tuple[str, ...] = ()
    cpu: str = ""
    """What CPU torch says to a bad value; empty: nothing."""
    role: str = "index"
    special: tuple[int, ...] = ()

    @property
    def bad_values(self):
        """Values just outside the range, far outside, and NaN where the operand can hold it."""
        step = 0.5 if self.good.is_floating_point() else 1
        values = []
        if self.high is not None:
            values += [self.high + step, self.high + 4096 - step]
        if self.low is not None:
            values.append(self.low - step)
        if self.good.is_floating_point():
            values.append(float("nan"))
        largest = 255 if self.good.dtype is torch.uint8 else 60_000
        return [v for v in values if v not in self.special and not v > largest]

    def with_bad(self, value):
        """Return the operand with ``value`` as its last element."""
        bad = self.good.clone()
        bad.view(-1)[-1] = value
        return bad


X = torch.arange(21.0).reshape(3, 7)
ROWS = torch.arange(8.0).reshape(4, 2)
WIDE = torch.arange(4.0).reshape(2, 2)
SCORES = torch.linspace(-1, 1, 20).reshape(4, 5)
IDS = torch.tensor([0, 1])
LABELS = torch.tensor([0, 1, 2, 3])
PAIR = torch.tensor([[0, 1], [1, 2]])
LOG_P = torch.zeros(5, 2, 4).log_softmax(2)
IMAGE = torch.ones(1, 1, 2, 2)
POOLED = torch.tensor([[[[0, 2], [8, 10]]]])

_BOUNDS = r"index -?\d+ is out of bounds for dimension \d with size \d"
_TARGET = r"Target -?\d+ is out of bounds"
_TAKEN = "out of range: tried to access index"
_SCATTER = ("scatter_gather", "scatter_gather_1_5")
_INDEX = ("index", "index_before_2_1")
_BAG = ("embedding_bag", "embedding_bag_2_8", "embedding_bag_2_1")
_NLL = "torch.nn.functional.cross_entropy"
_RENORM = ("embedding_renorm", "embedding")


def case(call, good, operation, operand, bounds, keys=(), cpu="", role="index", special=()):
    """Return a case; ``bounds`` are low and high."""
    keys = (keys,) if isinstance(keys, str) else keys
    return Case(call, good, operation, operand, *bounds, keys, cpu, role, special)


def _along(name, *rest, size=7, key=_SCATTER, cpu=_BOUNDS, low=0, operation="", index=IDS[None]):
    def call(i):
        moved = [item.to(i.device) if isinstance(item, torch.Tensor) else item for item in rest]
        return getattr(X.clone(), name)(1, i, *moved)

    return case(call, index, operation or f"torch.{name}", "index", (low, size - 1), key, cpu)


def _target(call, good=LABELS, key="nll_loss", operation=_NLL, special=(-100,), high=4):
    return case(call, good, operation, "target", (0, high), key, _TARGET, "target", special)


INDEX_CASES = {
    "embedding": case(
        lambda i: F.embedding(i, ROWS),
        *(IDS, "torch.nn.functional.embedding", "input", (0, 3), "embedding", "out of range"),
    ),
    "embedding int32": case(
        lambda i: F.embedding(i, ROWS),
        *(IDS.int(), "torch.nn.functional.embedding", "input", (0, 3), "embedding"),
        "out of range",
    ),
    "embedding 0-d": case(
        lambda i: F.embedding(i, ROWS),
        *(IDS[1], "torch.nn.functional.embedding", "input", (0, 3), "embedding", "out of range"),
    ),
    "embedding max_norm": case(
        lambda i: F.embedding(i, ROWS.clone(), max_norm=1.0),
        *(IDS, "torch.nn.functional.embedding", "input", (0, 3), _RENORM, "out of range"),
    ),
    "embedding vmap": case(
        lambda i: torch.vmap(lambda row: F.embedding(row, ROWS))(i),
        *(PAIR, "torch.nn.functional.embedding", "input", (0, 3), "embedding", "out of range"),
    ),
    "embedding_bag": case(
        lambda i: F.embedding_bag(i, ROWS),
        *(PAIR, "torch.nn.functional.embedding_bag", "input", (0, 3), _BAG, "ndex|idx"),
    ),
    "EmbeddingBag max": case(
        lambda i: nn.EmbeddingBag(4, 2, mode="max")(i),
        *(PAIR, "torch.nn.functional.embedding_bag", "input", (0, 3), _BAG, "ndex|idx"),
    ),
    "embedding_bag offsets": case(
        lambda o: F.embedding_bag(torch.tensor([0, 1, 2]), ROWS, o, mode="sum"),
        *(IDS, "torch.nn.functional.embedding_bag", "offsets", (0, 3), "embedding_bag_offsets"),
        *("", "offset"),
    ),
    "x[i]": case(lambda i: X[i], IDS, "x[index]", "index", (-3, 2), _INDEX, _BOUNDS),
    "x[:, i]": case(lambda i: X[:, i], IDS, "x[index]", "index", (-7, 6), _INDEX, _BOUNDS),
    "x[mask, i]": case(
        lambda i: torch.zeros(2, 2, 5)[torch.tensor([[True, True], [False, False]]), i],
        *(IDS, "x[index]", "index", (-5, 4), _INDEX, _BOUNDS),
    ),
    "x[i] vmap": case(
        lambda i: torch.vmap(lambda x, j: x[j])(X[:2], i),
        *(IDS[:, None], "x[index]", "index", (-7, 6), _INDEX, _BOUNDS),
    ),
    "x[i] = v": case(
        lambda i: X.clone().__setitem__(i, 1.0),
        *(IDS, "x[index] = value", "index", (-3, 2), _INDEX, _BOUNDS),
    ),
    "index_put accumulate": case(
        lambda i: X.index_put((i,), torch.tensor(1.0), accumulate=True),
        *(IDS, "x[index] = value", "index", (-3, 2), _INDEX, _BOUNDS),
    ),
    "index_select": _along(
        "index_select", key="embedding", cpu="out of (range|DATA bounds)", index=IDS
    ),
    "index_select 1-d": case(
        lambda i: X[0].index_select(0, i),
        *(IDS, "torch.index_select", "index", (0, 6), "embedding", "out of range"),
    ),
    "index_select sparse": case(
        lambda i: X.to_sparse().index_select(0, i),
        *(IDS, "torch.index_select", "index", (-3, 2), "index_select_sparse", "out of range"),
    ),
    "index_add": _along(
        *("index_add", X[:, :2]),
        key="index_add",
        operation="torch.Tensor.index_add_",
        index=IDS,
    ),
    "index_add_": _along(
        *("index_add_", X[:, :2]),
        key="index_add",
        operation="torch.Tensor.index_add_",
        index=IDS,
    ),
    "index_reduce": _along(
        *("index_reduce", X[:, :2], "amax"),
        key="index_add",
        operation="torch.Tensor.index_reduce_",
        index=IDS,
        cpu="out of range",
    ),
    "index_copy": _along(
        *("index_copy", X[:, :2]),
        key="index_copy",
        operation="torch.Tensor.index_copy_",
        index=IDS,
    ),
    "index_fill": _along(
        *("index_fill", 1.0),
        key="index_fill",
        operation="torch.Tensor.index_fill_",
        index=IDS,
        low=-7,
    ),
    "index_fill_ tensor": _along(
        *("index_fill_", torch.tensor(1.0)),
        key="index_fill",
        operation="torch.Tensor.index_fill_",
        index=IDS,
        low=-7,
    ),
    "gather": _along("gather"),
    "gather vmap": case(
        lambda i: torch.vmap(lambda x, j: x.gather(0, j))(X[:2], i),
        *(IDS[:, None], "torch.gather", "index", (0, 6), _SCATTER, _BOUNDS),
    ),
    "gather out": case(
        lambda i: torch.gather(X, 1, i, out=torch.empty(1, 2)),
        *(IDS[None], "torch.gather", "index", (0, 6), _SCATTER, _BOUNDS),
    ),
    "scatter value": _along("scatter", 1.0),
    "scatter src": _along("scatter", X),
    "scatter_ value": _along("scatter_", 1.0, operation="torch.scatter"),
    "scatter reduce": case(
        lambda i: X.clone().scatter_(1, i, 1.0, reduce="add"),
        *(IDS[None], "torch.scatter", "index", (0, 6), _SCATTER, _BOUNDS),
    ),
    "scatter out": case(
        lambda i: torch.scatter(X, 1, i, 1.0, out=torch.empty(3, 7)),
        *(IDS[None], "torch.scatter", "index", (0, 6), _SCATTER, _BOUNDS),
    ),
    "scatter_add": _along("scatter_add", X),
    "scatter_add_": _along("scatter_add_", X, operation="torch.scatter_add"),
    "scatter_reduce": _along("scatter_reduce", X, "sum"),
    "take": case(lambda i: X.take(i), IDS, "torch.take", "index", (-21, 20), "take_put", _TAKEN),
    "put_": case(
        lambda i: X.clone().put_(i, X[0, :2]),
        *(IDS, "torch.Tensor.put_", "index", (-21, 20), "take_put", _TAKEN),
    ),
    "put": case(
        lambda i: X.put(i, X[0, :2]),
        *(IDS, "torch.Tensor.put_", "index", (-21, 20), "take_put", _TAKEN),
    ),
    "take_along_dim": case(
        lambda i: torch.take_along_dim(X, i, dim=1),
        *(IDS[None], "torch.take_along_dim", "indices", (-7, 6)),
    ),
    "take_along_dim method": case(
        lambda i: X.take_along_dim(indices=i, dim=1),
        *(IDS[None], "torch.take_along_dim", "indices", (-7, 6)),
    ),
    "take_along_dim flat": case(
        lambda i: torch.take_along_dim(X, i),
        *(IDS, "torch.gather", "index", (0, 20), _SCATTER, _BOUNDS),
    ),
    "one_hot": case(
        lambda i: F.one_hot(i, 3),
        *(IDS, "torch.nn.functional.one_hot", "tensor", (0, 2), _SCATTER, "Class values must be"),
    ),
    "one_hot open": case(
        lambda i: F.one_hot(i),
        *(IDS, "torch.nn.functional.one_hot", "tensor", (0, None), _SCATTER, "non-negative"),
    ),
    "cross_entropy": _target(lambda t: F.cross_entropy(SCORES, t)),
    "cross_entropy uint8": case(
        lambda t: F.cross_entropy(SCORES.repeat(1, 40), t),
        *(LABELS.to(torch.uint8), _NLL, "target", (None, 199), "nll_loss_unsigned", _TARGET),
        *("target", (-100,)),
    ),
    "cross_entropy weight": _target(lambda t: F.cross_entropy(SCORES, t, weight=torch.ones(5))),
    "cross_entropy smoothing": _target(lambda t: F.cross_entropy(SCORES, t, label_smoothing=0.1)),
    "cross_entropy ignore": _target(
        lambda t: F.cross_entropy(SCORES, t, ignore_index=-1), special=(-1,)
    ),
    "cross_entropy ignore in range": _target(
        lambda t: F.cross_entropy(SCORES, t, ignore_index=0), special=()
    ),
    "cross_entropy none": _target(
        lambda t: F.cross_entropy(SCORES, t, reduction="none"), key="nll_loss_no_reduce"
    ),
    "cross_entropy one": _target(lambda t: F.cross_entropy(SCORES[0], t), LABELS[2]),
    "cross_entropy sequence": _target(
        lambda t: F.cross_entropy(SCORES.reshape(2, 5, 2), t), PAIR, "nll_loss2d"
    ),
    "cross_entropy image none": _target(
        lambda t: F.cross_entropy(torch.zeros(1, 5, 2, 2), t, reduction="none"),
        *(PAIR[None], "nll_loss2d_no_reduce"),
    ),
    "cross_entropy vmap": case(
        lambda t: torch.vmap(F.cross_entropy)(SCORES.reshape(2, 2, 5), t),
        *(PAIR, _NLL, "index", (0, 4), _SCATTER, _BOUNDS, "index"),
    ),
    "nll_loss": _target(lambda t: F.nll_loss(SCORES, t), operation="torch.nn.functional.nll_loss"),
    "multi_margin_loss": case(
        lambda t: F.multi_margin_loss(SCORES, t),
        *(LABELS, "torch.nn.functional.multi_margin_loss", "target", (0, 4), "multi_margin_loss"),
        *("target out of range", "target"),
    ),
    "ctc_loss": case(
        lambda t: F.ctc_loss(LOG_P, t, torch.tensor([5, 5]), torch.tensor([2, 2])),
        *(PAIR + 1, "torch.nn.functional.ctc_loss", "targets", (0, 3), "ctc_loss", "", "target"),
    ),
    "ctc_loss joined": case(
        lambda t: F.ctc_loss(LOG_P, t, (5, 5), (2, 1)),
        *(torch.tensor([1, 2, 3]), "torch.nn.functional.ctc_loss", "targets", (0, 3), "ctc_loss"),
        *("", "target"),
    ),
    "ctc_loss input_lengths": case(
        lambda n: F.ctc_loss(LOG_P, PAIR + 1, n, torch.tensor([2, 2])),
        *(torch.tensor([5, 5]), "torch.nn.functional.ctc_loss", "input_lengths", (0, 5), ()),
        *("Expected input_lengths", "count"),
    ),
    "max_unpool1d": case(
        lambda i: F.max_unpool1d(torch.ones(1, 1, 2), i, 2),
        *(IDS[None, None], "torch.nn.functional.max_unpool1d", "indices", (0, 3), "max_unpool"),
        "invalid max index",
    ),
    "max_unpool2d": case(
        lambda i: F.max_unpool2d(IMAGE, i, 2),
        *(POOLED, "torch.nn.functional.max_unpool2d", "indices", (0, 15), "max_unpool"),
        "invalid max index",
    ),
    "max_unpool3d": case(
        lambda i: F.max_unpool3d(IMAGE[None], i, 2),
        *(POOLED[None], "torch.nn.functional.max_unpool3d", "indices", (0, 31), "max_unpool3d"),
        "invalid max index",
    ),
    "searchsorted": case(
        lambda s: torch.searchsorted(torch.tensor([3.0, 1.0]), torch.tensor([2.0]), sorter=s),
        *(IDS.flip(0), "torch.searchsorted", "sorter", (0, 1), (), "sorter index out of range"),
    ),
    "bincount": case(
        lambda i: torch.bincount(i),
        *(IDS, "torch.bincount", "input", (0, None), (), "non-negative"),
    ),
    "pack_padded_sequence": case(
        lambda n: nn.utils.rnn.pack_padded_sequence(X[..., None], n)[0],
        *(torch.full((7,), 3), "torch.nn.utils.rnn.pack_padded_sequence", "lengths", (1, 3)),
        *((), "ength", "count"),
    ),
    "segment_reduce lengths": case(
        lambda n: torch.segment_reduce(X[0], "sum", lengths=n),
        *(torch.tensor([3, 4]), "torch.segment_reduce", "lengths", (0, None), (), "lengths"),
        "count",
    ),
    "segment_reduce unsafe": case(
        lambda n: torch.segment_reduce(X[0], "sum", lengths=n, unsafe=True),
        *(torch.tensor([3, 4]), "torch.segment_reduce", "lengths", (0, None), "segment_reduce"),
        *("segment_length", "count"),
    ),
    "segment_reduce offsets": case(
        lambda o: torch.segment_reduce(X[0], "sum", offsets=o),
        *(torch.tensor([0, 3, 7]), "torch.segment_reduce", "offsets", (0, 7), ()),
        *("", "offset"),
    ),
    "repeat_interleave": case(
        lambda n: torch.repeat_interleave(X, n, dim=0),
        *(torch.tensor([1, 2, 0]), "torch.repeat_interleave", "repeats", (0, None)),
        ("repeat_interleave", "repeat_interleave_before_2_14"),
        *("repeats can not be negative", "count"),
    ),
    "sparse_coo_tensor": case(
        lambda i: torch.sparse_coo_tensor(i, torch.ones(2), (3,)),
        *(IDS[None], "torch.sparse_coo_tensor", "indices", (0, 2)),
    ),
    "sparse_csr_tensor": case(
        lambda i: torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2]), i, torch.ones(2), (2, 2), check_invariants=True
        ),
        *(IDS, "torch.sparse_csr_tensor", "col_indices", (0, 1), "sparse_compressed"),
        r"0 <= col_indices < ncols",
    ),
    "sparse_csc_tensor unchecked": case(
        lambda i: torch.sparse_csc_tensor(torch.tensor([0, 1, 2]), i, torch.ones(2), (9, 2)),
        *(IDS, "torch.sparse_csc_tensor", "row_indices", (0, 8)),
    ),
    "sparse_bsr_tensor": case(
        lambda i: torch.sparse_bsr_tensor(torch.tensor([0, 1]), i, torch.ones(1, 2, 3), (2, 9)),
        *(torch.tensor([0]), "torch.sparse_bsr_tensor", "col_indices", (0, 2)),
    ),
    "grouped_mm": case(
        lambda o: torch._grouped_mm(
            torch.ones(16, 16).bfloat16(), torch.ones(2, 16, 16).bfloat16(), offs=o
        ),
        *(torch.tensor([8, 16], dtype=torch.int32), "torch._grouped_mm", "offs", (0, 16)),
        ("grouped_mm_size", "grouped_mm_order"),
        *("", "offset"),
    ),
}

_P = torch.tensor([[0.25, 0.5], [1.0, 0.75]])
_BCE = "torch.nn.functional.binary_cross_entropy"

VALUE_CASES = {
    "bce input": case(
        lambda p: F.binary_cross_entropy(p, _P),
        *(_P, _BCE, "input", (0, 1), "bce_input", "input should be between 0 and 1"),
        "probability",
    ),
    "bce target": case(
        lambda p: nn.BCELoss(reduction="none")(_P, p),
        *(_P, _BCE, "target", (0, 1), "bce_target", "target should be between 0 and 1"),
        "probability",
    ),
    "bernoulli": case(
        lambda p: torch.bernoulli(p),
        *(_P, "torch.bernoulli", "input", (0, 1), "bernoulli", "p_in >= 0", "probability"),
    ),
    "bernoulli half": case(
        lambda p: torch.bernoulli(p),
        *(_P.half(), "torch.bernoulli", "input", (0, 1), "bernoulli", "p_in >= 0", "probability"),
    ),
    "bernoulli_": case(
        lambda p: torch.zeros(2, 2).bernoulli_(p),
        *(_P, "torch.Tensor.bernoulli_", "p", (0, 1), "bernoulli", "p_in >= 0", "probability"),
    ),
    "multinomial": case(
        lambda p: torch.multinomial(p, 1),
        *(_P, "torch.multinomial", "input", (0, None)),
        *(("multinomial_async", "multinomial_negative"), "inf`, `nan` or element", "probability"),
    ),
    "multinomial replacement": case(
        lambda p: torch.multinomial(p, 3, replacement=True),
        *(_P, "torch.multinomial", "input", (0, None), "multinomial_negative"),
        *("invalid multinomial", "probability"),
    ),
    "Categorical": case(
        lambda p: torch.distributions.Categorical(probs=p, validate_args=False).sample(),
        *(torch.tensor([[1.0, 1.0], [1.0, 1.0]]), "torch.distributions.Categorical.sample"),
        *("input", (None, None), ("multinomial_async", "multinomial_negative")),
        *("inf`, `nan` or element", "probability"),
    ),
    "poisson": case(
        lambda p: torch.poisson(p),
        *(_P, "torch.poisson", "input", (0, None), "poisson", "invalid Poisson rate"),
        "probability",
    ),
}

CASES = INDEX_CASES | VALUE_CASES
