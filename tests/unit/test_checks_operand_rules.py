"""What a range cannot say: order, sums, counts, ends; and values that only look wrong."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import cudassert_ipy
from cudassert_ipy.errors import OperandError

WEIGHT = torch.zeros(10, 2)
IDS = torch.tensor([1, 2, 3, 4, 5])
LOG_P = torch.zeros(5, 2, 4).log_softmax(2)
SCORES = torch.linspace(-1, 1, 8).reshape(2, 4)
SQUARE = torch.ones(16, 16).bfloat16()


def lengths(*values):
    return torch.tensor(values)


def csr(crow, columns=(0, 1)):
    values = torch.ones(len(columns))
    return torch.sparse_csr_tensor(torch.tensor(crow), torch.tensor(columns), values, (2, 2))


BROKEN = {
    "bags out of order": (
        lambda: F.embedding_bag(IDS, WEIGHT, lengths(0, 4, 2), mode="sum"),
        ("torch.nn.functional.embedding_bag", "offsets", ((2,),), (2,)),
    ),
    "groups out of order": (
        lambda: torch._grouped_mm(SQUARE, SQUARE.expand(2, 16, 16), offs=lengths(16, 8).int()),
        ("torch._grouped_mm", "offs", ((1,),), (8,)),
    ),
    "row without any probability": (
        lambda: torch.multinomial(torch.tensor([[0.5, 0.5], [0.0, 0.0]]), 1),
        ("torch.multinomial", "input", ((1, 0), (1, 1)), (0.0, 0.0)),
    ),
    "row without any probability, replacement": (
        lambda: torch.multinomial(torch.zeros(3), 4, replacement=True),
        ("torch.multinomial", "input", ((0,), (1,), (2,)), (0.0, 0.0, 0.0)),
    ),
    "infinite probability": (
        lambda: torch.multinomial(torch.tensor([0.5, float("inf")]), 1),
        ("torch.multinomial", "input", ((1,),), (float("inf"),)),
    ),
    "more True than values": (
        lambda: torch.zeros(4).masked_scatter_(torch.ones(4, dtype=torch.bool), torch.ones(2)),
        ("torch.Tensor.masked_scatter_", "mask", ((2,), (3,)), (1, 1)),
    ),
    "more True than values, expanded": (
        lambda: torch.zeros(2, 2).masked_scatter(torch.tensor([True, False]), torch.ones(1)),
        ("torch.Tensor.masked_scatter_", "mask", ((1, 0),), (1,)),
    ),
    "output_size": (
        lambda: torch.repeat_interleave(lengths(1, 2), output_size=9),
        ("torch.repeat_interleave", "repeats", ((0,), (1,)), (1, 2)),
    ),
    "segments too short": (
        lambda: torch.segment_reduce(torch.ones(5), "sum", lengths=lengths(1, 2)),
        ("torch.segment_reduce", "lengths", ((0,), (1,)), (1, 2)),
    ),
    "segments too long": (
        lambda: torch.segment_reduce(torch.ones(5), "sum", lengths=lengths(4, 1, 9), unsafe=True),
        ("torch.segment_reduce", "lengths", ((2,),), (9,)),
    ),
    "segments out of order": (
        lambda: torch.segment_reduce(torch.ones(5), "sum", offsets=lengths(0, 3, 2, 5)),
        ("torch.segment_reduce", "offsets", ((2,),), (2,)),
    ),
    "sparse, sizes differ": (
        lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1], [4, 5]]), torch.ones(2), (2, 5)),
        ("torch.sparse_coo_tensor", "indices", ((1, 1),), (5,)),
    ),
    "rows do not start with 0": (
        lambda: csr((1, 1, 2)),
        ("torch.sparse_csr_tensor", "crow_indices", ((0,),), (1,)),
    ),
    "rows do not end with nnz": (
        lambda: csr((0, 1, 1)),
        ("torch.sparse_csr_tensor", "crow_indices", ((2,),), (1,)),
    ),
    "rows decrease": (
        lambda: csr((0, 2, 1, 3), (0, 1, 0)),
        ("torch.sparse_csr_tensor", "crow_indices", ((2,),), (1,)),
    ),
    "asserted": (
        lambda: torch._assert_async(torch.tensor(False), "must hold"),
        ("torch._assert_async", "input", ((),), (0,)),
    ),
    "asserted, without a message": (
        lambda: torch._assert_async(torch.zeros(1)),
        ("torch._assert_async", "input", ((0,),), (0.0,)),
    ),
    "label before the end of the list": (
        lambda: F.multilabel_margin_loss(SCORES, torch.tensor([[0, 4, -1, 0], [1, -1, 9, 9]])),
        ("torch.nn.functional.multilabel_margin_loss", "target", ((0, 1),), (4,)),
    ),
    "ctc label, not the padding": (
        lambda: F.ctc_loss(
            LOG_P, torch.tensor([[1, 4, -1], [9, -1, -1]]), lengths(5, 5), lengths(2, 0)
        ),
        ("torch.nn.functional.ctc_loss", "targets", ((0, 1),), (4,)),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found_at_its_values(name):
    """The finding names the operand's own values that break the rule, and the rule."""
    call, (operation, operand, positions, values) = BROKEN[name]
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        call()
    finding = caught.value.finding
    assert (finding.operation, finding.operand) == (operation, operand)
    assert (finding.bad_positions, finding.bad_values) == (positions, values)
    assert finding.bad_count == len(positions)
    assert finding.requirement
    if finding.valid_minimum is None and finding.valid_maximum is None:
        assert finding.requirement in str(caught.value)


HEALTHY = {
    "equal offsets are empty bags": lambda: F.embedding_bag(IDS, WEIGHT, lengths(0, 0, 5)),
    "offsets with their end": lambda: F.embedding_bag(
        IDS, WEIGHT, lengths(0, 3, 5), include_last_offset=True
    ),
    "no bag at all": lambda: F.embedding_bag(IDS[:0], WEIGHT, IDS[:0]),
    "zero among probabilities": lambda: torch.multinomial(torch.tensor([0.0, 1.0]), 1),
    "large weights": lambda: torch.multinomial(torch.tensor([3e38, 3e38]), 1),
    "as many True as values": lambda: torch.zeros(2).masked_scatter_(
        torch.tensor([True, True]), torch.ones(2)
    ),
    "no repeats": lambda: torch.repeat_interleave(lengths(0, 0)),
    "output_size": lambda: torch.repeat_interleave(torch.ones(2), lengths(1, 2), output_size=3),
    "one count for all": lambda: torch.repeat_interleave(torch.ones(3), lengths(2), output_size=6),
    "behind the terminator": lambda: F.multilabel_margin_loss(
        SCORES, torch.tensor([[0, -1, -1, 3], [-1, 2, 2, -1]])
    ),
    "no labels": lambda: F.multilabel_margin_loss(SCORES, torch.full((2, 4), -1)),
    "padding of ctc": lambda: F.ctc_loss(
        LOG_P, torch.tensor([[1, 2, -1], [3, -1, 99]]), lengths(5, 5), lengths(2, 1)
    ),
    "padding of ctc, lists": lambda: F.ctc_loss(
        LOG_P, torch.tensor([[1, 2, -1], [3, -1, 99]]), (5, 5), (2, 1)
    ),
    "ignored labels": lambda: F.cross_entropy(SCORES, torch.tensor([-100, 3])),
    "probabilities as targets": lambda: F.cross_entropy(SCORES, torch.full((2, 4), 7.5)),
    "asserted NaN": lambda: torch._assert_async(torch.tensor(float("nan"))),
    "infinite rate": lambda: torch.poisson(torch.tensor([1.0])),
    "number as probability": lambda: torch.zeros(3).bernoulli_(0.5),
    "bernoulli with p": lambda: torch.bernoulli(torch.full((3,), 7.0), 0.5),
    "logits with logits": lambda: F.binary_cross_entropy_with_logits(SCORES * 100, SCORES * 0 + 3),
    "NaN gathered": lambda: torch.full((3,), float("nan")).gather(0, lengths(0, 1)),
    "integer division by 1": lambda: lengths(3, 4) // lengths(1, 2),
    "empty index": lambda: torch.zeros(0, 3).index_select(0, lengths().long()),
    "empty rows": lambda: torch.zeros(3, 0).index_add(0, lengths(9), torch.zeros(1, 0)),
    "sparse without values": lambda: torch.sparse_coo_tensor(
        torch.zeros(2, 0).long(), torch.ones(0), (3, 0)
    ),
    "batch of csr": lambda: torch.sparse_csr_tensor(
        torch.tensor([[0, 1, 2]] * 3), torch.tensor([[0, 1]] * 3), torch.ones(3, 2), (3, 2, 2)
    ),
    "csc": lambda: torch.sparse_csc_tensor(
        lengths(0, 1, 2, 2), lengths(4, 0), torch.ones(2), (5, 3)
    ),
    "bsc": lambda: torch.sparse_bsc_tensor(lengths(0, 1), lengths(2), torch.ones(1, 3, 2), (9, 2)),
    "grouped along K": lambda: torch._grouped_mm(SQUARE, SQUARE, offs=lengths(8, 16).int()),
    "pool": lambda: F.fractional_max_pool2d(
        torch.rand(1, 1, 4, 4), 2, output_size=2, _random_samples=torch.full((1, 1, 2), 5.0)
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", HEALTHY)
def test_what_only_looks_wrong_is_not_accused(name):
    """Padding, terminators, empty parts and values that no kernel reads are left alone."""
    with cudassert_ipy.guard() as guard:
        HEALTHY[name]()
    assert not any(row.bad_count for row in guard.rows)


def test_integer_division_by_zero_is_no_fault_of_a_device():
    """Only the CPU refuses it; the guard says nothing and lets CPU torch speak."""
    with cudassert_ipy.guard() as guard, pytest.raises(RuntimeError, match="ZeroDivision") as error:
        torch.tensor([1]) // torch.tensor([0])
    assert not isinstance(error.value, OperandError)
    assert guard.rows == ()


def test_labels_behind_the_terminator_are_cpu_torchs_own_affair():
    """No kernel of a device reads them; what CPU torch says to them is not our finding."""
    target = torch.tensor([[0, -1, 9, 9], [-1, 5, 5, 5]])
    with cudassert_ipy.guard(), pytest.raises(RuntimeError, match="out of range") as error:
        F.multilabel_margin_loss(SCORES, target)
    assert not isinstance(error.value, OperandError)


def test_two_rules_for_one_operand_are_one_row():
    """Offsets have a range and an order; the table lists them once, and counts each bad value."""
    guard = cudassert_ipy.guard()
    with guard:
        F.embedding_bag(IDS, WEIGHT, lengths(0, 3))
    assert [(row.name, row.bad_count) for row in guard.rows] == [("IDS", 0), ("offsets", 0)]
    guard = cudassert_ipy.guard()
    with pytest.raises(OperandError), guard:
        F.embedding_bag(IDS, WEIGHT, lengths(0, 3, 2, 9))
    row = guard.rows[-1]
    assert (row.role, row.maximum, row.valid_maximum, row.bad_count) == ("offset", 9, 5, 2)


def test_the_length_of_a_sequence_is_checked_where_the_cpu_reads_on():
    """CPU torch packs rows that are not there; the finding has the length."""
    data = torch.zeros(3, 2, 1)
    torch.nn.utils.rnn.pack_padded_sequence(data, lengths(3, 1))
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        torch.nn.utils.rnn.pack_padded_sequence(data, lengths(5, 1))
    assert caught.value.finding.bad_values == (5,)
