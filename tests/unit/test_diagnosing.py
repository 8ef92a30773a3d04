"""What the device says when it is asked, beside what the error in the cell said."""

from __future__ import annotations

import pytest

from cudassert_ipy.decode.failure import decode_exception
from cudassert_ipy.notebook.debug_cell import is_in_body
from cudassert_ipy.notebook.diagnosing import name_cause

CUBLAS = RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`")
ILLEGAL = RuntimeError("CUDA error: an illegal memory access was encountered")


def test_cause_of_a_library_error_is_what_the_device_reports():
    """cuBLAS failed because the context was dead."""
    named = name_cause(decode_exception(CUBLAS), ILLEGAL, b"")

    assert (named.kind, named.code, named.context) == ("illegal_memory_access", 700, "dead")


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (CUBLAS, None),
        (CUBLAS, RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")),
        (RuntimeError("CUDA error: device-side assert triggered"), ILLEGAL),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), ILLEGAL),
    ],
)
def test_error_that_is_sure_of_itself_stays(error, found):
    """The first error decides, and a device without a fatal error says nothing of it."""
    failure = decode_exception(error)

    assert name_cause(failure, found, b"") == failure


def test_childs_error_stays_the_childs():
    """This process's own device has nothing to do with it."""
    text = (
        f"Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most\n{CUBLAS!r}"
    )
    failure = decode_exception(RuntimeError(f"{text}\nRuntimeError: {CUBLAS}"))

    assert failure.process == "child"
    assert name_cause(failure, ILLEGAL, b"") == failure


@pytest.mark.parametrize(
    ("source", "line", "text", "expected"),
    [
        ("%%capture\nx = 1\ny = 2", 2, "y = 2", True),
        ("\n%%capture\n\nx = 1", 1, "x = 1", True),
        ("%%cuda_debug\n%%capture\nx = 1", 1, "x = 1", True),
        ("%%cuda_debug\nx = 1\nx = 1", 2, "x = 1", False),
        ("x = 1\ny = 2", 2, "y = 2", False),
        ("%%capture\nx = 1", 1, "get_ipython().run_cell_magic('capture', '', 'x = 1')", False),
        ("%%capture\nx = 1", 9, "x = 1", False),
        ("%%capture\nx = 1", 1, "", False),
        ("%%capture", 0, "", False),
    ],
)
def test_the_body_of_a_magic_is_known_by_its_text(source, line, text, expected):
    """Lines of what `%%capture` runs count from the body, those of the cell itself do not."""
    assert is_in_body(source, line, text) is expected
