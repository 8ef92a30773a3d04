"""What ``explain`` prints for people: a verdict, what it rests on, what to do; and as Markdown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cudassert_ipy import messages
from cudassert_ipy.decode.failure import decode_text
from cudassert_ipy.decode.versions import VersionScanner
from cudassert_ipy.model import Assertion, Failure
from cudassert_ipy.report.markdown import render_failure_markdown
from cudassert_ipy.report.text import render_failure

SAMPLES = Path(__file__).parents[1] / "samples"
ASSERT = "CUDA error: device-side assert triggered"
NLL = (
    "{}/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: "
    "block: [0,0,0], thread: [{},0,0] Assertion `t >= 0 && t < n_classes` failed."
)


def explained(text, width=88):
    return render_failure(decode_text(text), width=width)


def check(expression, **more):
    return Assertion(expression=expression, file="a.cu", line=1, function="f", **more)


def test_first_line_is_the_verdict():
    """What failed, in which operation, and that the process is lost: whole, on one line."""
    first = explained(f"{NLL.format('', 4)}\nRuntimeError: {ASSERT}").partition("\n")[0]

    assert first == (
        "\N{BALLOT X} Device-side assert in `cross_entropy` or `nll_loss`: the check of the target "
        "failed. That process's CUDA context is dead."
    )


def test_ranks_are_one_row():
    """The same assertion on several ranks: threads together, ranks in order."""
    lines = [NLL.format(f"[rank{rank}]: ", thread) for rank in (3, 0, 1) for thread in (4, 5)]
    shown = explained("\n".join(lines))

    assert "6 GPU threads, ranks 0, 1, 3" in re.sub(r"\s+", " ", shown)
    assert shown.count("n_classes") == 1
    many = tuple(check("x < n", rank=rank, count=2) for rank in range(64))
    assert "128 GPU threads, ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more" in re.sub(
        r"\s+", " ", render_failure(Failure(kind="device_assert", assertions=many))
    )


def test_first_of_several_assertions_decides():
    """The others have a line each, at most five, then a number."""
    known = decode_text(NLL.format("", 0)).assertions
    others = tuple(check(f"x < {number}") for number in range(8))
    failure = Failure(kind="device_assert", context="dead", assertions=known + others)
    lines = render_failure(failure).splitlines()

    assert "`cross_entropy`" in lines[0]
    shown = [line for line in lines if re.search(r"`x < \d`", line)]
    assert [re.search(r"x < (\d)", line)[1] for line in shown] == ["0", "1", "2", "3", "4"]
    assert sum("3 more assertions" in line for line in lines) == 1
    assert (
        "`cross_entropy`"
        not in render_failure(Failure(kind="device_assert", assertions=others + known)).partition(
            "\n"
        )[0]
    )


def test_place_of_an_assertion_is_not_taken_for_the_users_code():
    """PyTorch's files are called PyTorch's; where nothing is known, no place is shown."""

    def shown(file, **more):
        assertion = Assertion(expression="x", file=file, line=7, function=None, **more)
        return render_failure(Failure(kind="device_assert", assertions=(assertion,)))

    assert "(PyTorch's Loss.cu:7)" in shown("C:\\w\\b\\aten\\src\\ATen\\native\\cuda\\Loss.cu")
    assert "(mine.cu:7)" in shown("/home/me/mine.cu")
    for file in ("unknown", "<frozen importlib._bootstrap>", ""):
        assert ":7" not in shown(file)


def test_no_cuda_error_is_one_honest_line():
    """The last exception is named, whatever it is."""
    assert explained("x\nIndexError: index out of range in self\n") == (
        "No CUDA error found in this text. The last exception: "
        "`IndexError: index out of range in self`"
    )


def test_library_error_says_what_is_not_known():
    """The text does not decide; what would decide is said."""
    shown = re.sub(
        r"\s+", " ", explained("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")
    )

    assert "may have killed the CUDA context; the text does not tell" in shown
    assert "context is dead" not in shown
    assert "What decides" in shown


def test_child_process():
    """The child is lost, its parent is not; that stands there once."""
    shown = explained(
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        f"-- Process 1 terminated with the following error:\nRuntimeError: {ASSERT}\n"
    )

    assert "child process, whose CUDA context is dead; its parent's is not affected" in shown
    assert messages.ADVICE_CHILD not in re.sub(r"\s+", " ", shown)


def test_values_that_the_requirement_has_already_are_left_out():
    """Nothing stands there twice."""
    assertion = check("0 <= tmp4 < 32000", requirement="0 <= index < 32000")

    def shown(**values):
        item = Assertion.from_dict(assertion.to_dict() | {"values": values})
        return render_failure(Failure(kind="device_assert", assertions=(item,)))

    assert "Values" not in shown(lower=0, upper=32000)
    assert "idx = 50257" in shown(idx=50257)


def every_sample():
    return sorted(SAMPLES.glob("asserts/*.txt")) + sorted(SAMPLES.glob("errors/*.txt"))


@pytest.mark.parametrize("width", [88, 40])
def test_every_sample_is_short_and_says_nothing_twice(width):
    """A screenful at most, no line too wide, no sentence twice, no word of a kernel or button."""
    for path in every_sample():
        failure = decode_text(path.read_bytes())
        shown = render_failure(failure, width=width)
        first, *rest = shown.splitlines()

        assert len(first) < 260, path.name
        assert all(len(line) <= width for line in rest), path.name
        if width == 88:
            assert len(rest) <= 24, (path.name, shown)
        words = re.sub(r"\s+", " ", shown)
        sentences = re.findall(r"[A-Z][^.;:`]{24,}[.;]", words)
        assert len(sentences) == len(set(sentences)), path.name
        for word in ("this kernel", "This kernel", "%cuda_debug", "button"):
            assert word not in words, path.name
        assert ("context is dead" in first) is (failure.sticky is True), path.name


def test_every_sample_as_markdown():
    """Short, with the decoded assertions in a block that their own backticks do not end."""
    for path in every_sample():
        failure = decode_text(path.read_bytes())
        shown = render_failure_markdown(failure)

        assert len(shown.splitlines()) <= 24, path.name
        if failure.kind != "not_cuda":
            fence = re.search(r"^(`{3,})text$", shown, re.MULTILINE)[1]
            assert shown.count(f"\n{fence}\n") == 1, path.name
        for item in failure.assertions[:1]:
            assert re.sub(r"\s+", " ", item.expression[:60]) in re.sub(r"\s+", " ", shown), (
                path.name
            )


def test_markdown_is_safe_to_paste():
    """No mention, link, tag or home path gets out of a hostile log or file name."""
    hostile = "<img src=x> @everyone #1 https://evil.example ``` /home/jane/x ![a](b) \
$x$ $$y$$ _www.evil.example _GH-7 _0123abcd"
    assertion = Assertion(
        expression=f"a\n```\n{hostile}",
        file=f"/home/jane/{hostile}.cu",
        line=1,
        function=hostile,
        requirement=hostile,
    )
    failure = Failure(kind="device_assert", message=hostile, assertions=(assertion,))
    shown = render_failure_markdown(failure, title=hostile, place=hostile, versions={"torch": "2"})

    assert "jane" not in shown
    fence = re.search(r"^(`{3,})text$", shown, re.MULTILINE)[1]
    outside = re.sub(rf"{fence}text\n.*?\n{fence}\n", "", shown, flags=re.DOTALL)
    outside = re.sub(r"\\[^\w\s]", "", outside)  # what is escaped
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)
    assert not re.search(r"[@$]|#\d|://|www|GH-|0123|<|\]\(", outside)


def test_markdown_says_what_is_ruled_out():
    """Only what the error itself excludes; nothing for an error that may be anything."""
    assert "Ruled out" in render_failure_markdown(decode_text(NLL.format("", 0)))
    memory = render_failure_markdown(decode_text("RuntimeError: CUDA error: out of memory"))
    assert "earlier device-side assert" in memory
    library = decode_text("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")
    assert "Ruled out" not in render_failure_markdown(library)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_versions_are_found_in_any_chunks(size):
    """collect_env, pip and the paths of a traceback; the first from the surest place."""
    text = (
        b"xtorch 9.9.9 torch 1 of 2 torch-9.9.9\nCUDA used to build PyTorch: 11.8\n"
        b"PyTorch version: 2.1.0+cu118\nPyTorch version: 9.9.9\nNvidia driver version: 535.104.05\n"
        b'File "/usr/lib/python3.10/site-packages/x.py"\nROCM used to build PyTorch: N/A\n'
    )
    scanner = VersionScanner()
    for at in range(0, len(text), size):
        scanner.feed(text[at : at + size])

    expected = {"torch": "2.1.0+cu118", "cuda": "11.8", "driver": "535.104.05", "python": "3.10"}
    assert scanner.found == expected


def test_readme_shows_what_is_printed():
    """The example in the README is the tool's own output for a sample."""
    readme = (SAMPLES.parents[1] / "README.md").read_text("utf-8")
    command = "$ python -m cudassert_ipy explain train.log\n"
    sample = (SAMPLES / "asserts" / "nll-loss-rank.txt").read_text("utf-8")

    assert f"```\n{command}{explained(sample)}\n```" in readme


def test_operations_have_the_names_people_write():
    """``torch.nn.functional.`` is left out, the class of a method is not; long lists are cut."""
    names = ("torch.nn.functional.a", "torch.Tensor.b_", "x[i]", "torch.c", "torch.d")
    failure = Failure(kind="device_assert", assertions=(check("x", operations=names),))

    assert "in `a`, `Tensor.b_`, `x[i]` or the like:" in render_failure(failure)


@pytest.mark.parametrize("name", ["a\x0b# b", "a\n# b", "a\x0c\x85\u2028# b", "a\r# b"])
def test_title_makes_no_heading_of_its_own(name):
    """Whatever some viewer takes for a new line is none in the title."""
    shown = render_failure_markdown(decode_text(NLL.format("", 0)), title=name, place=name)

    assert [line[:5] for line in shown.splitlines() if line.startswith("#")] == ["### C"]
