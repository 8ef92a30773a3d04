"""Nothing is forgotten: every operation of torch with an index, and every row of the catalogue."""

import re

import pytest
import torch

from cudassert_ipy.checks.operators import function_table, table
from cudassert_ipy.decode.catalog import catalog
from tests.unit.operand_cases import CASES

INTEGERS = {
    *("index", "indices", "target", "targets", "offsets", "lengths", "repeats", "sorter", "offs"),
    *("input_lengths", "target_lengths", "batch_sizes", "crow_indices", "col_indices"),
    *("ccol_indices", "row_indices", "compressed_indices", "plain_indices", "LU_pivots", "pivots"),
    *("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table"),
    *("offset2bag", "sorted_indices", "unsorted_indices", "compressed_idx", "plain_idx"),
}

_DECOMPOSED = "reaches a mode as other operations, which the table has"
_OF_FORWARD = "backward: its operand is that of the forward, or an index that torch made"
_RESULT = "the argument is where a result is written"
_FLOAT_TARGET = "its target is a number like any other; no kernel asserts on it"
_OWN = "called by torch with indices of its own making"
_HOST = "an entry that only checks on the host, and raises"

NOT_NEEDED = {
    r".*_backward(_data)?": _OF_FORWARD,
    r"(sort|topk|kthvalue|mode|median|nanmedian|cummax|cummin)(_stable)?": _RESULT,
    r"(adaptive_max_pool|max_pool|fractional_max_pool)\dd(_with_indices)?": _RESULT,
    r"_cumm(ax|in)_helper": _RESULT,
    r"(mse|l1|smooth_l1|huber|soft_margin|poisson_nll|kl_div|hinge_embedding)(_loss)?": (
        _FLOAT_TARGET
    ),
    r"(margin_ranking|cosine_embedding)_loss|binary_cross_entropy_with_logits": _FLOAT_TARGET,
    r"cross_entropy_loss|nll_loss(2d|_nd)?|multilabel_margin_loss|ctc_loss": _DECOMPOSED,
    r"embedding_bag|take_along_dim": _DECOMPOSED,
    r"sparse_(coo|csr|csc|bsr|bsc)_tensor|_sparse_(csr|csc|bsr|bsc)_tensor_unsafe": _DECOMPOSED,
    r"_sparse_coo_tensor_unsafe": _DECOMPOSED,
    r"_validate_sparse_\w+_tensor_args|_validate_compressed_sparse_indices": _HOST,
    r"_use_(cudnn|miopen)_ctc_loss": _HOST,
    r"miopen_ctc_loss": "ROCm; the arguments of _cudnn_ctc_loss, after _ctc_loss was asked",
    r"(lstm|gru|rnn_tanh|rnn_relu|quantized_lstm|quantized_gru)": _OWN,
    r"_pack_sequence|_pad_packed_sequence": _OWN,
    r"_nested_\w+|_jagged_to_padded_dense_forward|_padded_dense_to_jagged_forward": _OWN,
    r"_convert_indices_from_csr_to_coo|_spdiags": _OWN,
    r"_unsafe_masked_index(_put_accumulate)?": "torch.compile's own, with the mask of its bounds",
    r"lu_unpack|(linalg_)?lu_solve|linalg_ldl_solve": "its pivots are those of a factorization",
    r"_(flash|efficient|scaled_dot_product|cudnn)_\w*attention\w*": "offsets of packed sequences; "
    "what its kernels do with bad ones is not known",
}


def operations():
    """Return torch's own operations with a tensor argument that is named like an index."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        names = {a.name for a in schema.arguments if "Tensor" in str(a.type) and not a.is_out}
        if namespace == "aten" and names & INTEGERS:
            found.add(name)
    return sorted(found)


@pytest.mark.parametrize("name", operations())
def test_every_operation_with_an_index_is_known(name):
    """An operation is in the table, or in the list with the reason why it need not be."""
    known = {row.aten.partition("::")[2].partition(".")[0] for row in table().values()}
    reasons = [reason for pattern, reason in NOT_NEEDED.items() if re.fullmatch(pattern, name)]
    assert (name in known) != bool(reasons), f"{name}: not known, or needlessly excused"


def test_torch_lists_its_operations():
    """The walk finds what everybody knows to be there."""
    assert {"embedding", "gather", "scatter_", "index_put_", "nll_loss_forward"} <= {*operations()}


KEYS = {key for case in CASES.values() for key in case.keys}
KEYS |= {"multinomial_async_sum", "multinomial_cumulative", "masked_scatter", "assert_async"}
KEYS |= {"repeat_interleave_size", "assert_async_empty", "assert_async_message"}
KEYS |= {"nll_loss_unsigned_no_reduce", "scaled_grouped_mm_end"}

NOT_CAUSED = {
    r"vectorized_\w+|tma_\w+|wrong_gpu_tma": "a faster kernel for the same operand",
    r"embedding_renorm_wrap|embedding_bag_backward|embedding_bag_offset2bag": (
        "another kernel of an operation whose operand was checked before"
    ),
    r"\w+_thc|multinomial_before_1_10": "a kernel of a torch that this package does not support",
    r"multinomial_(nan|inf|sum|sum_inf)": "another line of the same check",
    r"assert_async_complex": "the text of torch before 2.2 for complex numbers",
    r"nll_loss2?d?\w*_overflow": "a size beyond 2**31 elements, not a value",
    r"grouped_mm_alignment|scaled_grouped_mm_scale": "what is aligned depends on dtype and GPU",
    r"compiled_index": "compiled code; the guard runs it eagerly, as the operations of the table",
}


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in catalog().rows
        if row.nature in ("range", "probability", "count", "structure") and row.operations
    ],
    ids=lambda row: row.key,
)
def test_every_assertion_about_values_has_an_operand(row):
    """A row of the catalogue is caused by an operand of the table, or there is a reason."""
    reasons = [reason for pattern, reason in NOT_CAUSED.items() if re.fullmatch(pattern, row.key)]
    assert (row.key in KEYS) != bool(reasons)


@pytest.mark.parametrize("key", sorted(KEYS))
def test_an_operand_names_a_row_of_the_catalogue(key):
    """The simulator prints that row's line."""
    assert catalog().by_key(key).expression is not None


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].keys])
def test_the_operation_is_one_that_the_assertion_names(name):
    """What a guard or a replay finds agrees with the row of the line that CUDA prints."""
    case = CASES[name]
    assert case.operation in catalog().by_key(case.keys[0]).operations


def test_names_of_operations_are_what_a_user_can_write():
    """Each is a name of torch that exists here, or an index expression."""
    for row in [*table().values(), *function_table().values()]:
        for name in (row.name, *(caller.name for caller in row.also)):
            if name.startswith("x["):
                continue
            thing = torch
            for part in name.split(".")[1:]:
                thing = getattr(thing, part, None)
            assert thing is not None or name == "torch.nn.functional.scaled_grouped_mm", name
