"""Errors that somebody speaks of, tests for or searches for, and those that programs print."""

from __future__ import annotations

import pytest

from cudassert_ipy.decode.failure import decode_exception, decode_text

ASSERT = "CUDA error: device-side assert triggered"


@pytest.mark.parametrize(
    "line",
    [
        f'with pytest.raises(RuntimeError, match="{ASSERT}"):',
        f'tests/test_a.py:12:    with raises(RuntimeError, match="{ASSERT}"):',
        f"with self.assertRaisesRegex(RuntimeError, '{ASSERT}'):",
        f'@pytest.mark.xfail(reason="{ASSERT}")',
        f'match="{ASSERT}"',
        f'ERRORS = ["{ASSERT}"]',
        f'print("{ASSERT}")',
        f"expected error: {ASSERT}",
        f"expected: '{ASSERT}'",
        f"Expected message: RuntimeError: {ASSERT}",
        f"simulated failure: {ASSERT}",
        f"0 matches for {ASSERT}",
        f"Fix for {ASSERT}",
        f"Fix for RuntimeError: {ASSERT}",
        f"[SKIP] reason: {ASSERT}",
        f"SKIPPED [1] tests/test_a.py:3: {ASSERT}",
        f"XFAIL test - RuntimeError: {ASSERT}",
        f"known issue {ASSERT}",
        f"Known issues: {ASSERT}",
        f"Test passed: caught {ASSERT}",
        f"test_a PASSED ({ASSERT})",
        f"ok 3 - stops at {ASSERT}",
        f"Usage: handles errors such as {ASSERT}",
        f"errors, e.g. {ASSERT}",
        f"Ignored: {ASSERT}",
        f"# {ASSERT}",
        f"    # RuntimeError: {ASSERT}",
        f"step()  # {ASSERT}",
        f"step(); // {ASSERT}",
        f"/* {ASSERT}",
        f"<!-- {ASSERT}",
        f"> user wrote: I get {ASSERT}",
        f"> user wrote: {ASSERT}",
        f"README.md:12:RuntimeError: {ASSERT}",
        "known issue cudaErrorAssert: device-side assert triggered",
        "XFAIL test - CUDA_ERROR_ASSERT: device-side assert triggered",
        "# terminate called after throwing an instance of 'c10::CUDAError'",
    ],
)
def test_error_that_is_spoken_of_is_none(line):
    """Neither as a line of a log nor inside an exception's message."""
    assert decode_text(f"epoch 1\n{line}\nepoch 2\n").kind == "not_cuda"
    assert decode_exception(ValueError(line)).kind == "not_cuda"


@pytest.mark.parametrize(
    "line",
    [
        f"RuntimeError: {ASSERT}",
        f"E   RuntimeError: {ASSERT}",
        f"FAILED tests/test_a.py::test_b - RuntimeError: {ASSERT}",
        f"ERROR tests/test_a.py::test_b - {ASSERT}",
        f"Unexpected error: {ASSERT}",
        f"An unexpected exception occurred: {ASSERT}",
        f"Caught exception: {ASSERT}",
        f"Job failed for {ASSERT}",
        f"Training stopped because of {ASSERT}",
        f"Skipping batch 3: {ASSERT}",
        f"worker 3 reported: {ASSERT}",
        f"rank 3: Failed with error: {ASSERT}",
        f"2024-01-01 10:00:00,123 - train.py:120 - ERROR - {ASSERT}",
        f"#12 34.5 RuntimeError: {ASSERT}",
        f"step # 12: {ASSERT}",
        f"see https://example.org/a/b: {ASSERT}",
        f'level=error error="{ASSERT}"',
        f'{{"error": "{ASSERT}"}}',
        f'{{"errors": ["{ASSERT}"]}}',
        f"I 10:00 trainer] {ASSERT}",
        f"what():  {ASSERT}",
        f"!!! Exception during processing !!! {ASSERT}",
        f"The job died with {ASSERT}",
        f"> RuntimeError: {ASSERT}",
        f">>> step() RuntimeError: {ASSERT}",
    ],
)
def test_error_that_a_program_prints_is_found(line):
    """What resembles the words above is not taken for them."""
    assert decode_text(f"epoch 1\n{line}\nepoch 2\n").context == "dead"
