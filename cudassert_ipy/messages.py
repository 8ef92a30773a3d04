"""Every text that a user sees, in one place. Standard library only.

Rules: what happened, then what it means, then what to do. Short, true, no blame, no jargon that is
not explained. Templates use ``str.format`` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# --- shared vocabulary ---------------------------------------------------------------------------

CONTEXT_DEAD = (
    "This kernel's CUDA context is dead: every later CUDA call fails until the kernel restarts."
)
CONTEXT_ALIVE = "The CUDA context is alive; no restart is needed."
LOST = "Every tensor on the GPU is lost."
KEPT = "All CPU variables are still here."
SIMULATED = "simulated device: teaching and test double, not evidence about a GPU"


_LISTED_CELLS = 5


def cell(execution_count: int | None) -> str:
    """Return how a cell is called: by its prompt number."""
    return "an earlier cell" if execution_count is None else f"cell [{execution_count}]"


def values_of_cells(cells: tuple[int, ...]) -> str:
    """Return as of which cells, in order and at least one, the values from the GPU are."""
    *before, last = [f"[{number}]" for number in cells]
    if not before:
        text = f"cell {last}"
    elif len(cells) > _LISTED_CELLS:
        text = f"cells {before[0]} to {last}"
    else:
        text = f"cells {', '.join(before)} and {last}"
    return f"Values from the GPU are those of the end of {text}."


DEAD_TENSOR = "<{tensor}, lost: context dead since {cell}>"

# --- explain --------------------------------------------------------------------------------------

UNNUMBERED_CELL = "cell {position} from the top"

CLI = "Explain CUDA failures of PyTorch programs."
CLI_EXPLAIN = "Say what went wrong according to logs, tracebacks, notebooks or saved web pages."
CLI_STATUS = (
    "Exit status: 0 if a CUDA error was found, 1 if none was, 2 if an input cannot be used."
)
CLI_FILE = "the files to read, also packed with gzip; - or nothing: standard input"
CLI_JSON = "print the failure as JSON; for several files an array of file, place, failure"
CLI_MARKDOWN = "print Markdown to paste into a bug report; read it before you do"
CLI_UNUSABLE = "cannot explain {file}: {reason}\n"
CLI_NOTE = "{file}: {note}\n"
CLI_UNKNOWN = "unrecognized arguments: {arguments}"
CLI_TERMINAL = (
    "Reading from the terminal; paste the text, then press Ctrl-D. (--help shows more.)\n"
)
CLI_STANDARD_INPUT = "standard input"
CLI_NO_INPUT = "there is no standard input"
CLI_NO_NAME = "the name is empty"
CLI_NO_MATCH = "no file matches"
CLI_BINARY = "it is not text"
CLI_PACKED = "it is packed ({name}); unpack it first"
CLI_DAMAGED = "it is damaged gzip data ({error})"
CLI_CUT_OFF = "the packed file ends too early; what there is was read"
CLI_TOO_LARGE_UNPACKED = "it unpacks to more than 1 GB; pipe it in unpacked"
CLI_NOT_PACKED_END = "it ends with data that gzip did not pack; that was not read"
CLI_TOO_LARGE_NOTEBOOK = (
    "it is too large to be read as a notebook; it was read as plain text, sources included"
)
CLI_NOT_WRITTEN = "cannot write the result: {reason}\n"
CLI_NO_OUTPUT = "there is no standard output"
CLI_NO_MEMORY = "there is not enough memory to read it"
CLI_EMPTY = "it is empty"
CLI_HEADING = "== {file} =="

LOG_LAST = "The last exception: {message:code}"
LOG_ASSERT_OPERAND = "Device-side assert in {operations}: the check of the {operand} failed."
LOG_ASSERT_IN = "Device-side assert in {operations}: a check on the GPU failed."
LOG_ASSERT = "Device-side assert: a check in a GPU kernel failed."
LOG_ASSERT_NOT_SEEN = (
    "Device-side assert: a check in a GPU kernel failed; the text does not show which."
)
LOG_SIMILAR = "the like"
LOG_OTHER_IN = "in {operation}"
LOG_VERDICTS = {
    "illegal_memory_access": "Illegal memory access: a GPU kernel used memory outside its tensors.",
    "misaligned_address": "Misaligned address: a GPU kernel used an address that does not fit its "
    "data type.",
    "illegal_instruction": "Illegal instruction: the GPU met code that it cannot run.",
    "launch_failure": "Unspecified launch failure: a GPU kernel crashed.",
    "launch_timeout": "A GPU kernel was ended because it ran too long.",
    "hardware_error": "The GPU reported a hardware fault.",
    "ecc_error": "The GPU found a memory error that it cannot correct (ECC).",
    "library_error": "A CUDA library (cuBLAS, cuDNN, NCCL …) failed.",
    "out_of_memory": "Out of GPU memory.",
    "no_kernel_image": "This build of PyTorch or of an extension has no code for this GPU.",
    "out_of_resources": "A GPU kernel asked for more resources than the GPU has.",
    "fork_after_init": "CUDA was used in a forked process.",
    "cuda_error": "CUDA reported an error.",
}
LOG_LIBRARY = "{library} ({use}) failed."
_BLAS, _NETS, _SENT = "matrix products", "convolutions, RNNs", "communication between GPUs"
_FFT, _SPARSE, _SOLVER = "Fourier transforms", "sparse matrices", "linear algebra"
_RANDOM = "random numbers"
LIBRARY_USES = {
    "cuBLAS": _BLAS,
    "hipBLAS": _BLAS,
    "rocBLAS": _BLAS,
    "cuDNN": _NETS,
    "MIOpen": _NETS,
    "NCCL": _SENT,
    "RCCL": _SENT,
    "cuFFT": _FFT,
    "hipFFT": _FFT,
    "cuSPARSE": _SPARSE,
    "hipSPARSE": _SPARSE,
    "cuSOLVER": _SOLVER,
    "hipSOLVER": _SOLVER,
    "cuRAND": _RANDOM,
    "hipRAND": _RANDOM,
}
LOG_NOT_STARTED = "{device} did not start; no context was lost."
LOG_CUDA_ERROR = "CUDA reported an error: {message:code}."
LOG_STATES = {
    "dead": "That process's {device} context is dead.",
    "alive": "It leaves the {device} context alive.",
    "unknown": "It may have killed the {device} context; the text does not tell.",
}
LOG_CHILD = "It happened in a child process."
LOG_ENGINE_DEAD = "It happened in a child process, whose {device} context is dead."
LOG_CHILD_DEAD = (
    "It happened in a child process, whose {device} context is dead; its parent's is not affected."
)
LOG_PLACE = "({place})"
LOG_NO_EXPRESSION = "(without a text)"
LOG_PLACES = {
    "torch": "(PyTorch's {place})",
    "compiled": "(code that torch.compile made, {place})",
}
LOG_ONE_THREAD = "1 GPU thread"
LOG_THREADS = "{count} GPU threads"
LOG_RANK = "rank {ranks}"
LOG_RANKS = "ranks {ranks}"
LOG_VERSIONS = {
    "torch": "torch",
    "cuda": "CUDA",
    "rocm": "ROCm",
    "driver": "driver",
    "python": "Python",
}
LOG_RULED_OUT = {
    "known_assertion": "a wrong shape or dtype (these raise before the launch); a lack of GPU memory "
    "(it has an error of its own, which kills no context)",
    "device_assert": "a lack of GPU memory (it has an error of its own, which kills no context)",
    "ecc_error": "a bad index or label",
    "hardware_error": "a bad index or label",
    "fork_after_init": "a bad index or label",
    "alive": "an earlier device-side assert in that process (CUDA would have reported that instead)",
}

# --- assertions that the catalogue does not know --------------------------------------------------

ASSERTION_SAYS = "the kernel says: {words}"
ASSERTION_SAYS_NOTHING = "not printed: the assertion has no text"
ASSERTION_FALSE = "this place in the kernel must never be reached"

# --- notebook: hooks ------------------------------------------------------------------------------

HOOK_FAILED = (
    "cudassert_ipy could not do its work here ({hook}: {error}); your cell is not affected."
)

HOOK_INTERRUPTED = "cudassert_ipy was interrupted; your cell is not affected."
INTERRUPTED_BEFORE = "interrupted before the cell was started"
DEAD_AGAIN = (
    "A set-up cell has killed the CUDA context of the new kernel as well; there is nothing to "
    "replay the failing cell from."
)

# --- notebook: magics -----------------------------------------------------------------------------

HELP_NO_GUARD = "Do not check operands before each launch; the cell runs at full speed and may die."
HELP_NO_CHECKPOINT = "Do not keep the state from before the cell for a replay."
HELP_NO_REPLAY = "Do not replay by itself when the cell dies."
HELP_BUDGET = "Host memory for copies of floating-point CUDA tensors (e.g. 256MB)."
HELP_TIMEOUT = "Time limit of the replay, in seconds."
HELP_STATS = "After the cell, show all tensors that were checked, with their ranges."
HELP_COMMAND = (
    "What to do: status (default), replay, restart, report, repro, guard, simulator, off."
)
HELP_VALUE = "on or off, for guard and simulator; for repro the file to write."
HELP_JSON = "With report: print the diagnosis as JSON and nothing else."
HELP_OUTPUT = "With report: print what the cell printed in the last replay, and nothing else."
HELP_WHOLE = "With replay: the whole cell, with as much time as it needs, not only its loop's body."
CELL_USAGE = (
    "usage: %%cuda_debug [--no-guard] [--no-checkpoint] [--no-replay] [--budget SIZE] "
    "[--timeout S] [--stats]"
)
LINE_USAGE = (
    "usage: %cuda_debug [status | replay [--whole] | restart | report [--json | --output] | "
    "repro [FILE [--cells]] | guard on|off | "
    "simulator on|off | off]"
)
CELL_MANUAL = f"""Run this cell with the operands of index operations checked before each launch.

{CELL_USAGE}

  --no-guard       {HELP_NO_GUARD}
  --no-checkpoint  {HELP_NO_CHECKPOINT}
  --no-replay      {HELP_NO_REPLAY}
  --budget SIZE    {HELP_BUDGET}
  --timeout S      {HELP_TIMEOUT}
  --stats          {HELP_STATS}
"""
LINE_MANUAL = f"""Show or do something about CUDA errors in this kernel.

{LINE_USAGE}

  status              Show the state of the CUDA context and every hook of this extension (default).
  replay              Run the failed cell again on the CPU and show which operand was bad. Where it
                      failed in a loop, the last batches or the body of the loop come first.
  replay --whole      Run the whole cell, with as much time as it needs.
  restart             Restart the kernel in place, run the set-up cells again, replay the failed cell.
  report [--json]     Print the last diagnosis as Markdown, or as JSON and nothing else.
  report --output     Print what the cell printed in the last replay.
  repro               Print short scripts that show the mistake: one operation with literal values,
                      and the cells that lead to it. Both are run on the CPU first; the cells'
                      side effects happen again.
  repro FILE          Write the one operation (--cells: the cells) to a new file instead.
  guard on|off        Check operands before each launch in every cell from now on.
  simulator on|off    Let a simulated device on the CPU stand in for CUDA.
  off                 Turn everything off.
"""
BAD_SIZE = "{text!r} is not a size; write for example 256MB or 1.5GB"
NO_VALUE = "%cuda_debug {command} takes no value"
NEEDS_VALUE = "%cuda_debug {command} needs one of: {accepted}"
NO_TORCH = "torch cannot be imported here ({error}); %%cuda_debug needs it. The cell runs as it is."
NO_TORCH_LINE = "torch cannot be imported here ({error})."
NO_DEVICE = (
    "There is no CUDA device here and the simulator is off, so the CUDA checks have nothing to do; "
    "operands of CPU tensors are checked all the same. To try this tool: %cuda_debug simulator on"
)
NOTHING_TO_REPLAY = "There is nothing to replay: no cell has failed of a CUDA error yet."
NOTHING_TO_REPORT = "There is no diagnosis yet: no cell has failed of a CUDA error."
GUARD_ON = "The guard is on: operands are checked before each launch, in every cell from now on."
GUARD_OFF = "The guard is off."
SIMULATOR_ON = (
    "The simulator is on: torch.cuda is a simulated device on the CPU, for teaching and trying out. "
    "It is not evidence about a GPU. It asserts like one for embedding, x[idx] and cross_entropy; "
    "other operations fail as they do on the CPU."
)
SIMULATOR_OFF = "The simulator is off."
SIMULATOR_REAL_GPU = "A real CUDA device is in use in this process; the simulator stays off."
TURNED_OFF = "cudassert_ipy is off. %reload_ext cudassert_ipy turns it on again."
CHECKPOINT_REFUSED = "No checkpoint was made ({reason}); the cell runs without one."
CANNOT_FORK = "this system cannot fork"
CAPTURE_FAILED = (
    "cudassert_ipy cannot read what CUDA prints ({error}); errors are explained without it."
)
DISABLED = "cudassert_ipy is turned off by CUDASSERT_DISABLE=1."

# --- notebook: after a restart ---------------------------------------------------------------------

RESUME_STEP = "[{done}/{total}] {label}"
RESTART_AGAIN = "Restarting the kernel. Cells that run again: {cells}."
RESTART_LEFT_OUT = "Left out (only shell commands, or after the failed cell): {cells}."
RESTART_LOST = "Lost, unless those cells make it again: {names}."
RESTART_CHILDREN = "Child processes that end: {names}."
RESTART_NONE = "none"
PENDING_FOUND = (
    "Before the restart {count} {cells} had run. %cuda_debug restart runs them again and replays "
    "the failing cell; nothing runs by itself."
)

# --- notebook: status -----------------------------------------------------------------------------

STATUS_NO_TORCH = "torch is not imported yet; nothing to watch."
STATUS_DEAD = (
    "CUDA context: DEAD since {cell}. Every CUDA call fails until the kernel restarts; "
    "%cuda_debug restart does that."
)
STATUS_SIMULATED = "simulated device"
STATUS_REAL = "device"
STATUS_UNUSED = "CUDA context: none yet ({device} not used so far)."
STATUS_ALIVE = "CUDA context: alive ({device})."
STATUS_LAST = "Last diagnosis: {line}"
STATUS_BLOCKING = (
    "CUDA_LAUNCH_BLOCKING=1: launches are blocking, which is slow; restart to leave it."
)
STATUS_FENCE = "Fence: on (%config CudaDebug.fence = False turns it off)."
STATUS_NO_FENCE = (
    "Fence: off (at the end of a cell the device is still asked once, without waiting)."
)
STATUS_COPIES = "Copies of small integer tensors: on (%config CudaDebug.copies = False)."
STATUS_NO_COPIES = "Copies of small integer tensors: off."
STATUS_FILE = "Captured text: {path}"
STATUS_HEAD = "hook                      calls    mean ms  faults  off switch"
STATUS_HOOK = "{name:<24} {calls:>6} {mean:>10.3f} {faults:>7}  {switch}"

# --- notebook: captured text ----------------------------------------------------------------------

MORE_LINES = "… and {count} more lines like these"

# --- report --------------------------------------------------------------------------------------
# Back-quoted words and `{name:code}` fields are set as code by every renderer (report/phrase.py).

KIND_TITLES = {
    "device_assert": "device-side assert",
    "illegal_memory_access": "illegal memory access",
    "misaligned_address": "misaligned address",
    "illegal_instruction": "illegal instruction",
    "launch_failure": "unspecified launch failure",
    "launch_timeout": "kernel ran into the time limit of the GPU",
    "hardware_error": "GPU hardware error",
    "ecc_error": "uncorrectable memory (ECC) error",
    "library_error": "error from a CUDA library",
    "out_of_memory": "out of GPU memory",
    "no_kernel_image": "no kernel for this GPU in this build",
    "out_of_resources": "kernel launch needs more resources than the GPU has",
    "fork_after_init": "CUDA used in a forked process",
    "cuda_error": "CUDA error",
    "not_cuda": "no CUDA error",
}
KIND_EXPLANATIONS = {
    "device_assert": "The GPU checked a value and it was not allowed (a device-side assert).",
    "illegal_memory_access": "A GPU kernel read or wrote memory that is not its own. Often an "
    "index out of range in an operation without a check, or custom CUDA code.",
    "misaligned_address": "A GPU kernel used an address that does not fit its data type.",
    "illegal_instruction": "The GPU met an instruction that it cannot run.",
    "launch_failure": "A GPU kernel crashed; CUDA does not say how.",
    "launch_timeout": "A GPU kernel ran longer than the driver of a display GPU allows.",
    "hardware_error": "The GPU reported a hardware fault.",
    "ecc_error": "The GPU found a memory error that it cannot correct: hardware, not your code.",
    "library_error": "A CUDA library (cuBLAS, cuDNN, NCCL …) failed.",
    "out_of_memory": "The GPU had no room for this allocation. Free tensors or make the batch "
    "smaller.",
    "no_kernel_image": "This build of PyTorch has no code for this GPU.",
    "out_of_resources": "The kernel asked for more threads, registers or shared memory than exist.",
    "fork_after_init": "CUDA was already in use when this process was forked. Start workers with "
    "`spawn`.",
    "cuda_error": "CUDA reported an error.",
    "not_cuda": "There is no CUDA error in this text.",
}
ASSERT_UNKNOWN = "Not in the catalogue; shown as CUDA printed it."
ASSERT_NOT_SEEN = "The text of the assertion was not captured, so which check failed is not known."
ASSERT_THREADS = "{count} GPU threads hit it{first}"
ASSERT_ONE_THREAD = "1 GPU thread hit it{first}"
ASSERT_FIRST = "; the first: block {block}, thread {thread}"

ONE_LINE_TITLE = "CUDA: {title}{what}."
FAILURE_TITLE = "CUDA: {title}"
ONE_LINE_IN = " in {operations}"
ONE_LINE_SIMULATED = "simulated device"
ONE_LINE_DEAD = "This kernel's CUDA context is dead."
ONE_LINE_PLACE = "The line below is only where Python noticed; details under the traceback."
ONE_LINE_NO_PLACE = "Noticed when the cell had ended; details below."
ONE_LINE_BLOCKING = (
    "Launches were blocking, so the line below is the one. Details under the traceback."
)
ONE_LINE_DETAILS = "Details under the traceback."
ONE_LINE_GUARD_CPU = "A GPU would have asserted on it."
ONE_LINE_GUARD = "Stopped before the launch: the CUDA context is alive."
INNOCENT = (
    "This kernel's CUDA context is dead since cell [{cell}]; nothing is wrong with this cell."
)
INNOCENT_UNKNOWN = (
    "This kernel's CUDA context was dead before this cell; nothing is wrong with this cell."
)
INNOCENT_NEXT = "To go on, restart the kernel: `%cuda_debug restart`."

NOTICED_ASYNC = (
    "Only where Python noticed. The GPU works behind Python's back (asynchronous launches): the "
    "cause is at this line or before it."
)
NOTICED_BLOCKING = "Launches were blocking, so this is the line that launched the failing kernel."
CONTEXT_UNKNOWN = "Whether the CUDA context is dead cannot be told from this text."
SWALLOWED = "An except in this cell swallowed this:"
CONTEXT_GUARD = "Stopped before the launch, so the CUDA context is alive; no restart is needed."
CONTEXT_RESTARTED = "The kernel was restarted and its CUDA context is alive."
IN_CHILD = "It happened in a child process (a DataLoader worker, for example)."
NO_CUDA_IN_TEXT = "No CUDA error found in this text."
CHECKED_GOOD = "Nothing out of range: {count} {tensors} checked"
CHECKED_BAD = "{bad} of {count} checked {tensors} {hold} values out of range"

FINDING_TITLE = (
    "{count} of {total} {values} in {name:code} {verb} out of range for {operation:code}"
)
FINDING_TITLE_RULE = "{count} of {total} {values} in {name:code} {verb} outside the rule"
FINDING_TITLE_HOLDER = (
    "{count} of {total} {values} made from {name:code} {verb} out of range for {operation:code}"
)
HELD_AT = "holds them at {positions}"
FINDING_TITLE_PLAIN = "{name:code} is out of range for {operation:code}"
ALLOWED = "{low} to {high}, both included"
ALLOWED_FROM = "{low} or more"
ALLOWED_TO = "{high} or less"
ALLOWED_NOTHING = "nothing: there is no valid value, the dimension has size 0"
ALLOWED_SPECIAL = "; also {values}"
BAD_AT = "{value} at {positions}"
AND_MORE = "and {count} more"
NAN_COUNT = "{count} NaN"
ALL_NAN = "all NaN"
CERTAIN = "Certain: no lost value took part in it."
CERTAIN_RULE = "Certain: these are the values of the batch."
CERTAIN_GUARD = "Certain: these are the values that were about to go to the GPU."
CERTAIN_GUARD_CPU = "Certain: these are the values of this call."
ORIGIN_RANGE = "{low} to {high}"
ORIGIN_WITH_NAN = " and {count} NaN"
MORE_FINDINGS = "and {count} more"
MORE_FINDING = "{count} of {total} values of {name} in {operation}"
MORE_ALLOWED = "allowed: {limits}"
PLACE_OF = "{line} of {function}"
NOT_CERTAIN_NOTE = "Not certain: see the note."
NOT_CERTAIN = (
    "Not certain: values that lived only on the GPU are lost and were replaced by zeros, and this "
    "finding depends on them."
)

REPLAY_TITLES = {
    "raised": "The replay raised, but not because of an operand",
    "clean": "The replay found nothing wrong",
    "inconclusive": "The replay cannot tell",
    "crashed": "The replay process crashed",
    "timed_out": "The replay ran out of time",
    "cancelled": "The replay was cancelled",
}
REPLAY_TEXTS = {
    "raised": "On the CPU the cell stops with the error below. It may be the same mistake.",
    "clean": "Ruled out: an index or label out of range in the operations that are checked, with "
    "the values of this run. Not ruled out: overflow in half precision, custom CUDA code, a race "
    "between kernels, hardware.",
    "inconclusive": "It did not find the cause, and it does not rule one out.",
    "crashed": "This says nothing about your code. The kernel itself is untouched.",
    "timed_out": "It was stopped after {seconds} s without an answer. The kernel itself is "
    "untouched.",
    "cancelled": "Nothing was changed.",
}
REPLAY_RULED_OUT = (
    "Ruled out: an index or label out of range in the operations that are checked, with the values "
    "of this run."
)
OPEN_RANDOM = "The cell draws from the GPU's random generator; a replay draws other numbers."
OPEN_SUBSTITUTES = (
    "Values that lived only on the GPU were replaced by zeros, so what the cell computes from them "
    "was not the same."
)
OPEN_PRECISION = (
    "The cell computes in {dtypes}, which the CPU rounds otherwise: an overflow or a close decision "
    "may fall the other way."
)
OPEN_COMPILED = "torch.compile makes kernels of its own; the replay ran the code without them."
OPEN_EARLIER = (
    "The error may be of a kernel that an earlier cell launched: the GPU reports late, and the fence "
    "is off."
)
OPEN_KINDS = {
    "device_assert": "The GPU met other values than this run, or a kernel overwrote memory that is not its own.",
    "illegal_memory_access": "Custom CUDA code, a library, or a race between kernels: this error "
    "needs no bad operand.",
    "misaligned_address": "Custom CUDA code or a library: this error needs no bad operand.",
    "illegal_instruction": "Custom CUDA code or the GPU itself: this error needs no bad operand.",
    "launch_failure": "Custom CUDA code or a library that crashed: this error needs no bad operand.",
    "launch_timeout": "A kernel that only took too long: this error needs no bad operand.",
    "library_error": "The CUDA library failed on its own: memory, version or hardware.",
    "hardware_error": "The GPU reported a hardware fault, which no data causes.",
    "ecc_error": "The GPU reported a memory fault, which no data causes.",
}
REPLAY_RERUN_CLEAN = "The cell ran through in the restarted kernel."
SUBSTITUTED = "Some values lived only on the GPU and are lost with it; zeros stood in for them."
DOUBT_OPERATION = (
    "What the GPU printed is about {operations}: this may be a second mistake, not the one it "
    "died of."
)
DOUBT_CHANGED = (
    "The cell had changed {names} before it failed, so this replay did not start from the values "
    "of then. Restart and replay does."
)
DOUBT_NOT_MET = (
    "The GPU did find a bad value; this replay, which starts from what the failed cell left, did "
    "not meet it again. Restart and replay, or %%cuda_debug on top of the cell, keeps the state "
    "from before it."
)
REPLAY_STATES = {
    "checkpoint": "the state from before the cell",
    "after_failure": "the state that the failed cell left",
    "rerun": "a fresh run of the set-up cells",
    "guard": "a check before the launch",
}
REPLAY_WHERE = {"cpu": "on the CPU", "gpu": "on the GPU, blocking launches"}
REPLAY_HOW = "Replayed {where} in {seconds} s, from {state}."

NEXT_FIX_INNER = "the values that reach line {line} of {function}"
NEXT_FIX_GIVEN = "what {line} passes on"
NEXT_FIX_VALUES = "the values of {name}"
NEXT_FIX_ALIVE = "Fix {line}, then run the cell again."
NEXT_FIX_DEAD = "Fix {line}, restart the kernel (`%cuda_debug restart`), then run the cell again."
NEXT_REPLAY = (
    "**Replay on CPU** (`%cuda_debug replay`): names the line and the values, in a copy of this "
    "kernel. What the cell does to files or network happens again."
)
NEXT_RESTART_AND_REPLAY = (
    "**Restart and replay**: a fresh kernel, the set-up cells again, then this cell, checked. The "
    "button shows first what is lost; `%cuda_debug restart` does it at once."
)
NEXT_RESTART_ON_GPU = (
    "**Restart and replay**: the set-up cells again, then this cell on the GPU, with blocking "
    "launches and its operands checked. The button shows first what is lost; `%cuda_debug restart` "
    "does it at once."
)
NEXT_SANITIZER = "Run it as a script under `compute-sanitizer`: it names the kernel and the access."
NEXT_RESTART = "**Restart** (`%cuda_debug restart`): a fresh kernel; the GPU works again."
NEXT_MANUAL_RESTART = "Restart the kernel; until then no CUDA call works."
NEXT_BEFORE = "Put `%%cuda_debug` on top of the cell: it is then checked before the GPU runs it."

LABELS = {
    "what": "What happened",
    "result": "Result",
    "assertion": "Assertion",
    "must_hold": "Must hold",
    "noticed": "Noticed at",
    "context": "CUDA context",
    "lost": "Lost",
    "next": "Next",
    "operand": "Tensor",
    "allowed": "Allowed",
    "bad": "Out of range",
    "rows": "Batch rows",
    "items": "Dataset items",
    "range": "Range",
    "hint": "Hint",
    "holder": "Your tensor",
    "library": "Inside",
    "origin": "Came from",
    "more": "Also bad",
    "open": "Left open",
    "certainty": "How sure",
    "replay": "Replay",
    "exception": "Error",
    "cpu_torch": "CPU torch",
    "note": "Note",
    "message": "Message",
    "advice": "Advice",
    "values": "Values printed",
    "operations": "Operation",
    "checked": "Checked",
    "threads": "Seen by",
    "frames": "Called from",
    "versions": "Versions",
    "positions": "Positions",
    "also": "Also failed",
    "causes": "Likely",
    "printed": "Values",
    "ruled_out": "Ruled out",
}
DETAILS_ASSERTION = "The CUDA error itself"
DETAILS_POSITIONS = "The first {count} of {total} positions"
DETAILS_ALL_POSITIONS = "All {count} positions"
DETAILS_FRAMES = "How the cell got there"
DETAILS_VERSIONS = "Environment"
DETAILS_TENSORS = "Tensors that the cell used as index, target or probability ({count})"
MORE_ASSERTIONS = "{count} more assertions"
TENSORS_HEAD = (
    "tensor",
    "role",
    "operation",
    "shape",
    "type",
    "min",
    "max",
    "allowed",
    "bad",
    "line",
)
TENSORS_NONE = "No tensor matches."
TENSORS_MORE = "{count} more not shown"
SUBSTITUTE_MARK = "zeros (lost)"
MARKDOWN_TITLE = "CUDA error report"
REPORT_FOOTER = "made by cudassert_ipy"

# --- restart -------------------------------------------------------------------------------------

HANDOFF_IGNORED = "What was saved before the restart is ignored: {reason}."
HANDOFF_MISSING = "the file is missing"
HANDOFF_UNREADABLE = "the file cannot be read ({error})"
HANDOFF_NOT_WRITTEN = "what the restart needs cannot be saved ({error})"
HANDOFF_NO_DIRECTORY = "the Jupyter runtime directory cannot be opened ({error})"
HANDOFF_SHARED_DIRECTORY = "other users can write to the Jupyter runtime directory"
HANDOFF_NOT_A_FILE = "it is not a regular file"
HANDOFF_NOT_OURS = "other users own it or can read it"
HANDOFF_TOO_LARGE = "it is too large"
HANDOFF_TOO_OLD = "it is too old"
HANDOFF_DAMAGED = "it is damaged"
HANDOFF_OTHER_VERSION = "it is from another version of this package"
HANDOFF_OTHER_PROCESS = "it belongs to another process"
HANDOFF_CELL_TOO_LONG = "{cell} is too long to be carried over a restart"

RESTART_FAILED = "The kernel could not be restarted in place and goes on as it was: {reason}."
RESTART_REFUSED_PLATFORM = "this operating system cannot replace a running process"
RESTART_REFUSED_KERNEL = "this kernel ({kernel}) is not ipykernel's own"
RESTART_REFUSED_COMMAND = "the kernel was started in an unknown way"
RESTART_REFUSED_INTERFACE = "this ipykernel lacks {name}"
RESTART_REFUSED_FRONT_END = "a restart in place has not been proven with this front end"
RESTART_REFUSED_VERSION = "a restart in place has not been proven with ipykernel {version}"
RESTART_REFUSED_SHELL = "this shell ({shell}) is not a plain IPython terminal"
RESTART_REFUSED_SCRIPT = "IPython was started with a script or a command, which would run again"
RESTART_REFUSED_THREAD = "a restart has to come from the main thread"

RESUME_CELL = "Running {cell} again"
RESUME_REPLAY = "Replaying {cell}"
RESUME_DONE = "Set-up done: {count} {cells} ran again."
RESUME_NOTHING = "Restarted."
RESUME_FAILED = "Stopped: {cell} failed this time. {left} after it did not run."
RESUME_FAILED_LAST = "Stopped: {cell} failed this time."
RESUME_CANCELLED = "Cancelled after {done} of {total} {cells}."
RESUME_BROKEN = "The restart worked, what was to follow did not: {error}."

STEPS_INTRO = "A restart in place is not possible here: {reason}. Restart by hand:"
STEPS = {
    "jupyter": (
        "Kernel menu: **Restart Kernel…**",
        "Run `%env CUDA_LAUNCH_BLOCKING=1`, then `%load_ext cudassert_ipy`, before anything uses CUDA",
    ),
    "vscode": (
        "Notebook toolbar: **Restart**",
        "Run `%env CUDA_LAUNCH_BLOCKING=1`, then `%load_ext cudassert_ipy`, before anything uses CUDA",
    ),
    "colab": (
        "Runtime menu: **Restart session**",
        "Run `%env CUDA_LAUNCH_BLOCKING=1`, then `%load_ext cudassert_ipy`, before anything uses CUDA",
    ),
    "terminal": (
        "Leave IPython with `exit`",
        "Start it again: `CUDA_LAUNCH_BLOCKING=1 ipython --ext cudassert_ipy`",
    ),
    "headless": (
        "Restart the kernel",
        "Run `%env CUDA_LAUNCH_BLOCKING=1`, then `%load_ext cudassert_ipy`, before anything uses CUDA",
    ),
}
STEPS_PENDING = (
    "Run `%cuda_debug restart`: the recorded cells run again and the failing cell is replayed"
)
STEPS_BY_HAND = "Run the cells before the failing one, then the failing one under `%%cuda_debug`"

# --- panel ---------------------------------------------------------------------------------------

BUTTON_REPLAY = "Replay on CPU"
BUTTON_REPLAY_WHOLE = "Replay the whole cell"
TOOLTIP_REPLAY_WHOLE = (
    "Runs the whole cell, not only the body of its loop, with as much time as it needs. What the "
    "cell does to files or network happens again."
)
OUTPUT_SUMMARY = "Output of the replay"
OUTPUT_LEFT_OUT = "… {count} characters left out …"
NOTHING_PRINTED = "The last replay printed nothing."
BUTTON_RESTART_AND_REPLAY = "Restart and replay"
BUTTON_RESTART = "Restart"
BUTTON_REPORT = "Report"
BUTTON_REPORT_HIDE = "Hide report"
BUTTON_CANCEL = "Cancel"
BUTTON_CONFIRM = "Restart now"
BUTTON_BACK = "Back"
BUTTON_PLAIN = "Restart without blocking launches"
TOOLTIP_REPLAY = (
    "Runs the cell once more in a copy of this kernel, on the CPU. What the cell does to files or "
    "network happens again."
)
TOOLTIP_RESTART_AND_REPLAY = "Shows first what runs again and what is lost."
TOOLTIP_RESTART = "Shows first what runs again and what is lost."
TOOLTIP_REPORT = (
    "A text to copy into an issue. Look through it first: it has your source lines and values."
)
REPORT_PREVIEW = (
    "Read it before you paste it anywhere: it contains your source lines and tensor values."
)
BLOCKING_BADGE = (
    "Blocking launches are on (`CUDA_LAUNCH_BLOCKING=1`): exact error lines, slow GPU work."
)
PLAN_TITLE = "Restart this kernel"
PLAN_RUNS = "Runs again, in this order. Untick what is not needed:"
PLAN_RUNS_NONE = "No cell will run again."
PLAN_LOST = "Lost with the restart:"
PLAN_LOST_GPU = "every tensor on the GPU"
PLAN_LOST_VARIABLE = "{name:code} ({type}, {size})"
PLAN_LOST_UNSIZED = "{name:code} ({type})"
PLAN_LOST_CHILD = "child process {name:code} ends"
PLAN_MORE = "{count} more variables"
PLAN_EARLIER = "{count} earlier cells run first, as recorded."
PLAN_LONG = "long"
PLAN_SHELL_ONLY = "shell only"
PLAN_SECONDS = "{seconds} s"
PLAN_TOTAL = "{count} of {total} cells, about {seconds} s"
FILTER_ROLE = "Role"
FILTER_ALL = "all"
FILTER_BAD = "only out of range"

# --- checks: hints and the text of OperandError -------------------------------------------------

HINT_EMPTY = "The indexed dimension has size 0: there is nothing that an index could select."
HINT_LABELS_FROM_ONE = (
    "The labels run from 1 to {classes}; classes are counted from 0. Subtract 1 from the labels."
)
HINT_OFF_BY_ONE = {
    "embedding": "Off by one: with {size} rows the last id is {last}. Make the table {needed} "
    "rows long, or count ids from 0.",
    "target": "Off by one: with {size} classes the last label is {last}. Give the model "
    "{needed} outputs, or count labels from 0.",
    "label": "Off by one: with {size} classes the last label is {last}.",
    "index": "Off by one: with size {size} the last index is {last}.",
    "gather": "Off by one: with size {size} the last index is {last}.",
}
HINT_UNIGNORED_LABEL = (
    "{label} is not ignored here: ignore_index is {ignore_index}. Pass ignore_index={label}, or mark "
    "such labels with {ignore_index}."
)
HINT_NO_LABEL = "255 often marks 'no label': pass ignore_index=255 to the loss."
HINT_GRAY_LABELS = (
    "The labels are only 0 and 255, like the gray values of a mask image: make them class numbers "
    "(labels // 255), or pass ignore_index=255 if 255 marks 'no label'."
)
HINT_NEGATIVE = {
    "embedding": "Negative ids are not allowed in an embedding. Look for a marker of "
    "padding, of an unknown word or of a missing category.",
    "target": "Negative labels are not allowed, except ignore_index.",
    "label": "Negative labels are not allowed here.",
    "index": "Negative indices count from the end, down to {low}.",
    "gather": "Negative indices are not allowed here.",
}
HINT_TOO_LARGE = {
    "embedding": "The table has {size} rows; the largest id needs {needed}. Compare num_embeddings "
    "with what the ids count: a vocabulary with its added tokens, positions, categories.",
    "target": "The logits have {size} classes; the largest label needs {needed}. Compare the "
    "model's number of outputs with the number of classes.",
    "label": "There are {size} classes; the largest label needs {needed}.",
    "index": "The indexed dimension has size {size}.",
    "gather": "The indexed dimension has size {size}.",
}
HINT_POSITIONS = (
    "These look like positions: they need {needed} places, and there are {size}. Shorten the sequence "
    "(truncate to {size}, generate fewer tokens), or make room for more positions."
)
HINT_NAN_AS_INTEGER = (
    "-9223372036854775808 is what NaN becomes as an integer: look at the float that was converted."
)
HINT_NOT_FINITE = (
    "Look for where the first NaN or infinity was made: an overflow in float16, log(0), 0 / 0, "
    "softmax over a row of -inf."
)
HINT_LOGITS = (
    "These look like logits. Use binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), or apply "
    "sigmoid first."
)
ORIGIN_BATCH = "the batch of the DataLoader"
ORIGIN_BORN = "in range before this operation, out of range after it"
ORIGIN_CAN = "it can give {low} to {high}"
ORIGIN_NAN = "{count} NaN became {dtype} here ({value} on this CPU; a GPU may give another number)"
ORIGIN_WRAPPED = "these values do not fit: {dtype} holds {least} to {most}"
OPERAND_HEADLINE = "{operation}: {count} of {total} values of {what} are outside {valid}."
OPERAND_HEADLINE_ONE = "{operation}: 1 of {total} values of {what} is outside {valid}."
OPERAND_HEADLINE_ONLY = "{operation}: 1 of 1 value of {what} is outside {valid}."
OPERAND_HEADLINE_RULE = (
    "{operation}: {what} breaks a rule in {count} of {total} values. Rule: {requirement}."
)
OPERAND_VALID = "{low} to {high}"
OPERAND_VALID_FROM = "the valid range ({low} or more)"
OPERAND_VALID_TO = "the valid range ({high} or less)"
OPERAND_VALID_SPECIAL = "{low} to {high} (or {special})"
OPERAND_VALUES = "  {value} at {position}"
OPERAND_MORE = "  ... and {count} more"
OPERAND_TENSOR = "  operand {operand}: shape {shape}, {dtype}, values from {minimum} to {maximum}"
OPERAND_TENSOR_NAN = "  operand {operand}: shape {shape}, {dtype}, all NaN"
OPERAND_TENSOR_PLAIN = "  operand {operand}: shape {shape}, {dtype}"
OPERAND_WHERE = "  where   {place}"
OPERAND_CALLED_FROM = "          called from {place}"
OPERAND_PLACE = "line {line}"
OPERAND_PLACE_FUNCTION = " of {function}"
OPERAND_PLACE_FILE = " in {file}"
OPERAND_PLACE_SOURCE = ": {source}"
OPERAND_MADE_FROM = "{operand} (made from `{expression}`)"
OPERAND_HOLDER = "  yours   {expression}: shape {shape}, {dtype}, holds them at {positions}"
OPERAND_LIBRARY = "  in      {place}"
OPERAND_HINT = "  hint    {hint}"
OPERAND_SUBSTITUTE = "  note    these values are partly substitutes: the real ones were lost."

# --- reproducer ------------------------------------------------------------------------------------

SCRIPT_HEAD = ("Minimal reproducer of a bad operand, made by cudassert_ipy.",)
SCRIPT_EXPECTED = (
    'On CUDA the kernel asserts on it (or goes wrong in silence); with device = "cpu" PyTorch',
    "raises an ordinary exception where its CPU kernel checks the operand. What is wrong:",
)
SCRIPT_SUBSTITUTES = "The values are partly substitutes: the real ones were lost with the context."
SCRIPT_ODD = "the call has arguments that cannot be written down as a script"
SCRIPT_NO_PYTHON = "the cells are not plain Python"
SCRIPT_AWAITS = "a cell awaits outside a function, which a script cannot"
SCRIPT_IPYTHON = "a cell calls get_ipython(), which only a notebook has"
SCRIPT_NOT_CUT = "`{what}` hides which names it makes or reads, so nothing was left out"
SCRIPT_TOO_LONG = "it would be too long"
SCRIPT_CELLS_HEAD = (
    "The cells that lead to a bad operand, made by cudassert_ipy. Versions: {versions}"
)
REPRO_NOTHING = "There is nothing to reproduce: no cell has failed of a CUDA error yet."
REPRO_RUNS = (
    "The cells that are needed run again in a fresh process, on the CPU: what they do to files or "
    "network happens again."
)
REPRO_PROGRESS_CELLS = "Trying the cells that are needed"
REPRO_PROGRESS_ALL = "Trying all cells"
REPRO_PROGRESS_OPERATION = "Trying the one operation"
REPRO_BECAUSE = "a script was tried"
REPRO_OPERATION = "One operation:"
REPRO_CELLS = "The cells:"
REPRO_CELLS_KEPT = "{kept} of {total} statements."
REPRO_ALL_CELLS = "All cells: with fewer statements it was not reproduced."
REPRO_ALL_NEEDED = "All cells: every statement may be needed."
REPRO_VERIFIED = (
    "Verified: run on the CPU with a stand-in device, it raises the same finding (not checked on a "
    "GPU)."
)
REPRO_FOUND = (
    "Run on the CPU with a stand-in device, it raises this finding (not checked on a GPU)."
)
REPRO_OTHER_VALUES = (
    "Run on the CPU with a stand-in device, it raises a finding for the same operation and operand, "
    "with other values (random data, or data that changed)."
)
REPRO_NOT_REPRODUCED = "Not reproduced: {why}"
REPRO_WHY_CLEAN = "the script ran through without a bad operand."
REPRO_WHY_OTHER = "it found another bad operand ({operation})."
REPRO_WHY_ENDED = "the script did not get there ({outcome}{exception})."
REPRO_NOT_WRITTEN = "Not written: {why}."
REPRO_NO_CALL = "no bad operand is known; run `%cuda_debug replay` first"
REPRO_EXISTS = "{file} exists already; it was not overwritten. Give another name."
REPRO_NO_FILE = "cannot write {file}: {error}"
REPRO_WRITTEN = "Written to {file}. {status}"
REPRO_HIDDEN = (
    "`%config CudaDebug.show_values = False` keeps values out of the notebook, and a reproducer is "
    "made of them. Name a file: %cuda_debug repro FILE"
)
REPRO_NOTHING_WRITTEN = "No script could be made, so nothing was written."
BUTTON_REPRODUCE = "Reproducer"
BUTTON_REPRODUCE_GO = "Run and write"
BUTTON_REPRODUCE_HIDE = "Hide reproducer"
TOOLTIP_REPRODUCE = "A short script that shows the mistake, tried on the CPU before it is shown."
HELP_CELLS = "With repro FILE: write the cells, not the one operation."

# --- check_batch and scan -------------------------------------------------------------------------

BATCH_GOOD = "No bad values: {count} {tensors} checked."
BATCH_NOTHING = "Nothing was checked."
BATCH_MORE = "... and {count} more tensors with bad values"
BATCH_UNCHECKED = "Not checked: {names}."
BATCH_UNREADABLE = "{part} of the batch cannot be read ({error})."
RULE_BOUND = "A bound of a rule must be a number, not {bound}."
RULE_ONLY_NAN = "A rule with nan=True needs low <= high: it would allow nothing but NaN."
RULE_UNKNOWN = (
    "{rule} is not a rule. Write range(10) or 10 for 0 to 9, (low, high) with both ends included, "
    "or cudassert_ipy.Rule(low, high, ignore=-100)."
)
RULE_KEY = "{key} is not a key path: write a string, a position, or a tuple of them."
RULE_NOT_FOUND = "The batch has no tensor {key}. It has {names}."
RULE_NUMBER = " Write the number {number} instead of the string {key}."
RULE_NOTHING = "The batch has no tensor {key}, nor any other tensor."
RULE_NO_TENSOR = "{part} is a {kind} without tensors or numbers: no rule can be about it."
RULE_TOO_LARGE = "{part} is a {kind} that is too large or too deep to check: name its parts."
RULE_FAILED = (
    "The function that makes a rule failed ({error}). A function is given the batch and returns a "
    "rule; to see what a model needs, give the model itself, and call=... to say how it is called."
)
RULE_OF_FUNCTION = (
    "The function was taken for one that makes a rule, but it gave a {kind}. To see what a model "
    "needs, give the model itself, and call=... to say how it is called. {error}"
)
RULES_EMPTY = "There are no rules: nothing would be checked."
SCAN_GOOD = "No bad values in {batches} batches."
SCAN_BAD = "{bad} bad {values} in {bad_batches} of {batches} batches."
SCAN_END = {
    "complete": "",
    "stopped": " Stopped at the first bad batch.",
    "interrupted": " Interrupted before the end.",
}
SCAN_COLUMNS = ("batch", "row", "tensor", "bad values", "valid range", "sample")
SCAN_OF = ", … ({count})"
SCAN_ONE_OF = "one of {samples}"
SCAN_MORE = "... and {count} more tensors with bad values"
SCAN_WITHOUT_RULE = "The model tells no rule for {names}: not checked."
SCAN_UNCHECKED = "Not everything was checked: {names}."
SCAN_UNCHECKED_IN = "{name} in {count} batches"
SCAN_PROBLEM = "batch {batch}: {error}"
SCAN_ERROR_IN = "Raised by the loader while scan waited for batch {batch} (counted from 0)."
SCAN_PROGRESS = "scan: {count:,}{total} batches, {bad:,} bad values"
SCAN_NO_LOADER = "Dataset indices are not known: this is not a torch DataLoader."
SCAN_ITERABLE = "Dataset indices are not known: an IterableDataset has none."
SCAN_OWN_ITERATION = "Dataset indices are not known: {kind} has its own way to iterate."
SCAN_NOT_IN_ORDER = "Dataset indices are not known: with in_order=False batches come in any order."
MODEL_BATCH = "No rules can be derived: the batch has no tensors, or is too large or too deep."
MODEL_COPY = "The model cannot be copied to try it ({error}). Give rules instead of the model."
MODEL_COPY_BATCH = (
    "The batch cannot be copied to try the model on it ({error}). Give rules instead."
)
MODEL_FAILED = (
    "The model did not run on a copy of the batch on the CPU ({error}). "
    "Say how to call it, call=lambda model, batch: ..., or give rules instead of the model."
)
MODEL_ARGUMENTS = (
    "The model also needs {names}, which the batch does not have. "
    "Say how to call it: call=lambda model, batch: ..."
)
MODEL_CLASSES = (
    "classes=... is about one integer tensor that the model is not given; this batch has {count}. "
    "Give a rule for the labels instead."
)
MODEL_LABELS = "0 <= target < {classes}, the number of classes, or target == ignore_index"

# --- decode --------------------------------------------------------------------------------------

NO_EXCEPTION = "expected an exception, not {type}; explain(text) reads texts"
ADVICE_CAUSES = "Typical causes, most frequent first: {causes}."
ADVICE_CAUSES_AND_REMEDY = f"{ADVICE_CAUSES} For the first: {{remedy}}."
ADVICE_FIND_ASSERTION = (
    "Look on stderr (in Colab: in the runtime's log) for a line with 'Assertion', which says what"
    " was checked; or run the step on the CPU, where most bad indices, labels and probabilities"
    " raise a clear error."
)
ADVICE_UNKNOWN_ASSERTION = (
    "This check is not one of PyTorch's that are known here: read its condition, or run the step on"
    " the CPU or without torch.compile, which may raise a clear error."
)
ADVICE_OWN_KERNEL = (
    "It is a check in your own or a third-party kernel, {place}: read there what it requires."
)
ADVICE_COMPILED = (
    "It is a check in code generated by torch.compile: run the step without torch.compile, which may"
    " raise a clearer error."
)
ADVICE_INTERNAL = (
    "This check guards an assumption of the library itself, so your values need not be at fault:"
    " try the step without torch.compile, or another version of the library."
)
ADVICE_OWN = "The program itself asked for this check (torch._assert_async or a kernel of its own)."
ADVICE_RESTART = (
    "Restart the kernel (or the process): nothing else revives a dead CUDA context, neither"
    " empty_cache() nor del or gc.collect()."
)
ADVICE_RESTART_OTHER = (
    "Restart the kernel (or the process): after this error the GPU cannot be used again in it."
)
_ONLY_NOTICED = "The traceback's line is only where Python noticed; "
_LINE_OPENINGS = {True: _ONLY_NOTICED + "for the exact one, ", False: "To see the line at fault, "}
_LINE_VARIABLES = {"cuda": "CUDA_LAUNCH_BLOCKING", "hip": "AMD_SERIALIZE_KERNEL"}
_LINE_VALUES = {"cuda": "1", "hip": "3"}
_LINE_HOW = {
    "notebook": (
        "set {name}={value} after the restart and before the GPU is used: `%env {name}={value}` in"
        " the first cell (`!export` has no effect)."
    ),
    "shell": "put {name}={value} in front of the command.",
    "windows": (
        "first type `set {name}={value}` (in PowerShell: `$env:{name}={value}`), then the command."
    ),
}
ADVICE_EXACT_LINE = {
    (platform, where, traceback): opening
    + how.format(name=_LINE_VARIABLES[platform], value=_LINE_VALUES[platform])
    for platform in _LINE_VARIABLES
    for where, how in _LINE_HOW.items()
    for traceback, opening in _LINE_OPENINGS.items()
}
"""By platform, by where the program ran, and by whether there is a traceback."""
ADVICE_EXACT_LINE_XPU = "The traceback's line is only where Python noticed, not where it happened."
ADVICE_EXACT_LINE_DISTRIBUTED = {
    True: _ONLY_NOTICED + "CUDA_LAUNCH_BLOCKING=1, which would show the exact one, may hang with"
    " NCCL or DataParallel: use it in a run on one GPU.",
    False: "CUDA_LAUNCH_BLOCKING=1, which would show the line at fault, may hang with NCCL or"
    " DataParallel: use it in a run on one GPU.",
}
ADVICE_BLOCKING_SET = (
    "CUDA_LAUNCH_BLOCKING=1 seems to be set: if it was set before CUDA was used, the traceback's"
    " line is right."
)
ADVICE_BLOCKING_LOST = (
    "CUDA_LAUNCH_BLOCKING=1 seems to be set, but the line about asynchronous errors says that the"
    " process did not have it: set before CUDA is used, it makes the traceback's line right."
)
ADVICE_DSA = "Ignore TORCH_USE_CUDA_DSA: as an environment variable it does nothing."
ADVICE_CHILD = "It happened in a child process; the CUDA context of this process is not affected."
ADVICE_ENGINE = (
    "It happened in the engine's process: restart the server (or the engine) as a whole."
)
ADVICE_LATER = (
    "Later in the log: {exception}. If the program went on after the error above, that ended it."
)
ADVICE_EARLIER = "Earlier, the log warned of a lack of GPU memory ({message})."
ADVICE_OTHER_FAILURE = (
    "The log has another failure ({failure}): of another process, or of a later run; if the first"
    " is fixed, it is the one that counts."
)
ADVICE_FOR_A_LOG = (
    ADVICE_RESTART,
    ADVICE_RESTART_OTHER,
    ADVICE_CHILD,
    ADVICE_EXACT_LINE_XPU,
    ADVICE_BLOCKING_SET,
    ADVICE_BLOCKING_LOST,
    *ADVICE_EXACT_LINE_DISTRIBUTED.values(),
    *ADVICE_EXACT_LINE.values(),
)
ADVICE_ALIVE = "No restart is needed: this error leaves the CUDA context alive."
ADVICE_UNSURE = (
    "This error alone does not tell whether the CUDA context is alive: if torch.cuda.synchronize()"
    " raises too, restart."
)
ADVICE_UNSURE_XPU = (
    "This error alone does not tell whether the GPU can still be used: if torch.xpu.synchronize()"
    " raises too, restart."
)
ADVICE_REFUSED = (
    "The call itself was refused before anything ran on the GPU: look at what it was given, at the"
    " traceback's line."
)
ADVICE_NOT_STARTED = (
    "CUDA did not start, so no context is lost and nothing in your tensors is at fault. Look at"
    " `nvidia-smi`, the driver's version and CUDA_VISIBLE_DEVICES; then start a new process."
)
ADVICE_FORK_SUSPECTED = (
    "In a process that was forked (a DataLoader worker, multiprocessing) this means that CUDA was"
    " used before the fork: start it with the 'spawn' method."
)
ADVICE_DRIVER_LOST = (
    "If `nvidia-smi` fails as well, or this began after the computer slept, a restart of the kernel"
    " is not enough: reload the driver (nvidia_uvm) or restart the machine."
)
ADVICE_CAPTURE = (
    "No restart is needed: an operation that a CUDA graph cannot record ran while one was recorded"
    " (a copy to the CPU, .item(), print)."
)
ADVICE_XPU_LOST = (
    "The driver lost the GPU: a kernel hung, crashed or ran out of memory. Try a smaller batch and"
    " a newer driver."
)
ADVICE_ROCM_ABORT = "ROCm ends the process at such an error: start it again."
POSSIBLE_BUG = "One possibility, if the data is good: {bug}"
ADVICE_BY_KIND = {
    "illegal_memory_access": (
        "A kernel used memory outside its tensors, for which no assertion is printed: suspect"
        " custom kernels, bad indices in operations without a check (ctc_loss, sparse tensors), or"
        " a library's bug. `compute-sanitizer python script.py` names the kernel."
    ),
    "misaligned_address": (
        "A kernel used a misaligned address: a bug in a custom kernel or a library, rarely your"
        " data. `compute-sanitizer python script.py` names the kernel."
    ),
    "illegal_instruction": (
        "A kernel was broken or built for another GPU: suspect custom kernels and the driver, not"
        " your data."
    ),
    "launch_failure": (
        "A kernel crashed without saying why: suspect custom kernels, memory errors and the driver."
        " `compute-sanitizer python script.py` names the kernel; if `nvidia-smi` shows ERR, restart"
        " the machine."
    ),
    "launch_timeout": (
        "A kernel ran longer than the system allows on a GPU that also drives a display: use smaller"
        " batches, another GPU, or raise the limit (on Windows: TdrDelay)."
    ),
    "hardware_error": (
        "Not your code: suspect the GPU, its link or its driver. Look at `dmesg` (Xid) and"
        " `nvidia-smi -q`; if it comes back, use another GPU."
    ),
    "ecc_error": (
        "Not your code: the GPU's memory failed. Look at `nvidia-smi -q -d ECC`; another GPU or a"
        " reset of this one is needed, a restart of the kernel alone may not help."
    ),
    "out_of_memory": (
        "No restart is needed: free tensors that you do not need (an exception's traceback "
        "keeps its tensors alive), or use a smaller batch."
    ),
    "no_kernel_image": (
        "No restart is needed for the GPU: this build of PyTorch or of an extension has no code for"
        " it. Install one that has; compare torch.cuda.get_arch_list() with"
        " torch.cuda.get_device_capability()."
    ),
    "out_of_resources": (
        "No restart is needed: a kernel asks for more threads, registers or shared memory "
        "than this GPU has. Use smaller blocks."
    ),
    "fork_after_init": (
        "No restart is needed: CUDA was used before a fork. Start the workers with the "
        "'spawn' method, or do not touch CUDA in them."
    ),
}
ADVICE_BY_CODE = {
    9: (
        "A kernel was launched with a grid or block that the GPU cannot have: often an empty or a"
        " huge tensor, or a bug of the kernel. Print the shapes at the traceback's line."
    ),
    35: (
        "CUDA did not start: the driver is too old for this build of PyTorch. Update the driver, or"
        " install a build for an older CUDA; `nvidia-smi` shows the newest that the driver can run."
    ),
    46: (
        "The GPU was refused to this process, so no context is lost: another process may hold it"
        " alone (compute mode 'Exclusive Process'), or it hangs. Look at `nvidia-smi`."
    ),
    100: (
        "CUDA found no GPU: look at `nvidia-smi` and CUDA_VISIBLE_DEVICES; in Colab choose a runtime"
        " with a GPU, in a container pass the GPU on (`--gpus all`)."
    ),
    101: (
        "There is no GPU with this number: with n GPUs they are cuda:0 to cuda:(n-1). Compare it"
        " with torch.cuda.device_count(); CUDA_VISIBLE_DEVICES renumbers them."
    ),
}
ADVICE_SOME_LIBRARY = "a CUDA library"
ADVICE_LIBRARY = (
    "The error of {library} alone does not tell the cause: it may follow a device-side assert, or a"
    " shortage of memory. What decides: a line with 'Assertion' earlier on stderr, the free memory"
    " in `nvidia-smi`, and whether torch.cuda.synchronize() raises too (then restart)."
)
ADVICE_LIBRARY_MEMORY = (
    "Suspect a lack of GPU memory for {library} first, then a bad index or label before it. What"
    " decides: the free memory in `nvidia-smi`, a line with 'Assertion' earlier on stderr, and"
    " whether torch.cuda.synchronize() raises too (then restart)."
)
ADVICE_NCCL = (
    "The error of NCCL alone does not tell the cause: read the first error in the logs of all ranks;"
    " with NCCL_DEBUG=INFO, NCCL says more."
)
ADVICE_NCCL_REMOTE = (
    "Another rank died or the network failed: read the first error in the other ranks' logs."
)
ADVICE_NCCL_TIMEOUT = (
    "A collective operation of NCCL waited too long: another rank died, hung, was much slower, or"
    " took another path in the program. Read the first error in the other ranks' logs."
)
ADVICE_MEMORY_OF_RANK = (
    "A rank ran out of memory: the whole job has to be started again, with a smaller batch per GPU,"
    " or the model sharded."
)
ADVICE_FRAGMENTED = (
    "PyTorch holds more unused memory than it was asked for, in pieces: try"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set before the start."
)
ADVICE_NOT_CUDA = {
    "NVIDIA driver on your system is too old": (
        "CUDA did not start: update the driver, or install a build of PyTorch for an older CUDA."
    ),
    "Found no NVIDIA driver": (
        "CUDA did not start: this machine has no NVIDIA driver, or the container does not see it"
        " (`--gpus all`); in Colab choose a runtime with a GPU."
    ),
    "Torch not compiled with CUDA enabled": (
        "This build of PyTorch is for the CPU only: install one for CUDA (pytorch.org has the"
        " command)."
    ),
    "Expected all tensors to be on the same device": (
        "An error of the program, not of CUDA: move the model and all its inputs to one device with"
        " .to(device)."
    ),
    "on a CUDA device but torch.cuda.is_available() is False": (
        "There is no GPU here: pass map_location='cpu' to torch.load, or use a machine with one."
    ),
}
ADVICE_BY_KIND_HIP = {
    "launch_failure": (
        "A kernel crashed. On AMD GPUs this may be a failed check of an index or label: run the"
        " same step on the CPU, which raises a clear error for most. Else suspect custom kernels"
        " and the driver."
    ),
    "illegal_memory_access": (
        "A kernel used memory outside its tensors. Many builds for AMD GPUs do not check indices:"
        " run the same step on the CPU, which raises a clear error for most bad ones. Else suspect"
        " custom kernels and the driver."
    ),
    "no_kernel_image": (
        "No restart is needed for the GPU: this build of PyTorch or of an extension has no code for"
        " it. Install one that has; torch.cuda.get_arch_list() shows the supported ones."
    ),
}

BUG_NO_ASSERTS = (
    "torch {version} was built without the checks of CUDA kernels, so a bad index crashes or gives"
    " garbage ({thread}); 1.5.1 has them again."
)
BUG_RANDPERM = (
    "torch.randperm on the GPU may return wrong indices in torch {version} with CUDA 11 ({thread});"
    " make them on the CPU, or use 1.9."
)
BUG_NLL_BACKWARD = (
    "torch {version} reads tensors that are not contiguous wrongly in cross_entropy ({thread}); call"
    " .contiguous() on its input and target, or use 1.10.1."
)
BUG_INDUCTOR = (
    "torch.compile with dynamic shapes may check a good index against a wrong bound in torch"
    " {version} ({thread}); run the step without torch.compile to compare."
)

# --- replay --------------------------------------------------------------------------------------

CHECKPOINT_NO_FORK = "A replay needs a fork and /proc, which this system does not have. Restart and replay works without."
CHECKPOINT_NOT_MAIN_THREAD = "A checkpoint can be taken on the main thread only."
CHECKPOINT_NO_MEMORY = (
    "Memory is too short for a second process: {needed} should be free, {free} are. Free some, or "
    "restart and replay."
)
CHECKPOINT_FORK_FAILED = "The system refused a child process: {error}"
CHECKPOINT_NOT_READY = (
    "The child process for the replay did not come up. The kernel is untouched; try again."
)
CHECKPOINT_GONE = (
    "The checkpoint was used up or its process was ended from outside. Take a new one."
)

REPLAY_PROGRESS = "Replaying on the CPU"
LOOP_PROGRESS_BATCHES = "Replaying the last {count} batches of the loop on the CPU"
LOOP_PROGRESS_ONCE = "Replaying the body of the loop once on the CPU"
LOOP_PROGRESS_WHOLE = "Replaying the whole cell on the CPU"
LOOP_PROGRESS_ABOUT = "{label} (about {seconds})"
LOOP_FOUND_BATCH = "Found in batch {number} (counted from 0) of `{loop}`; its last batches were run again, not the whole cell."
LOOP_BATCH_ITEMS = "That batch was made of dataset items {items}."
LOOP_FOUND_AMONG = "Found in one of the batches {first} to {last} (counted from 0) of `{loop}`, which were run again."
LOOP_FOUND_ELSEWHERE = (
    "Found by running `{loop}` by itself, before it took one of the last batches."
)
LOOP_FOUND_AT = (
    "Found by running the body of `{loop}` once with the variables it failed with: {values}."
)
LOOP_FOUND_ONCE = "Found by running the body of `{loop}` once with the variables it failed with."
LOOP_PROGRESS_FED = "Replaying the cell with the last batches of its DataLoader on the CPU"
LOOP_FED_CELL = "The cell was run again with only the last batches of its DataLoader."
LOOP_FED_BATCH = "Found in batch {number} (counted from 0)."
LOOP_CLEAN_BATCHES = (
    "The last {count} batches of `{loop}` passed every check when they were run again."
)
LOOP_CLEAN_ONCE = (
    "The body of `{loop}`, run once with the variables it failed with, passed every check."
)
LOOP_BROKE_OFF = "Running the body of `{loop}` by itself decided nothing."
LOOP_WHOLE_DONE = "Then the whole cell was replayed."
LOOP_WHOLE_OFFERED = (
    "The whole cell was not replayed: it would take about {seconds}, and a replay ends after {limit}. "
    "Replay the whole cell (%cuda_debug replay --whole) does it with as much time as it needs."
)
LOOP_DID_NOT_RUN = "The loop was over at once, so its body did not run."
REPLAY_PRINTED = "The replayed cell printed something: %cuda_debug report --output shows it."
REPLAY_OUTPUT_CUT = "\n… (output cut)"
REPLAY_TIMED_OUT = (
    "The replay was ended after {seconds:g} s. The kernel is untouched. Give it longer with --timeout, or replay a "
    "smaller part."
)
REPLAY_CRASHED = (
    "The replay's process was ended by {how}. The kernel is untouched. An operation may crash on the CPU as well; "
    "SIGKILL most often means that memory ran out."
)
REPLAY_CRASHED_IN = "The CPU kernel of {what} crashed ({how}){place}. The operations after it were not checked; the kernel is untouched."
REPLAY_CRASHED_OPERATION = "an operation"
REPLAY_CRASHED_PLACE = " in `{source}`"
REPLAY_FOUND_BEFORE = "The check found the bad operand before that."
REPLAY_UNKNOWN_END = "something unknown"
REPLAY_EXITED = "The cell called exit()."
REPLAY_SUBSTITUTE_PASSED = (
    "A checked value held substitutes when it passed: the real ones were on the GPU and are lost. Restart and "
    "replay, or run the cell under %%cuda_debug, to have them checked."
)
REPLAY_SUBSTITUTE_READ = (
    "The cell read whole numbers whose real values were on the GPU and are lost; what it did with them proves nothing. "
    "Restart and replay, or run the cell under %%cuda_debug."
)
REPLAY_DEVICE_DEAD = "The CUDA context is dead: nothing can be copied from it."
REPLAY_EXCEPTION = "The cell stopped with this exception before a check failed; the operations after it were not checked."
REPLAY_NEEDS_SHARED = (
    "The cell uses a pipe, socket or process that belongs to the kernel, which a replay may not touch; the operations "
    "after that were not checked."
)
REPLAY_WORKER_ITERATOR = (
    "The cell goes on with a DataLoader iterator from before, whose worker processes belong to the kernel; a replay "
    "may not take batches from them. Make the iterator in the same cell, or use num_workers=0."
)
REPLAY_OLD_GRAPH = (
    "The cell runs backward through the graph of an earlier cell, which is out of a replay's reach; it stopped "
    "there. Compute the loss and call backward in the same cell to have both checked."
)
REPLAY_NO_BACKWARD = (
    "PyTorch refuses backward in a forked process once a GPU was there, and the replay's own cannot do this one, so it "
    "stopped there; everything before it was checked."
)
REPLAY_IN_BACKWARD = "It is in the backward pass ({node})."
REPLAY_IN_BACKWARD_OF = "It is in the backward pass ({node}) of {place}"
REPLAY_NO_MEMORY = (
    "The replay needs more memory than it may take; the operations after that were not checked."
)
REPLAY_SHARED_TOO_LARGE = (
    "The kernel shares too much memory with other processes for a replay to copy it ({detail})."
)
REPLAY_CANNOT_REPLACE = (
    "A tensor on the GPU has a layout that a replay cannot rebuild on the CPU: {detail}."
)
REPLAY_NOT_SET_UP = "The replay could not be set up: {error}"
REPLAY_CPU_SILENT = "PyTorch on the CPU accepts this operand without an error."
REPLAY_CPU_NOT_ASKED = (
    "PyTorch on the CPU does not check all of this, and was not asked: it might crash."
)

# --- simulator ------------------------------------------------------------------------------------

STANDIN_CANNOT_RUN = (
    "{what} cannot run on the CPU, so nothing after it was checked: run the cell under %%cuda_debug on the GPU, or "
    "restart and replay it on the GPU."
)
STANDIN_GRAPH_REPLAY = "The replay of a CUDA graph"
STANDIN_CUSTOM_OPERATION = "The custom CUDA operation {name}"
STANDIN_TRITON = "The Triton kernel {name}"
STANDIN_PACKAGE = "CUDA code of {name}"
STANDIN_EXTENSION = "The custom CUDA function {name}"
STANDIN_UNNAMED = "A custom CUDA function"
STANDIN_EAGER = "Compiled code and CUDA graphs ran eagerly."
STANDIN_ZERO_DIVISION = (
    "A whole number was divided by zero: the GPU does not fail here and gives an unspecified number, for which -1 "
    "stood in."
)
STANDIN_UPCAST = "Where the CPU has no {dtype} kernel, it computed in float32 instead."

SIMULATED_NAME = "Simulated CUDA device (cudassert_ipy, runs on the CPU)"
SIMULATOR_MAIN_THREAD = (
    "The simulator can be switched {value} only from the main thread: it works in the thread that "
    "switches it on. Run %cuda_debug simulator {value} in a cell."
)

# --- a rerun in a fresh process -----------------------------------------------------------------

RERUN_STARTS = "Starting a fresh Python"
RERUN_DOES_NOT_END = "the fresh process of the replay does not end"
RERUN_NO_PROCESS = "no fresh process could be started ({error})"


def rerun_because(reason: str, counts: Sequence[int]) -> str:
    """Say why a replay was a fresh process, and which cells ran again in it."""
    again = f"{_cells(counts)} ran again there" if counts else "no other cell ran there"
    return f"Replayed in a fresh process because {reason}; {again}."


def rerun_progress(execution_count: int | None) -> str:
    """Say which set-up cell runs."""
    return f"Running {cell(execution_count)} again in a fresh process"


def rerun_setup_failed(execution_count: int | None, error: BaseException) -> str:
    """Say that a cell which had run well failed when it ran again."""
    text = f"{type(error).__name__}: {error}"[:200]
    return f"{cell(execution_count).capitalize()} had run well, but failed in the fresh process: {text}."


def _cells(counts: Sequence[int]) -> str:
    """Return ``cells [1]-[3], [5]``; numbers in a row are shown by their first and last."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and count == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], count]
        else:
            runs.append([count])
    parts = ["-".join(f"[{count}]" for count in run) for run in runs]
    return f"{'cells' if len(counts) > 1 else 'cell'} {', '.join(parts)}"
