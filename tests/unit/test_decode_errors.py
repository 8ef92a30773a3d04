"""The wordings of CUDA errors in tests/samples/errors, codes, look-alikes, children and advice."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from cudassert_ipy import messages
from cudassert_ipy.decode import codes
from cudassert_ipy.decode.advice import advice
from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.decode.error_text import read_message
from cudassert_ipy.decode.failure import TextDecoder, decode_exception, decode_text, is_suspect
from cudassert_ipy.decode.known_bugs import KNOWN_BUGS, possible_bugs
from cudassert_ipy.decode.situation import Situation
from cudassert_ipy.model import Assertion, Failure

SAMPLES = Path(__file__).parents[1] / "samples" / "errors"
TEXTS = sorted(SAMPLES.glob("*.txt"))
ASSERT = "CUDA error: device-side assert triggered"
FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n'
IN_A_SHELL = messages.ADVICE_EXACT_LINE["cuda", "shell", True]
EXACT_LINE = frozenset(messages.ADVICE_EXACT_LINE.values())
DISTRIBUTED = frozenset(messages.ADVICE_EXACT_LINE_DISTRIBUTED.values())
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
    assert failure.advice or failure.kind == "not_cuda"
    assert bool(restart.intersection(failure.advice)) == (failure.context == "dead")
    child = {messages.ADVICE_CHILD, messages.ADVICE_ENGINE}
    assert bool(child.intersection(failure.advice)) == (failure.process == "child")


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
    given = decode_text(EMBEDDING + FRAMES + f"RuntimeError: {ASSERT}\n").advice

    assert catalog().by_key("embedding").causes[0] in given[0]
    assert given[1:] == (messages.ADVICE_RESTART, IN_A_SHELL)


@pytest.mark.parametrize("row", catalog().rows, ids=lambda row: row.key)
def test_first_cause_comes_with_what_to_do_about_it(row):
    """The remedy of the most frequent cause, and of no other, ends the sentence on causes."""
    line = row.render((0, 0, 0), (7, 0, 0)) + "\n"

    given = [text for text in decode_text(line).advice if "Typical causes" in text]

    for text in given:
        assert text.endswith(f" For the first: {row.remedies[0].partition('; ')[0]}.")
        assert len(text) <= 600
    assert given or row.nature == "internal"


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

    assert DISTRIBUTED.intersection(given)
    assert not EXACT_LINE.intersection(given)


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
        assert not EXACT_LINE.intersection(given)


def test_advice_for_blocking_launches_does_not_ask_for_them_again():
    """The traceback already shows the line."""
    failure = Failure(kind="illegal_memory_access", code=700, sticky=True, blocking=True)

    assert not EXACT_LINE.intersection(advice(failure, situation=Situation()))


def test_log_that_names_nccl_anywhere_counts_as_distributed():
    """NCCL greets before anything fails."""
    log = f"node1:7:7 [0] NCCL INFO Bootstrap: Using eth0\nRuntimeError: {ASSERT}\n"

    assert DISTRIBUTED.intersection(decode_text(log).advice)


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


# --- advice that fits the text --------------------------------------------------------------------

NLL = catalog().by_key("nll_loss").render((0, 0, 0), (4, 0, 0)) + "\n"
OWN = "/home/me/csrc/points.cu:77: f: block: [5,0,0], thread: [0,0,0] Assertion `c < n` failed.\n"
BLOCKING = "CUDA_LAUNCH_BLOCKING=1"
ASYNC = "CUDA kernel errors might be asynchronously reported at some other API call.\n"
RANK_0 = f"[rank0]: RuntimeError: {ASSERT}\n"
RAISED_ASSERT = f"{FRAMES}RuntimeError: {ASSERT}\n"


def advice_of(text):
    return " ".join(decode_text(text).advice)


def test_exception_that_ended_the_run_after_a_handled_error_is_named():
    """The program survived a lack of memory and died of something else; a chain is one error."""
    assert "KeyError: 'loss'" in advice_of(text_of("memory-handled-then-key-error"))
    assert "Later in the log" not in advice_of(text_of("memory-during-handling"))
    again = text_of("memory-handled-then-key-error") + text_of("memory-handled-then-key-error")
    assert "KeyError" in advice_of(again)
    assert "KeyError" not in advice_of(again.rpartition(FRAMES[:9])[0])


@pytest.mark.parametrize("name", ["lookalike-memory-warning", "lookalike-memory-warning-key-error"])
def test_warning_of_a_lack_of_memory_is_mentioned(name):
    """It ended nothing, and may still explain something."""
    assert "retrying with batch_size 8" in advice_of(text_of(name))


def test_consequence_in_another_process_does_not_end_the_run():
    """What torchrun and the other ranks raise follows from the first error."""
    memory = "[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n"
    others = (
        "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: Connection closed\n",
        "Traceback (most recent call last):\ntorch.distributed.ChildFailedError: train.py\n",
    )
    for other in others:
        assert "Later" not in advice_of(memory + other)
        assert "Later" not in advice_of(memory.replace("[rank1]: ", "") + others[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NLL + RAISED_ASSERT + EMBEDDING + RAISED_ASSERT, "srcIndex < srcSelectDimSize"),
        (
            f"[rank0]: {NLL}[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n{RANK_0}",
            "CUDA out of memory, rank 1",
        ),
        (f"{RAISED_ASSERT}RuntimeError: CUDA error: misaligned address\n", "misaligned address"),
    ],
)
def test_other_failure_in_the_log_is_named(text, words):
    """Of another process or a later run: the first error says nothing about it."""
    assert f"another failure ({words}" in advice_of(text).replace("CUDA error: ", "")


@pytest.mark.parametrize(
    "text",
    [
        NLL + EMBEDDING + RAISED_ASSERT,
        RAISED_ASSERT + NLL,
        NLL + RAISED_ASSERT + NLL + RAISED_ASSERT,
        f"RuntimeError: CUDA out of memory.\n{NLL}{RAISED_ASSERT}",
        f"{NLL}{RAISED_ASSERT}RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR\n",
    ],
)
def test_what_follows_from_the_same_failure_is_no_other_one(text):
    """Stderr after the traceback, a handled lack of memory, errors of a dead context."""
    assert "another failure" not in advice_of(text)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nccl-remote", "Another rank died"),
        ("lookalike-nccl-timeout", "collective operation"),
        ("nccl-last-error-memory", "whole job"),
        ("lookalike-busy", "no context is lost"),
        ("lookalike-driver-too-old", "update the driver"),
        ("lookalike-not-compiled-with-cuda", "CPU only"),
        ("lookalike-two-devices", "not of CUDA"),
        ("cublas-not-initialized", "for cuBLAS first"),
        ("child-vllm-engine-core", "restart the server"),
    ],
)
def test_advice_names_what_helps(name, word):
    """One sentence for each situation that people meet often."""
    assert word in decode_text(text_of(name)).advice[0]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("invalid device ordinal", "device_count"),
        ("invalid configuration argument", "grid or block"),
        ("no CUDA-capable device is detected", "CUDA_VISIBLE_DEVICES"),
        ("invalid resource handle", "refused"),
    ],
)
def test_errors_that_leave_the_context_alive_get_a_sentence(text, word):
    """Beside that nothing is lost, there is something to look at."""
    failure = decode_text(f"RuntimeError: CUDA error: {text}\n")

    assert failure.context == "alive"
    assert word in failure.advice[-1]


def test_error_of_nccl_is_not_blamed_on_an_assert():
    """When another rank died there is no reason to suspect this one's data."""
    for name in ("nccl-remote", "lookalike-nccl-timeout"):
        assert "ssert" not in advice_of(text_of(name))


@pytest.mark.parametrize(
    "line",
    [
        f"$ {BLOCKING} python train.py",
        f"(venv) me@host:~/x$ {BLOCKING} torchrun t.py",
        f"+ export {BLOCKING}",
        f"env: {BLOCKING}",
        f"C:\\me>set {BLOCKING}",
        "environ: {'CUDA_LAUNCH_BLOCKING': '1'}",
    ],
)
def test_blocking_launches_are_not_asked_for_where_they_are_set(line):
    """Nor are they proven: they may have been set too late."""
    failure = decode_text(f"{line}\n{RAISED_ASSERT}")

    assert failure.blocking is None
    assert messages.ADVICE_BLOCKING_SET in failure.advice
    with_hint = decode_text(f"{line}\n{RAISED_ASSERT}{ASYNC}")
    assert with_hint.blocking is None
    assert messages.ADVICE_BLOCKING_LOST in with_hint.advice


@pytest.mark.parametrize(
    "line",
    [
        f"For debugging consider passing {BLOCKING}.",
        f"For debugging consider passing\n{BLOCKING}",
        f"{BLOCKING} may help",
        '  File "t.py", line 1, in f\n    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"',
    ],
)
def test_words_about_blocking_launches_do_not_set_them(line):
    """torch's hint, a person's advice and the source in a traceback prove nothing."""
    failure = decode_text(f"{RAISED_ASSERT}{ASYNC}{line}\n")

    assert failure.blocking is False
    assert IN_A_SHELL in failure.advice


def test_rank_that_raised_is_the_one_whose_assertions_have_none():
    """The device prints no rank; with two ranks nobody knows."""
    one = decode_text(f"{NLL}[rank2]: RuntimeError: {ASSERT}\n")
    two = decode_text(f"{NLL}[rank2]: RuntimeError: {ASSERT}\n[rank3]: RuntimeError: {ASSERT}\n")

    assert [item.rank for item in one.assertions] == [2]
    assert [item.rank for item in two.assertions] == [None]


@pytest.mark.parametrize("prefix", ["[rank3]: ", "1: ", "[default1]:", "node3: [rank7]: "])
def test_ranks_count_as_a_distributed_job(prefix):
    """Blocking launches may hang there."""
    given = decode_text(f"{prefix}{NLL}{prefix}RuntimeError: {ASSERT}\n").advice

    assert DISTRIBUTED.intersection(given)
    assert not EXACT_LINE.intersection(given)


@pytest.mark.parametrize(
    ("text", "where", "traceback"),
    [
        (RAISED_ASSERT, "shell", True),
        (f"RuntimeError: {ASSERT}", "shell", False),
        (RAISED_ASSERT.replace('"train', '"C:\\me\\train'), "windows", True),
        (RAISED_ASSERT.replace('"train.py"', '"/tmp/ipykernel_3/1.py"'), "notebook", True),
        (
            RAISED_ASSERT.replace('  File "train.py", line 3', "Cell In[3], line 3"),
            "notebook",
            True,
        ),
    ],
)
def test_variable_is_set_where_the_program_ran(text, where, traceback):
    """A cell in a notebook, the command elsewhere; no word of a traceback that is not there."""
    assert messages.ADVICE_EXACT_LINE["cuda", where, traceback] in decode_text(text).advice


def test_decoder_may_be_told_that_the_text_is_a_notebooks():
    """The outputs of a notebook need not show it."""
    decoder = TextDecoder(notebook=True)
    decoder.feed(RAISED_ASSERT.encode())

    assert messages.ADVICE_EXACT_LINE["cuda", "notebook", True] in decoder.close().advice


@pytest.mark.parametrize(
    ("tail", "fragmented"),
    [
        ("3.00 GiB is reserved by PyTorch but unallocated.", True),
        ("230.11 MiB is reserved by PyTorch but unallocated.", False),
        ("(1.00 GiB already allocated; 1 MiB free; 9.02 GiB reserved in total by PyTorch)", True),
        ("(9.00 GiB already allocated; 1 MiB free; 9.02 GiB reserved in total by PyTorch)", False),
        ("", False),
    ],
)
def test_fragmentation_is_suspected_where_enough_unused_memory_is_held(tail, fragmented):
    """More than was asked for, that is; PyTorch's own hint is in every message."""
    text = f"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. {tail}"

    assert ("expandable_segments" in advice_of(text)) is fragmented


def test_long_message_is_cut_between_words_and_shows_it():
    """Half a word or address would look like the whole one."""
    message = decode_text(f"RuntimeError: {ASSERT} " + "(at " + "a long word " * 60).message
    memory = decode_text("RuntimeError: CUDA out of memory. " + "Some words " * 80).message

    assert len(message) <= 500
    assert re.search(r" (?:Some|words) …$", memory)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (OWN, messages.ADVICE_OWN_KERNEL.format(place="points.cu:77")),
        (OWN.replace("/home/me/csrc/points.cu", "/tmp/torchinductor_me/a/b.py"), "COMPILED"),
        (OWN.replace("/home/me/csrc", "/pytorch/aten/src/ATen"), "UNKNOWN_ASSERTION"),
    ],
)
def test_unknown_check_is_ascribed_to_whose_kernel_it_is(line, said):
    """One's own kernel runs neither on the CPU nor in torch.compile."""
    expected = getattr(messages, f"ADVICE_{said}", said)

    assert decode_text(line + RAISED_ASSERT).advice[0] == expected
