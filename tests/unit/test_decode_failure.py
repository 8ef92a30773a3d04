"""From texts and exceptions to failures: kinds, look-alikes, chains, children, advice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cudassert_ipy.decode import codes
from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.decode.failure import decode_exception, decode_text, explain, is_suspect

SAMPLES = Path(__file__).parents[1] / "samples" / "asserts"
ASSERT = "CUDA error: device-side assert triggered"
ASYNC = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
TRACEBACK = "Original Traceback (most recent call last):\n  File 'x.py', line 3, in f\n"
DSA = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
LINE = catalog().by_key("embedding").render((0, 0, 0), (7, 0, 0)).encode() + b"\n"


class AcceleratorError(RuntimeError):
    """Shaped like torch's: the code is an attribute of the instance."""

    def __init__(self, message, code=None):
        super().__init__(message)
        if code is not None:
            self.error_code = code


def raised(exc, *, cause=None, context=None):
    """Return ``exc`` as Python links it to its cause or context."""
    try:
        try:
            if context is not None:
                raise context
        finally:
            if cause is not None:
                raise exc from cause
            raise exc
    except BaseException as error:
        return error


@pytest.mark.parametrize(
    ("text", "kind", "code", "context"),
    [
        (f"RuntimeError: {ASSERT}", "device_assert", 710, "dead"),
        (f"torch.AcceleratorError: {ASSERT}\n{ASYNC}", "device_assert", 710, "dead"),
        (f"skipped batch 3: {ASSERT}", "device_assert", 710, "dead"),
        (
            "RuntimeError: cuda runtime error (59) : device-side assert triggered at /p/THC.c:18",
            "device_assert",
            710,
            "dead",
        ),
        (
            "RuntimeError: Triton Error [CUDA]: device-side assert triggered",
            "device_assert",
            710,
            "dead",
        ),
        ("DGLError\nCUDA: device-side assert triggered", "device_assert", 710, "dead"),
        (
            "torch.cuda.CudaError: device-side assert triggered (710)",
            "device_assert",
            710,
            "dead",
        ),
        (
            "n1:7:9 [0] NCCL WARN Cuda failure 710 'device-side assert triggered'",
            "device_assert",
            710,
            "dead",
        ),
        (
            "Warning: CUDA warning: device-side assert triggered (function destroyEvent)",
            "device_assert",
            710,
            "dead",
        ),
        (
            "CudaAPIError: [710] Call to cuMemcpyDtoH results in CUDA_ERROR_ASSERT",
            "device_assert",
            710,
            "dead",
        ),
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "illegal_memory_access",
            700,
            "dead",
        ),
        ("CUDA error: misaligned address", "misaligned_address", 716, "dead"),
        ("CUDA error: an illegal instruction was encountered", "illegal_instruction", 715, "dead"),
        ("CUDA error: the launch timed out and was terminated", "launch_timeout", 702, "dead"),
        ("RuntimeError: HIP error: unspecified launch failure", "launch_failure", 719, "dead"),
        ("CUDA error: hardware stack error", "hardware_error", 714, "dead"),
        ("CUDA error: uncorrectable ECC error encountered", "ecc_error", 214, "unknown"),
        ("RuntimeError: CUDA error: out of memory", "out_of_memory", 2, "alive"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "out_of_memory",
            None,
            "alive",
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
            + ASYNC
            + DSA,
            "no_kernel_image",
            209,
            "alive",
        ),
        ("RuntimeError: HIP error: invalid device function", "no_kernel_image", 98, "alive"),
        (
            "RuntimeError: CUDA error: too many resources requested for launch",
            "out_of_resources",
            701,
            "alive",
        ),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 1",
            "out_of_resources",
            None,
            "alive",
        ),
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with ...",
            "fork_after_init",
            None,
            "alive",
        ),
        ("RuntimeError: CUDA error: invalid device ordinal", "cuda_error", 101, "alive"),
        ("RuntimeError: CUDA error: a text of the year 2031", "cuda_error", None, "unknown"),
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up",
            "cuda_error",
            999,
            "unknown",
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`",
            "library_error",
            None,
            "unknown",
        ),
        (
            "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
            "library_error",
            None,
            "unknown",
        ),
    ],
)
def test_kind_is_read_from_the_text(text, kind, code, context):
    """Each wording gives its kind, today's code, and what it means for the context."""
    failure = explain(text)

    assert (failure.kind, failure.code, failure.context) == (kind, code, context)
    assert failure.advice


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RuntimeError: index out of range",
        "RuntimeError: CUDA is not what this is about",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        'RuntimeError: iter.device(arg).is_cuda() INTERNAL ASSERT FAILED at "../cuda/Loops.cuh":89',
        "AssertionError: Label class 24 exceeds nc=24",
        "RuntimeError: Class values must be smaller than num_classes.",
        f"ValueError: bad labels would give '{ASSERT}' on a GPU",
        f"If you see {ASSERT}, restart.",
        DSA,
        "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/",
        f'  File "train.py", line 3, in f\n    if "{ASSERT}" in str(error):\nKeyError: 3',
        f"----> 3 raise ValueError('{ASSERT}')\nValueError: no",
        "MemoryError: DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_look_alikes_are_not_cuda(text):
    """Hints, host errors, sources and people's own words are no CUDA error."""
    failure = explain(text)

    assert failure.kind == "not_cuda"
    assert failure.context != "dead"
    assert failure.advice == ()


def test_first_fatal_error_decides():
    """An out-of-memory error before, and library errors after, do not hide the fatal one."""
    text = (
        "RuntimeError: CUDA error: out of memory\n"
        "RuntimeError: CUDA error: an illegal memory access was encountered\n"
        f"RuntimeError: {ASSERT}\n"
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR\n"
    )

    assert explain(text).kind == "illegal_memory_access"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "AttributeError: 'NoneType' object has no attribute 'maxsize'",
    ],
)
def test_assertion_beside_another_error_is_a_device_assert(error):
    """What the device printed says more than the library's text."""
    failure = decode_text(LINE + error.encode())

    assert (failure.kind, failure.code, failure.context) == ("device_assert", 710, "dead")


def test_blocking_is_known_only_from_the_hint_about_asynchronous_errors():
    """The hint shows that launches were not blocking; its absence proves nothing."""
    assert explain(f"RuntimeError: {ASSERT}\n{ASYNC}").blocking is False
    assert explain(f"RuntimeError: {ASSERT}\n").blocking is None


def test_error_code_of_the_exception_decides():
    """torch.AcceleratorError.error_code counts, whatever the text says."""
    failure = decode_exception(AcceleratorError("no words for it", 716))

    assert (failure.kind, failure.code, failure.sticky) == ("misaligned_address", 716, True)


def test_accelerator_error_without_a_code_is_read_from_its_text():
    """User code may construct the class, which then has no error_code."""
    failure = decode_exception(AcceleratorError(f"{ASSERT}\n{ASYNC}{DSA}"))

    assert (failure.kind, failure.blocking) == ("device_assert", False)
    assert failure.message == ASSERT


def test_error_code_of_another_class_means_nothing():
    """A web client's error_code 700 is no CUDA error."""
    error = OSError("gateway")
    error.error_code = 700

    assert decode_exception(error).kind == "not_cuda"


@pytest.mark.parametrize("link", ["cause", "context"])
def test_the_error_behind_an_error_decides(link):
    """A KeyError raised while a CUDA error was handled comes from the CUDA error."""
    error = raised(KeyError("loss"), **{link: AcceleratorError(ASSERT, 710)})

    assert is_suspect(error)
    assert decode_exception(error).context == "dead"


def test_members_of_an_exception_group_count():
    """One member of a group that is a CUDA error makes the group one."""
    group = ExceptionGroup("two", [ValueError("a"), AcceleratorError(ASSERT, 710)])

    assert is_suspect(group)
    assert decode_exception(group).kind == "device_assert"


def test_a_chain_that_bites_its_tail_ends():
    """Cycles among causes do not hang the decoder."""
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    assert not is_suspect(first)
    assert decode_exception(first).kind == "not_cuda"


def test_captured_assertions_belong_to_the_exception():
    """The assertion lines of stderr are in the failure of a cuBLAS exception."""
    error = RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`")

    failure = decode_exception(error, LINE * 3)

    assert (failure.kind, failure.context) == ("device_assert", "dead")
    assert failure.assertions[0].count == 3


def test_captured_assertions_beside_a_python_error_leave_the_context_to_the_probe():
    """A child program may have printed them: only a probe can tell whose context is dead."""
    failure = decode_exception(KeyError("x"), LINE)

    assert (failure.kind, failure.context) == ("device_assert", "unknown")


def test_captured_assertion_that_was_cut_is_told():
    """Several processes print at once: what is left of the line is shown beside the exception."""
    captured = b"0,0 block: [1 Assertion `n < size` failed.\n"

    (assertion,) = decode_exception(AcceleratorError(ASSERT, 710), captured).assertions

    assert (assertion.expression, assertion.known) == ("n < size", False)
    assert decode_exception(KeyError("x"), captured).kind == "not_cuda"


@pytest.mark.parametrize(
    "text",
    [
        f"Caught RuntimeError in DataLoader worker process 0.\n{TRACEBACK}RuntimeError: {ASSERT}\n",
        f"\n\n-- Process 1 terminated with the following error:\n{TRACEBACK}RuntimeError: {ASSERT}",
    ],
)
def test_error_of_a_child_process_leaves_this_context_alive(text):
    """Workers and spawned processes have contexts of their own."""
    failure = decode_exception(RuntimeError(text))

    assert (failure.kind, failure.process, failure.context) == ("device_assert", "child", "alive")


def test_error_of_a_pool_worker_is_a_childs():
    """multiprocessing.Pool re-raises the worker's error with its traceback as the cause."""

    class RemoteTraceback(Exception):  # noqa: N818  (multiprocessing's name)
        pass

    cause = RemoteTraceback(
        f'\n"""\nTraceback (most recent call last):\nRuntimeError: {ASSERT}\n"""'
    )
    failure = decode_exception(raised(RuntimeError(ASSERT), cause=cause))

    assert (failure.process, failure.context) == ("child", "alive")


def test_replica_threads_are_this_process():
    """DataParallel's replicas are threads: their dead context is ours."""
    text = f"Caught RuntimeError in replica 0 on device 0.\n{TRACEBACK}RuntimeError: {ASSERT}"

    assert decode_exception(RuntimeError(text)).context == "dead"


class HostileError(Exception):
    """Everything a user's class can do wrong."""

    def __str__(self):
        raise SystemExit("no")

    __repr__ = __str__
    args = property(__str__)
    __cause__ = property(__str__)
    __context__ = property(__str__)
    error_code = property(__str__)


def test_user_code_of_an_exception_is_not_run():
    """is_suspect reads past overridden attributes; the decoder survives a raising __str__."""

    class RudeError(Exception):
        def __str__(self):
            raise ValueError("no")

    assert not is_suspect(HostileError("x"))
    assert decode_exception(RudeError()).kind == "not_cuda"


def test_suspicion_is_cheap_and_true_for_cuda_texts():
    """Words of CUDA make an exception suspect; ordinary errors are not, however long."""
    assert is_suspect(RuntimeError(ASSERT))
    assert is_suspect(RuntimeError("x" * 100_000 + f"\nRuntimeError: {ASSERT}\n"))
    assert is_suspect(AcceleratorError("?"))
    assert not is_suspect(ValueError("x" * 1_000_000))
    assert not is_suspect(KeyError(3))


def test_advice_names_what_to_check_and_what_not_to_bother_with():
    """Known assertions bring their causes; the DSA hint is defused only where it was shown."""
    with_hint = decode_text(LINE + f"RuntimeError: {ASSERT}\n{ASYNC}{DSA}".encode()).advice
    without = decode_text(LINE + f"RuntimeError: {ASSERT}\n".encode()).advice

    assert catalog().by_key("embedding").causes[0] in with_hint[0]
    assert any("TORCH_USE_CUDA_DSA" in line for line in with_hint)
    assert not any("TORCH_USE_CUDA_DSA" in line for line in without)


def test_advice_without_restart_for_an_error_that_leaves_the_context_alive():
    """Nobody is sent to restart for an out-of-memory error."""
    assert not any("Restart the" in line for line in explain("CUDA out of memory.").advice)


def test_codes_are_unique_and_found_by_text():
    """No text hides behind a shorter one."""
    for code in codes._CODES:
        assert codes.by_code(code.code) is code
        named = codes.by_text(code.text)
        assert named is not None
        assert (named[0].text, named[1]) == (code.text, len(code.text))
        assert codes.by_name(code.name) is code


def test_decoding_imports_no_torch():
    """A log is explained where torch is not installed."""
    program = (
        "import sys; from cudassert_ipy.decode.failure import explain; explain('x');"
        "print(sorted({'torch', 'numpy', 'IPython'} & set(sys.modules)))"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert result.stdout == "[]\n"


def test_the_report_of_a_tracking_build_is_read_from_the_exception():
    """A torch that tracks device-side assertions tells of them in the error's text only."""
    text = (SAMPLES / "wording-host-report.txt").read_text("utf-8").partition(": ")[2]

    failure = decode_exception(RuntimeError(text))

    (assertion,) = failure.assertions
    assert (failure.kind, failure.code, failure.context) == ("device_assert", 710, "dead")
    assert (assertion.known, assertion.count, assertion.thread) == (True, 2, (31, 0, 0))


def test_harmless_lines_that_name_cuda_do_not_hide_an_error_of_the_same_shape():
    """What was read once, with other numbers, is not read again; an error always is."""
    log = "".join(f"step {n}: CUDA memory {n} MiB\n" for n in range(300))

    assert decode_text(log).kind == "not_cuda"
    assert decode_text(f"{log}RuntimeError: {ASSERT}\n").kind == "device_assert"
    assert decode_text(f"{log}E: CUDA_ERROR_ASSERT\n{log}").kind == "device_assert"
