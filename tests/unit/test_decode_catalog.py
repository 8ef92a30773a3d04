"""The catalogue: rows are complete, found by what lines say, and rendered as the driver prints."""

from __future__ import annotations

import re

import pytest

from cudassert_ipy.checks.operators import table
from cudassert_ipy.decode.catalog import catalog, normalize


def test_rows_are_complete():
    """Every row names operations, operand, requirement and causes; keys are unique."""
    rows = catalog().rows

    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        assert row.expression
        assert row.path.endswith((".cu", ".cuh", ".h"))
        assert row.operations
        assert row.operand
        assert row.requirement
        assert row.causes
        assert row.since


@pytest.mark.parametrize("row", catalog().rows, ids=lambda row: row.key)
def test_a_row_finds_itself(row):
    """A row is found by its own expression, file and function, also where Windows prints none."""
    function = row.functions[0] if row.functions else "operator()"

    assert catalog().find(row.expression, f"../{row.path}", function) is row
    assert catalog().find(row.expression, "C:\\x\\" + row.path.replace("/", "\\"), None) is row


def test_a_row_gather_is_not_named_for_one_operation():
    """vectorized_gather_kernel serves four operations; all are listed."""
    operations = catalog().by_key("vectorized_gather").operations

    assert set(operations) == {
        "torch.nn.functional.embedding",
        "torch.index_select",
        "x[index]",
        "torch.gather",
    }


def test_casts_and_white_space_do_not_matter():
    """torch 2.12 printed a cast that other versions do not."""
    assert normalize("dstIndex < static_cast<IndexType>(dstAddDimSize)") == normalize(
        "dstIndex<dstAddDimSize"
    )
    row = catalog().find(
        "srcIndex < static_cast<IndexType>( srcSelectDimSize )", "Indexing.cu", None
    )
    assert row is catalog().by_key("embedding")


def test_the_same_expression_in_another_project_is_not_ours():
    """`t < n_classes` in somebody's kernel says nothing about PyTorch's loss."""
    assert catalog().find("t < n_classes", "/home/ann/my_loss.cu", "nll") is None


def test_without_file_an_expression_tells_what_its_rows_have_in_common():
    """Two kernels of the same losses share an expression; a printed function decides."""
    find = catalog().find

    assert find("t >= 0 && t < n_classes", "", None) is catalog().by_key("nll_loss")
    assert find("t >= 0 && t < n_classes", "", "nll_loss2d_forward_kernel") is catalog().by_key(
        "nll_loss2d"
    )


def test_without_file_a_generic_expression_is_unknown():
    """`index >= 0` alone could be anybody's, and is in PyTorch's pooling too."""
    find = catalog().find

    assert find("index >= 0", "", None) is None
    assert find("index >= 0", "FractionalMaxPool2d.cu", None) is None
    assert find("index >= 0", "Loss.cu", None) is catalog().by_key("nll_loss_overflow")


def test_without_file_a_kernel_of_another_name_is_not_ours():
    """The expression alone does not outweigh a kernel that PyTorch does not have."""
    assert catalog().find("srcIndex < srcSelectDimSize", "", "my_kernel") is None


@pytest.mark.parametrize("row", catalog().rows, ids=lambda row: row.key)
def test_operations_are_names_without_remarks(row):
    """A finding is compared with the operations, so they hold the names that findings use."""
    for name in row.operations:
        assert re.fullmatch(r"torch(\.\w+)+|x\[index\]( = value)?", name)


@pytest.mark.parametrize("reduction", [0, 1, 2], ids=["none", "mean", "sum"])
def test_every_operator_is_named_by_the_assertion_that_it_causes(reduction):
    """What a replay finds in an operator agrees with the row of the line that CUDA prints."""
    operators = table().values()

    assert operators
    for operator in operators:
        row = catalog().by_key(operator.assertion_key({"reduction": reduction}))
        assert operator.name in row.operations
        assert not operator.also or operator.also in row.operations


def test_a_short_function_name_is_not_found_inside_a_longer_one():
    """`..._kernel` does not match `..._kernel1`."""
    row = catalog().find(
        "t >= 0 && t < n_classes", "", "void cunn_ClassNLLCriterion_updateOutput_kernel9(int)"
    )

    assert row is None


@pytest.mark.parametrize(
    ("version", "prefix"),
    [
        (None, "/__w/pytorch/pytorch/aten/"),
        ("2.13.0+cpu", "/__w/pytorch/pytorch/aten/"),
        ("2.8.0", "/pytorch/aten/"),
        ("2.1.2", "../aten/"),
        ("1.7.1", "/pytorch/aten/"),
    ],
)
def test_rendered_path_has_the_prefix_of_the_version(version, prefix):
    """The prefix is that of the wheels on PyPI."""
    line = catalog().by_key("index").render((0, 0, 0), (1, 0, 0), torch_version=version)

    assert line.startswith(prefix)


def test_rendered_line_is_what_the_driver_prints():
    """The simulator's line has the format of the CUDA programming guide."""
    line = catalog().by_key("nll_loss").render((4, 0, 0), (31, 0, 0), torch_version="2.9.0")

    assert line == (
        "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: "
        "block: [4,0,0], thread: [31,0,0] Assertion `t >= 0 && t < n_classes` failed."
    )
