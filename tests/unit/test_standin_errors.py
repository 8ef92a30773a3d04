import pytest

from cudassert_ipy.decode.failure import decode_text
from cudassert_ipy.standin.cuda_errors import ASSERT, INVALID_ORDINAL, error_text

SEARCH = (
    "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
    "group__CUDART__TYPES.html for more information."
)
ASYNC = [
    (
        "CUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect."
    ),
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
]
DSA = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."


@pytest.mark.parametrize(
    ("version", "blocking", "hints"),
    [
        ((2, 6), False, [*ASYNC, DSA]),
        ((2, 8), True, [DSA]),
        ((2, 9), False, [SEARCH, *ASYNC, DSA]),
        ((2, 12), True, [SEARCH, DSA]),
        ((2, 13), False, [SEARCH, *ASYNC]),
        ((2, 13), True, [SEARCH]),
        ((2, 14), False, [SEARCH, *ASYNC]),
    ],
)
def test_the_text_of_an_assert_is_that_of_the_version(version, blocking, hints):
    """The hint lines changed over time, and go with blocking launches."""
    text = error_text(ASSERT, version, blocking=blocking)
    assert text.splitlines() == ["CUDA error: device-side assert triggered", *hints]


def test_other_codes_have_other_hints():
    """An ordinal out of range gets its own hint, and from 2.13 on nothing about asynchrony."""
    lines = error_text(INVALID_ORDINAL, (2, 13), blocking=False).splitlines()
    assert lines[:2] == [
        "CUDA error: invalid device ordinal",
        "GPU device may be out of range, do you have enough GPUs?",
    ]
    assert ASYNC[0] not in lines


def test_the_decoder_reads_what_the_simulator_writes():
    """Our own texts are CUDA's: the decoder knows kind and context."""
    failure = decode_text(error_text(ASSERT, (2, 13), blocking=False))
    assert failure.kind == "device_assert"
    assert failure.context == "dead"
