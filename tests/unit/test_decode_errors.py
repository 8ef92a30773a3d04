"""The wordings of CUDA errors in tests/samples/errors, codes, look-alikes, children and advice."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from cudassert_ipy import messages
from cudassert_ipy.decode import codes
from cudassert_ipy.decode.advice import Situation, advice
from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.decode.error_text import read_message
from cudassert_ipy.decode.failure import TextDecoder, decode_exception, decode_text, is_suspect
from cudassert_ipy.decode.known_bugs import KNOWN_BUGS, possible_bugs
from cudassert_ipy.model import Assertion, Failure

SAMPLES = Path(__file__).parents[1] / "samples" / "errors"
TEXTS = sorted(SAMPLES.glob("*.txt"))
ASSERT = "CUDA error: device-side assert triggered"
EMBEDDING = catalog().by_key("embedding").render((0, 0, 0), (7, 0, 0)) + "\n"


def text_of(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_sample_is_decoded_as_written_beside_it(path):
    """Each sample gives the failure in the .json file of the same name (advice is left out)."""
    expected = json.loads(path.with_suffix(".json").read_text("utf-8"))

    decoded = decode_text(path.read_bytes()).to_dict()

    del decoded["advice"]
    assert decoded == expected


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_bytes_one_by_one_give_the_same_failure(path):
    """Chunks of one byte give what one chunk gives."""
    data = path.read_bytes()
    decoder = TextDecoder()
    for index in range(len(data)):
        decoder.feed(data[index : index + 1])

    assert decoder.close() == decode_text(data)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_advice_is_short_and_true(path):
    """At most four pieces of advice; a restart for a dead context only, none for another's."""
    failure = decode_text(path.read_bytes())
    restart = {
        messages.ADVICE_RESTART,
        messages.ADVICE_RESTART_OTHER,
        messages.ADVICE_ROCM_ABORT,
    }

    assert len(failure.advice) <= 4
    assert bool(failure.advice) == (failure.kind != "not_cuda")
    assert bool(restart.intersection(failure.advice)) == (failure.context == "dead")
    assert (messages.ADVICE_CHILD in failure.advice) == (failure.process == "child")


@pytest.mark.parametrize(
    "path", sorted(SAMPLES.glob("lookalike-*.txt")), ids=lambda path: path.stem
)
def test_look_alike_is_never_a_dead_context(path):
    """Neither as a log nor as an exception's message, however the lines follow each other."""
    text = path.read_text("utf-8")
    exception = re.match(r"[\w.]+(?:Error|OutOfResources): (?P<message>.*)", text, re.DOTALL)

    assert decode_text(text).context != "dead"
    if exception:
        assert decode_exception(RuntimeError(exception["message"])).context != "dead"
    assert decode_text(text + "\n" + text).context != "dead"


RAISED = [
    path
    for path in TEXTS
    if re.search(r"^(?:[\w.]*Error|what)\S*:", path.read_text("utf-8"), re.MULTILINE)
    and decode_text(path.read_bytes()).kind != "not_cuda"
]


@pytest.mark.parametrize("path", RAISED, ids=lambda path: path.stem)
def test_what_an_exception_can_say_is_suspect(path):
    """The kernel looks at an exception only if its words are suspect."""
    assert is_suspect(RuntimeError(path.read_text("utf-8")))


@pytest.mark.parametrize("code", codes._CODES, ids=lambda code: code.name)
def test_every_code_is_read_under_all_its_names(code):
    """Runtime text, runtime name and driver name give the same failure; so does HIP's text."""
    wordings = [f"RuntimeError: CUDA error: {code.text}", f"E: {code.name}: {code.text}"]
    if code.driver:
        wordings.append(f"E2: CUDA_ERROR_{code.driver}: {code.text}")
    wordings.append(f"RuntimeError: HIP error: {code.text}")

    found = [decode_text(wording) for wording in wordings]

    assert {failure.kind for failure in found} == {code.kind}
    assert {failure.sticky for failure in found} == {code.sticky}
    if code.code != 300:  # shares its text with 200
        assert {failure.code for failure in found} == {code.code}
    assert [failure.platform for failure in found] == [*["cuda"] * (len(found) - 1), "hip"]


def test_sticky_codes_are_those_that_the_header_says_need_a_new_process():
    """The list of driver_types.h, CUDA 12.9 and 13.5: a code added by mistake shows here."""
    sticky = {code.code for code in codes._CODES if code.sticky}

    assert sticky == {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}


@pytest.mark.parametrize(
    ("number", "text", "code"),
    [
        (59, "device-side assert triggered", 710),
        (4, "unspecified launch failure", 719),
        (6, "the launch timed out and was terminated", 702),
        (77, "an illegal memory access was encountered", 700),
        (73, "an illegal instruction was encountered", 715),
        (2, "out of memory", 2),
        (8, "invalid device function", 98),
        (48, "no kernel image is available for execution on the device", 209),
        (30, "unknown error", 999),
        (59, "words that nobody has seen", 710),
        (4, "words that nobody has seen", None),
    ],
)
def test_numbers_before_cuda_10_1_give_the_present_code(number, text, code):
    """The words decide; the number does where it has no other meaning and the words are unknown."""
    failure = decode_text(f"RuntimeError: cuda runtime error ({number}) : {text} at /p/THC.cu:24")

    assert failure.code == code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("hipErrorAssert", 710),
        ("hipErrorLaunchFailure", 719),
        ("hipErrorNoBinaryForGpu", 209),
        ("hipErrorOutOfMemory", 2),
        ("hipErrorECCNotCorrectable", 214),
        ("CUDA_ERROR_CONTAINED", 226),
        ("CUDA_ERROR_LAUNCH_FAILED", 719),
    ],
)
def test_names_of_hip_and_of_the_driver(name, code):
    """They differ from the runtime's names in places."""
    assert codes.by_name(name).code == code


def test_texts_of_hip_and_of_old_versions():
    """Some texts differ from those of today's CUDA."""
    assert decode_text("RuntimeError: HIP error: no ROCm-capable device is detected").code == 100
    old = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
    assert decode_text(old).code == 46


@pytest.mark.parametrize(
    "wrapped",
    [
        f"RuntimeError('{ASSERT}')",
        f"failed: {ASSERT}",
        f"worker 3 hit {ASSERT}",
        f"[rank 3] {ASSERT}",
        f"Task failed: RuntimeError('{ASSERT}')",
    ],
)
def test_message_that_brings_the_error_at_its_end(wrapped):
    """Programs put their own words in front of a caught error."""
    assert read_message(wrapped).code == 710


@pytest.mark.parametrize(
    "sentence",
    [
        f"{ASSERT} is what others get",
        f"the text '{ASSERT}' is not in {ASSERT.lower()}",
        f"catching {ASSERT} is of no use",
        f'raise RuntimeError("{ASSERT}")',
        f"e == '{ASSERT}'",
    ],
)
def test_sentence_about_the_error_is_not_the_error(sentence):
    """Neither as a message nor as a line of a log."""
    assert read_message(sentence) is None
    assert decode_text(sentence).kind == "not_cuda"


def test_the_first_fatal_error_of_a_chain_decides():
    """The illegal access; what follows comes from it, and memory before it does not count."""
    first = RuntimeError("CUDA error: an illegal memory access was encountered")
    later = RuntimeError(ASSERT)
    last = RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")
    later.__context__, last.__context__ = first, later
    first.__context__ = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    assert decode_exception(last).kind == "illegal_memory_access"


def test_nested_exception_groups_are_searched():
    """One CUDA error deep inside decides."""
    inner = ExceptionGroup("inner", [KeyError("a"), RuntimeError(ASSERT)])
    group = ExceptionGroup("outer", [ValueError("b"), inner])

    assert decode_exception(group).code == 710


def test_last_line_of_nccl_names_the_error_of_cuda():
    """NCCL's own first line says only that CUDA failed."""
    text = text_of("assert-nccl-last-error").split("DistBackendError: ")[1]

    failure = decode_exception(RuntimeError(text))

    assert (failure.kind, failure.context) == ("device_assert", "dead")


@pytest.mark.parametrize(
    "name", ["child-dataloader-worker", "child-mp-spawn", "child-futures", "child-torchrun-record"]
)
def test_childs_error_as_an_exception(name):
    """What the log calls a child's is a child's as an exception too."""
    text = text_of(name).split("Error: ", 1)[1] if "worker" in name else text_of(name)
    cls = {"child-mp-spawn": "ProcessRaisedException", "child-futures": "_RemoteTraceback"}
    error = type(cls.get(name, "RuntimeError"), (RuntimeError,), {})(text)

    failure = decode_exception(error)

    assert (failure.process, failure.context) == ("child", "alive")


def test_a_child_that_was_killed_owns_the_assertions_on_stderr():
    """torch.multiprocessing tells only the signal; the kernel's own context would have raised."""
    killed = type("ProcessExitedException", (Exception,), {})("process 0 terminated with SIGABRT")

    assert is_suspect(killed)
    failure = decode_exception(killed, EMBEDDING.encode())
    assert (failure.kind, failure.process, failure.context) == ("device_assert", "child", "alive")


def test_error_of_this_process_beside_a_workers_other_error():
    """A worker's KeyError does not make this process's CUDA error a child's."""
    worker = KeyError("Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most")
    error = RuntimeError(ASSERT)
    error.__context__ = worker

    failure = decode_exception(error)

    assert (failure.process, failure.context) == ("this", "dead")


def test_childs_error_does_not_excuse_a_later_one_of_this_process():
    """The second traceback after a child's report is this process's own."""
    text = text_of("child-dataloader-worker").replace(
        "device-side assert triggered", "out of memory"
    )
    text += text_of("assert-torch-1.7")

    failure = decode_text(text)

    assert (failure.code, failure.process, failure.context) == (710, "this", "dead")


def test_hostile_lines_take_linear_time():
    """A line made of beginnings of errors does not make the readers quadratic."""
    beginnings = [
        "CUDA error: ",
        "CUDA error 7 at ",
        "THCudaCheck FAIL error= ",
        "if you ",
        "'CUDA error: device-side assert triggered' ",
        "cudaErrorAssert: ",
        "Error 1: ",
        "cudaSuccess (1 vs. 1) ",
        "a.",
        "torch" + " " * 30,
        "INTERNAL: ",
        "invalid argument (",
        "RuntimeError(",
    ]
    start = time.perf_counter()
    for beginning in beginnings:
        line = (beginning * 64_000)[:64_000]
        decode_text(line + "\nRuntimeError: " + line)
        decode_exception(RuntimeError(line))

    assert time.perf_counter() - start < 10


def test_number_that_contradicts_its_words_is_no_error():
    """Words of an error behind some other number are somebody's own."""
    assert decode_text("Error 12: unspecified launch failure").kind == "not_cuda"


def test_source_lines_end_where_the_traceback_does():
    """An indented line of a log that comes after other lines is read."""
    log = f'  File "a.py", line 3, in f\n    g()\nhello\n      {ASSERT}\n'

    assert decode_text(log).code == 710
    assert decode_text(log.replace("hello\n", "")).kind == "not_cuda"


def test_class_of_an_exception_tells_a_shortage_of_memory():
    """Whatever the allocator's words are."""
    failure = decode_text("rmm.OutOfMemoryError: not enough memory on the device")

    assert (failure.kind, failure.context) == ("out_of_memory", "alive")


def test_blocking_is_not_read_from_a_command_line():
    """A variable that was set too late, and a lost hint, look the same as blocking launches."""
    text = f"$ CUDA_LAUNCH_BLOCKING=1 python train.py\nRuntimeError: {ASSERT}\n"

    assert decode_text(text).blocking is None


def test_error_code_of_another_platform_is_not_one_of_cuda():
    """torch uses the class for Intel's GPUs too, whose numbers mean something else."""
    error = type("AcceleratorError", (RuntimeError,), {})(
        "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"
    )
    error.error_code = 20

    failure = decode_exception(error)

    assert (failure.kind, failure.platform, failure.context) == ("launch_failure", "xpu", "dead")


def test_pythons_own_assertion_is_none_of_cuda():
    """Whatever it says, and however it is met."""
    assert decode_exception(AssertionError(ASSERT)).kind == "not_cuda"
    assert decode_text(f"AssertionError: {ASSERT}").kind == "not_cuda"


# --- advice ---------------------------------------------------------------------------------------


def failure_of(kind, code=None, *, platform="cuda", sticky=True, expression=None, **fields):
    assertions = ()
    if expression is not None:
        assertions = (
            Assertion(expression=expression, file="x.cu", line=1, function=None, **fields),
        )
    return Failure(kind=kind, code=code, platform=platform, sticky=sticky, assertions=assertions)


def test_known_assertion_names_its_causes_first():
    """Causes of the catalogue, then the restart, then where to find the line."""
    given = decode_text(EMBEDDING + f"RuntimeError: {ASSERT}\n").advice

    assert catalog().by_key("embedding").causes[0] in given[0]
    assert given[1:] == (messages.ADVICE_RESTART, messages.ADVICE_EXACT_LINE["cuda"])


def test_unknown_assertion_accuses_no_data():
    """Nothing is said of the causes of a check that nobody knows."""
    given = advice(failure_of("device_assert", 710, expression="a < b", known=False))

    assert given[0] == messages.ADVICE_UNKNOWN_ASSERTION
    assert not any("Typical causes" in line for line in given)


def test_internal_assertion_accuses_no_data():
    """A check of the library's own assumptions says so."""
    row = next(row for row in catalog().rows if row.nature == "internal")
    text = row.render((0, 0, 0), (7, 0, 0))

    given = decode_text(f"{text}\nRuntimeError: {ASSERT}\n").advice

    assert given[0] == messages.ADVICE_INTERNAL


def test_assert_without_its_line_tells_where_to_look():
    """The CPU shows most mistakes, and stderr has the line."""
    given = decode_text(f"RuntimeError: {ASSERT}").advice

    assert given[0] == messages.ADVICE_FIND_ASSERTION
    assert "CPU" in given[0]


def test_illegal_access_never_sends_anybody_to_look_for_an_assertion_line():
    """There is none for this class of errors; compute-sanitizer finds the kernel."""
    given = decode_text(text_of("illegal-access")).advice

    assert "compute-sanitizer" in given[0]
    assert messages.ADVICE_FIND_ASSERTION not in given


@pytest.mark.parametrize("name", ["assert-watchdog", "assert-data-parallel", "assert-nccl-warn"])
def test_blocking_launches_are_warned_about_with_nccl_and_data_parallel(name):
    """They may hang there."""
    given = decode_text(text_of(name)).advice

    assert messages.ADVICE_EXACT_LINE_DISTRIBUTED in given
    assert messages.ADVICE_EXACT_LINE["cuda"] not in given


def test_amd_has_its_own_variable():
    """CUDA_LAUNCH_BLOCKING is not what serializes kernels of ROCm."""
    given = decode_text(text_of("launch-failure-hip")).advice

    assert any("AMD_SERIALIZE_KERNEL=3" in line for line in given)
    assert not any("CUDA_LAUNCH_BLOCKING" in line or "CUDA context" in line for line in given)


def test_switch_of_the_hint_is_defused_only_where_it_was_shown():
    """Before torch 2.13 every error carried the line about TORCH_USE_CUDA_DSA."""
    assert messages.ADVICE_DSA in decode_text(text_of("assert-torch-2.1")).advice
    assert messages.ADVICE_DSA not in decode_text(text_of("assert-torch-2.13")).advice
    assert messages.ADVICE_DSA not in decode_text(text_of("lookalike-no-kernel-image-dsa")).advice


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("launch-timeout", "TdrDelay"),
        ("ecc-error", "Not your code"),
        ("hardware-stack-error", "Not your code"),
        ("cublas-not-initialized", "What decides"),
        ("lookalike-fork", "'spawn'"),
        ("lookalike-initialization-error", "'spawn'"),
        ("lookalike-unknown-error", "nvidia_uvm"),
        ("lookalike-error-804", "did not start"),
        ("lookalike-capture", "CUDA graph"),
        ("xpu-device-lost", "driver lost the GPU"),
        ("launch-failure-rocm-runtime", "AMD"),
    ],
)
def test_first_advice_is_the_one_that_helps(name, word):
    """Each kind and situation has its own first sentence."""
    assert word in decode_text(text_of(name)).advice[0]


def test_no_line_of_the_program_is_looked_for_where_there_is_none():
    """Hardware and time-outs have no guilty line."""
    for name in ("launch-timeout", "hardware-stack-error", "ecc-error"):
        given = decode_text(text_of(name)).advice
        assert messages.ADVICE_EXACT_LINE["cuda"] not in given


def test_advice_for_blocking_launches_does_not_ask_for_them_again():
    """The traceback already shows the line."""
    failure = Failure(kind="illegal_memory_access", code=700, sticky=True, blocking=True)

    assert messages.ADVICE_EXACT_LINE["cuda"] not in advice(failure, situation=Situation())


def test_log_that_names_nccl_anywhere_counts_as_distributed():
    """NCCL greets before anything fails."""
    log = f"node1:7:7 [0] NCCL INFO Bootstrap: Using eth0\nRuntimeError: {ASSERT}\n"

    assert messages.ADVICE_EXACT_LINE_DISTRIBUTED in decode_text(log).advice


def test_least_useful_advice_is_left_out():
    """A possible bug is worth more than the switch that does nothing."""
    given = decode_text("PyTorch version: 1.8.1\n" + text_of("assert-torch-2.1")).advice

    assert len(given) == 4
    assert "randperm" in given[-1]


# --- known bugs -----------------------------------------------------------------------------------

INDUCTOR = "index out of bounds: 0 <= tmp4 < (-1) + ks0"


@pytest.mark.parametrize(
    ("version", "failure", "thread"),
    [
        ("1.5.0", failure_of("illegal_memory_access", 700), "pytorch/pytorch#38771"),
        ("1.8.1+cu111", failure_of("device_assert", 710), "pytorch/pytorch#55027"),
        ("1.8.1", failure_of("device_assert", 710), "pytorch/pytorch#55027"),
        (
            "1.10.0+cu113",
            failure_of(
                "device_assert",
                710,
                expression="t >= 0 && t < n_classes",
                operations=("torch.nn.functional.cross_entropy",),
            ),
            "pytorch/pytorch#71550",
        ),
        (
            "2.11.0+cu129",
            failure_of("device_assert", 710, expression=INDUCTOR),
            "pytorch/pytorch#186536",
        ),
        (
            "2.9.0.dev20250820+cu128",
            failure_of("device_assert", 710, expression="index out of bounds: 0 <= tmp4 < 1 + ks0"),
            "pytorch/pytorch#161244",
        ),
    ],
)
def test_known_bug_of_the_version_is_one_possibility(version, failure, thread):
    """The thread and the version are in the sentence."""
    (text,) = possible_bugs(version, failure)

    assert thread in text
    assert version in text


@pytest.mark.parametrize(
    ("version", "failure"),
    [
        (None, failure_of("device_assert", 710)),
        ("1.8.1+cu102", failure_of("device_assert", 710)),
        ("1.8.2", failure_of("device_assert", 710)),
        ("1.10.1", failure_of("device_assert", 710, expression="t >= 0", operations=("nll_loss",))),
        ("1.10.0", failure_of("device_assert", 710, expression="t >= 0", operations=("gather",))),
        ("2.11.0", failure_of("device_assert", 710, expression="index out of bounds: 0 <= t < 10")),
        ("1.8.1", failure_of("out_of_memory", sticky=False)),
        ("2.15.0", failure_of("device_assert", 710, expression=INDUCTOR)),
        ("1.5.0.1", failure_of("illegal_memory_access", 700)),
    ],
)
def test_no_bug_is_suggested_without_a_reason(version, failure):
    """Another version, another operation, another error, or no version."""
    assert possible_bugs(version, failure) == ()


def test_operations_that_ran_count_for_a_bug():
    """An illegal access names no operation; the replay does."""
    failure = failure_of("illegal_memory_access", 700)

    assert possible_bugs("1.10.0", failure) == ()
    assert possible_bugs("1.10.0", failure, operations=("torch.nn.functional.nll_loss",))


def test_every_known_bug_cites_a_thread():
    """A bug that nobody confirmed is a rumor."""
    for bug in KNOWN_BUGS:
        assert "/" in bug.thread.partition("#")[0]
        assert bug.thread.partition("#")[2].isdigit()


@pytest.mark.parametrize(
    "line",
    ["PyTorch version: 1.8.1+cu111", "[pip3] torch==1.8.1+cu111", "torch 1.8.1+cu111, Python 3.8"],
)
def test_log_that_shows_the_version_gets_the_bug_as_a_possibility(line):
    """A log without the version gets nothing of the kind."""
    error = f"RuntimeError: {ASSERT}\n"

    assert any("randperm" in text for text in decode_text(f"{line}\n{error}").advice)
    assert not any("randperm" in text for text in decode_text(error).advice)
    assert not any(
        "randperm" in text for text in decode_text(f"torchvision==1.8.1\n{error}").advice
    )
