"""What a text shows beside the error that the advice depends on: where it ran, and how."""

from __future__ import annotations

import re
from typing import NamedTuple

_NOT_BLOCKING = re.compile(r"(?:CUDA|HIP) kernel errors might be asynchronously reported")
_DSA_HINT = "TORCH_USE_CUDA_DSA"
_DISTRIBUTED = re.compile(
    r"NCCL|nccl|data_parallel\.py|distributed\.py|torch/distributed|in replica \d{1,9} on device"
    r"|torchrun|DataParallel|Process group|DistBackendError"
)
_TORCH_VERSION = re.compile(
    r"(?:(?<![\w/-])torch(?:==|[ :=]{1,3}v?|\s{2,40})|[Pp]y[Tt]orch [Vv]ersion\s?:\s?)"
    r"['\"]?(?P<version>[12]\.\d{1,2}\.\d{1,2}[\w.+]{0,40})"
)
# As a command, a shell's echo of one, IPython's answer to %env, or a printed environment; torch's
# own hint and people's advice name the variable too.
_PROMPT = r"(?:(?:\([\w.-]{1,40}\) ?)?[^\s$#>%]{0,80} ?[$#>%] ?|\++ )?"
_ASSIGNED = r"(?:[A-Z_]{1,40}=\S{0,80} ){0,9}"
_BLOCKING_SET = re.compile(
    rf"{_PROMPT}(?:export|set|setenv) {_ASSIGNED}CUDA_LAUNCH_BLOCKING[= ]1\s*(?:$|[;&])"
    rf"|{_PROMPT}(?:(?:env|sudo|time|nohup) ){{0,3}}{_ASSIGNED}CUDA_LAUNCH_BLOCKING=1 {_ASSIGNED}"
    r"\S{0,200}(?:python|torchrun|accelerate|deepspeed|srun|mpirun|bash|pytest|uv\b|\.sh\b|\.py\b)"
    r"|(?:PS .{0,200}> ?)?\$env:CUDA_LAUNCH_BLOCKING ?= ?['\"]?1"
    r"|env: CUDA_LAUNCH_BLOCKING=1\s*$"
    r"|os\.environ\[['\"]CUDA_LAUNCH_BLOCKING['\"]\] ?= ?['\"]?1\b"
    r"|.{0,2000}?['\"]CUDA_LAUNCH_BLOCKING['\"]: ['\"]1['\"]"
)
_NOTEBOOK = re.compile(r"Cell In ?\[|Input In \[|<ipython-input-|[/\\]ipykernel_\d")
_WINDOWS = re.compile(r"File \"?[A-Za-z]:\\")
_ENGINE = re.compile(r"EngineCore|Engine ?[Cc]ore|EngineDead|LLMEngine")


class Situation(NamedTuple):
    """What else a text shows that the advice depends on."""

    mentions_dsa: bool = False
    """It suggests TORCH_USE_CUDA_DSA."""
    mentions_async: bool = False
    """It has torch's hint about asynchronous errors: that process's launches were not blocking."""
    distributed: bool = False
    """NCCL, DataParallel or DistributedDataParallel is in use, or there are ranks."""
    ranks: bool = False
    """Lines say which rank of a job they are from."""
    torch_version: str | None = None
    blocking_set: bool = False
    """CUDA_LAUNCH_BLOCKING=1 was set somewhere; early enough or not."""
    traceback: bool = False
    notebook: bool = False
    windows: bool = False
    engine: bool = False
    """An inference server speaks of its engine's process."""
    earlier: str = ""
    """A lack of memory that was only logged as a warning."""
    later: str = ""
    """An exception without CUDA that a traceback after the error ends with."""
    other: str = ""
    """Another failure, of another process or a later run."""


def note_line(seen: Situation, line: str) -> Situation:
    """Return ``seen`` with what ``line`` shows beside."""
    if not seen.mentions_async and _NOT_BLOCKING.search(line):
        seen = seen._replace(mentions_async=True)
    if not seen.mentions_dsa and _DSA_HINT in line:
        seen = seen._replace(mentions_dsa=True)
    if not seen.distributed and _DISTRIBUTED.search(line):
        seen = seen._replace(distributed=True)
    if not seen.blocking_set and "LAUNCH_BLOCKING" in line and _BLOCKING_SET.match(line):
        seen = seen._replace(blocking_set=True)
    if not seen.engine and "ngine" in line and _ENGINE.search(line):
        seen = seen._replace(engine=True)
    if seen.torch_version is None:
        version = _TORCH_VERSION.search(line)
        if version:
            seen = seen._replace(torch_version=version["version"])
    return seen


def note_place(seen: Situation, line: str) -> Situation:
    """Return ``seen`` with what ``line``, which names a place in a traceback, shows beside."""
    if not seen.distributed and _DISTRIBUTED.search(line):
        seen = seen._replace(distributed=True)
    if not seen.notebook and _NOTEBOOK.search(line):
        seen = seen._replace(notebook=True)
    if not seen.windows and _WINDOWS.search(line):
        seen = seen._replace(windows=True)
    return seen._replace(traceback=True)


def joined(mine: Situation, other: Situation) -> Situation:
    """Return what either of two texts shows."""
    pairs = zip(mine, other, strict=True)
    return Situation(*((first or second) for first, second in pairs))  # type: ignore[arg-type]
