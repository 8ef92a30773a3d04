"""The catalogue: rows are complete, found by what lines say, and rendered as the driver prints."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import get_args

import pytest

from cudassert_ipy.decode.catalog import Nature, catalog, normalize
from scripts.make_docs import PAGE, anchor, page


def test_rows_are_complete():
    """Every row says what must hold, what it means, why and what to do; keys are unique."""
    rows = catalog().rows

    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        assert row.operand
        assert row.requirement
        assert row.title
        assert row.meaning
        assert row.causes
        assert len(row.causes) == len(row.remedies)
        assert all(row.remedies)
        assert row.since
        assert row.nature in get_args(Nature)
        assert not row.path or row.path.endswith((".cu", ".cuh", ".h"))


@pytest.mark.parametrize("row", catalog().rows, ids=lambda row: row.key)
def test_ranges_are_complete(row):
    """What is a range has bounds that a program can read, and says what a negative index does."""
    if row.nature == "range":
        assert row.valid_range is not None
        assert row.negatives in ("forbidden", "count from the end", "depends")
    if row.valid_range is not None:
        assert row.valid_range.low in ("", "0", "-size")
        assert row.valid_range.high in ("", "1", "size - 1")
        assert bool(row.valid_range.size) == ("size" in row.valid_range.high)
        # Words and rule do not contradict each other.
        words = row.requirement.split(" ")[0].startswith("-")
        assert words == (row.valid_range.low == "-size")
        assert ("ignore_index" in row.requirement) == ("ignore_index" in row.special)


@pytest.mark.parametrize("row", catalog().rows, ids=lambda row: row.key)
def test_a_row_finds_itself(row):
    """A row is found by all its spellings and files, also where Windows prints no function."""
    function = row.functions[0] if row.functions else "operator()"

    for expression in row.expressions:
        for path in (row.path, *row.also_in):
            windows = "C:\\x\\" + path.replace("/", "\\") if path else "C:\\x\\cab3qv.py"
            linux = f"../{path}" if path else "unknown"
            assert catalog().find(expression, linux, function) is row
            assert catalog().find(expression, windows, None) is row
            assert catalog().find(f" {expression} ", path.rpartition("/")[2], None) is row


@pytest.mark.parametrize("row", catalog().rows, ids=lambda row: row.key)
def test_functions_are_found_in_signatures_and_without_a_file(row):
    """Where only the function was printed, short or as a signature, it names the row."""
    for function in row.functions:
        signature = f"void at::native::<unnamed>::{function}(T *, long) [with T = float]"
        if row.path:
            assert catalog().find(row.expression, "", function) is row or shared(row)
            assert catalog().find(row.expression, "", signature) is row or shared(row)


def shared(row):
    """Caffe2's copy of topk has the kernels of PyTorch's."""
    return row.key in ("topk", "radix_select", "caffe2_topk")


STRINGS = Path(__file__).parents[1] / "samples" / "assert-strings.tsv"


def strings():
    """Return (versions, file, expression) of all assertions in stock wheels."""
    lines = STRINGS.read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def number(version):
    return tuple(int(part) for part in version.split(".")[:2])


@pytest.mark.parametrize(("versions", "file", "expression"), strings())
def test_every_assertion_of_every_wheel_is_known(versions, file, expression):
    """The catalogue has all assertions of stock wheels, with the versions that have them."""
    row = catalog().find(expression, file, None)

    assert row is not None
    for version in versions.split(","):
        if version != "run-time":
            assert number(row.since) <= number(version)
            assert not row.until or number(version) <= number(row.until)


def test_a_row_gather_is_not_named_for_one_operation():
    """vectorized_gather_kernel serves four operations; all are listed."""
    operations = catalog().by_key("vectorized_gather").operations

    assert set(operations) == {
        "torch.nn.functional.embedding",
        "torch.index_select",
        "x[index]",
        "torch.gather",
    }


@pytest.mark.parametrize(
    ("printed", "plain"),
    [
        ("a < static_cast<IndexType>(b)", "a<b"),
        ("a < static_cast<std::vector<int> >( b )", "a<b"),
        ("static_cast<int>(static_cast<long>(a)) < b", "a<b"),
        ("a < static_cast<int64_t>(x.size(0))", "a<x.size(0)"),
        ("(int64_t)a < (unsigned int)b", "a<b"),
        ("a[(int)(b)] >= 0", "a[(b)]>=0"),
        ("f(T) > g(int)", "f(T)>g(int)"),
        ("sizeof(int) * a < b", "sizeof(int)*a<b"),
    ],
)
def test_casts_are_left_out_and_nothing_else(printed, plain):
    """Casts of C and C++ go, nested ones too; arguments of functions stay."""
    assert normalize(printed) == plain


@pytest.mark.parametrize(
    "piece", ["static_cast<", "static_cast<a>(", "(int)", "<", "(", " ", "\\", "\\n", '"', "a_"]
)
def test_a_hostile_expression_is_normalized_in_time(piece):
    """Thousands of half-open casts cost milliseconds."""
    start = time.perf_counter()
    normalize(piece * (4000 // len(piece)))

    assert time.perf_counter() - start < 0.5


def test_casts_and_white_space_do_not_matter():
    """torch 2.12 printed a cast that other versions do not."""
    assert normalize("dstIndex < static_cast<IndexType>(dstAddDimSize)") == normalize(
        "dstIndex<dstAddDimSize"
    )
    row = catalog().find(
        "srcIndex < static_cast<IndexType>( srcSelectDimSize )", "Indexing.cu", None
    )
    assert row is catalog().by_key("embedding")


@pytest.mark.parametrize("quote", ['\\"', '\\\\"', '""'])
def test_escaped_quotes_do_not_matter(quote):
    """A line inside JSON, a repr or CSV has its quotes escaped, once or more."""
    row = catalog().by_key("grouped_mm_order")
    printed = row.expression.replace("\\n", "\\\\n").replace('"', quote)

    assert catalog().find(printed, "GroupMMCommon.cuh", None) is row


@pytest.mark.parametrize(
    ("expression", "file", "key"),
    [
        (
            'index >= -sizes_[i] && index < sizes_[i] && "index out of bounds"',
            "torch-xpu-ops/src/aten/sycl/Indexing.h",
            "index_before_2_1",
        ),
        (
            "t >= 0 && t < n_classes_",
            "/build/third_party/torch-xpu-ops/src/ATen/native/xpu/sycl/LossNLL2d.cpp",
            "nll_loss",
        ),
        ("index >= 0", "/build/src/ATen/native/xpu/sycl/FractionalMaxPool2dKernels.cpp", None),
    ],
)
def test_kernels_for_intel_gpus_have_the_same_checks(expression, file, key):
    """torch-xpu-ops was ported from the CUDA kernels; members have an underscore at their end."""
    row = catalog().find(expression, file, "operator()")

    assert (row.key if row else None) == key


def test_the_same_expression_in_another_project_is_not_ours():
    """`t < n_classes` in somebody's kernel says nothing about PyTorch's loss."""
    find = catalog().find

    assert find("t < n_classes", "/home/ann/my_loss.cu", "nll") is None
    assert find("t < n_classes", "/home/ann/segmentation/csrc/Loss.cu", "nll") is None
    assert find("t < n_classes", "/home/ann/segmentation/csrc/cuda/Loss.cu", "nll") is None


@pytest.mark.parametrize(
    "file",
    [
        "Loss.cu",
        "cuda/Loss.cu",
        "tive/cuda/Loss.cu",
        ".../Loss.cu",
        "/opt/pytorch/pytorch/aten/src/ATen/native/cuda/Loss.cu",
        "C:/cb/pytorch_1/work\\aten/src/ATen/native\\cuda/Loss.cu",
        "/pytorch/aten/src/ATen/native/hip/Loss.hip",
        "/opt/conda/conda-bld/pytorch_1502009910772/work/torch/lib/THCUNN/ClassNLLCriterion.cu",
    ],
)
def test_the_file_is_found_with_any_prefix(file):
    """Prefixes of builders, shortened paths and ROCm's copies are the same source file."""
    assert catalog().find("t >= 0 && t < n_classes", file, None) is catalog().by_key("nll_loss")


def test_without_file_an_expression_tells_what_its_rows_have_in_common():
    """Two kernels of the same losses share an expression; a printed function decides."""
    find = catalog().find

    assert find("t >= 0 && t < n_classes", "", None) is catalog().by_key("nll_loss")
    assert find("t >= 0 && t < n_classes", "", "nll_loss2d_forward_kernel") is catalog().by_key(
        "nll_loss2d"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "index >= 0",
        "false",
        "end >= begin",
        "idx < size && idx >= -size",
        "cond && message",
        "input[0] != 0",
        "repeat >= 0",
        "sum > accZero",
        "idx < N",
        "final_output",
    ],
)
def test_without_file_a_generic_expression_is_unknown(expression):
    """`index >= 0` alone could be anybody's, and is in several kernels of PyTorch."""
    assert catalog().find(expression, "", None) is None
    assert catalog().find(expression, "/home/ann/mine.cu", None) is None


@pytest.mark.parametrize(
    ("expression", "file", "key"),
    [
        ("index >= 0", "Loss.cu", "nll_loss_overflow"),
        ("index >= 0", "FractionalMaxPool3d.cu", "fractional_max_pool_index"),
        ("false", "/pytorch/c10/util/TypeCast.h", "dynamic_cast"),
        ("false", "/pytorch/aten/src/ATen/native/cuda/Reduce.cuh", "reduce"),
        ("false", "/pytorch/aten/src/ATen/native/cuda/SortingRadixSelect.cuh", "radix_select"),
        ("end >= begin", "EmbeddingBag.cu", "embedding_bag_offsets"),
        ("idx < size && idx >= -size", "THCTensorIndex.cu", "put_thc"),
    ],
)
def test_the_file_tells_the_same_expression_apart(expression, file, key):
    """Several kernels have the same check; only the file says which one it was."""
    assert catalog().find(expression, file, None) is catalog().by_key(key)


def test_an_unmistakable_message_needs_no_file():
    """The words in the expression name PyTorch's kernel."""
    expression = 'idx < numel && idx >= -numel && "cuda_take_put_kernel() index out of bounds"'

    assert catalog().find(expression, "", None) is catalog().by_key("take_put")
    assert catalog().find(expression, "", "operator()") is catalog().by_key("take_put")


def test_own_assertions_are_told_from_those_of_sampling():
    """torch._assert_async prints what its caller wrote; only sampling's words are known."""

    def key(expression):
        function = "_assert_async_cuda_kernel"
        row = catalog().find(expression, "../aten/src/ATen/native/cuda/TensorCompare.cu", function)
        return row.key if row else None

    assert key("probability tensor contains either `inf`, `nan` or element < 0") == (
        "multinomial_async"
    )
    assert key("invalid multinomial distribution (sum of probabilities <= 0)") == (
        "multinomial_async_sum"
    )
    assert key("loss must be finite") == "assert_async_message"
    assert catalog().by_key("assert_async_message").operations == ("torch._assert_async",)
    assert key("") == "assert_async_empty"
    assert key("input[0] != 0") == "assert_async"
    assert {"torch.multinomial", "torch._assert_async"} <= set(
        catalog().by_key("assert_async_empty").operations
    )
    assert key("probability tensor contains ei") is None  # cut off, not somebody's own
    assert key("prob") is None


@pytest.mark.parametrize(
    ("expression", "requirement", "numbers"),
    [
        ("0 <= tmp4 < 32000", "0 <= index < 32000", {"lower": 0, "upper": 32000}),
        ("0 <= tmp4 < (-1) + ks0", "0 <= index < (-1) + ks0", {"lower": 0, "upper": "(-1) + ks0"}),
        (
            "0 <= tl.broadcast_to(tmp43, [XBLOCK]) < 8192",
            "0 <= index < 8192",
            {"lower": 0, "upper": 8192},
        ),
        ("r4 + (128*x1) < 25504", "index < 25504", {"upper": 25504}),
        ("-16 <= tmp7", "-16 <= index", {"lower": -16}),
    ],
)
def test_bounds_of_compiled_kernels_are_read(expression, requirement, numbers):
    """What torch.compile prints holds the bounds: both, one, or an expression of sizes."""
    text = f"index out of bounds: {expression}"
    row = catalog().find(text, "unknown", "unknown")

    assert row is catalog().by_key("compiled_index")
    assert row.requirement_of(text) == requirement
    assert row.numbers_of(text) == numbers


@pytest.mark.parametrize(
    ("expression", "file"),
    [
        ("index out of bounds: 0 <= tmp4 < 32000", "/home/ann/mine.cu"),
        ("index out of bounds", "unknown"),
        ("index out of bounds: tmp4", "unknown"),
        ("index out of bounds: a == b", "/tmp/torchinductor_ann/xy/cxy.py"),
    ],
)
def test_what_only_resembles_a_compiled_kernel_is_unknown(expression, file):
    """The words alone, without a comparison or from CUDA C++, are not torch.compile's."""
    assert catalog().find(expression, file, None) is None


def test_rows_without_bounds_in_their_text_have_one_requirement():
    """Only generated texts have bounds of their own."""
    row = catalog().by_key("nll_loss")

    assert row.requirement_of(row.expression) == row.requirement
    assert row.numbers_of(row.expression) == {}


def test_without_file_a_kernel_of_another_name_is_not_ours():
    """The expression alone does not outweigh a kernel that PyTorch does not have."""
    assert catalog().find("srcIndex < srcSelectDimSize", "", "my_kernel") is None


@pytest.mark.parametrize("row", catalog().rows, ids=lambda row: row.key)
def test_operations_are_names_without_remarks(row):
    """A finding is compared with the operations, so they hold the names that findings use."""
    for name in row.operations:
        assert re.fullmatch(r"torch(\.\w+)+|x\[index\]( = value)?", name)


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


def test_the_page_of_all_assertions_is_current():
    """docs/assertions.md is what the catalogue gives; `make docs` makes it."""
    assert PAGE.read_text("utf-8") == page()


def test_the_page_shows_every_text_and_links_to_existing_headings():
    """Somebody who searches for a message finds it, and the way to what it means."""
    text = page()
    headings = {anchor(line[3:]) for line in text.splitlines() if line.startswith("## ")}

    for row in catalog().rows:
        assert f"## {row.title}" in text
        assert all(expression in text for expression in row.expressions)
        assert all(remedy in text for remedy in row.remedies)
    links = re.findall(r"\]\(#([^)]*)\)", text)
    assert len(links) >= len(catalog().rows)
    assert set(links) <= headings
    assert len(headings) == 2 + len({row.family for row in catalog().rows})
