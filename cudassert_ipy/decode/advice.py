"""What to do next about a failure, and what not to bother with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.decode import codes
from cudassert_ipy.decode.catalog import base_name, catalog
from cudassert_ipy.decode.known_bugs import possible_bugs
from cudassert_ipy.decode.situation import Situation
from cudassert_ipy.provenance import author, library

if TYPE_CHECKING:
    from cudassert_ipy.model import Assertion, Failure

_MAX_CAUSES = 3
_MAX_ADVICE = 4
_INITIALIZATION, _UNKNOWN_ERROR, _CAPTURE = 3, 999, range(900, 909)

# No line of the program is to be found for these.
_NOWHERE = frozenset({"launch_timeout", "hardware_error", "ecc_error"})
_NCCL_REMOTE = re.compile(r"remote process exited|ncclRemoteError")
_NCCL_TIMEOUT = re.compile(r"collective operation timeout")
_LACKS_MEMORY = re.compile(r"_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)")
_SIZE = r"(\d{1,9}(?:\.\d{1,9})?) ([KMG])iB"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_OLD_SIZES = re.compile(rf"{_SIZE} already allocated.{{0,80}}?{_SIZE} reserved in total")
_FACTORS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}


def advice(failure: Failure, *, situation: Situation = Situation()) -> tuple[str, ...]:  # noqa: B008  (immutable)
    """Return sentences, most useful first; for a failure without CUDA often none."""
    if failure.kind == "not_cuda":
        return _without_cuda(failure, situation)
    lines = []
    if failure.process == "child":
        lines.append(messages.ADVICE_ENGINE if situation.engine else messages.ADVICE_CHILD)
    if situation.later and not failure.sticky:
        lines.append(messages.ADVICE_LATER.format(exception=situation.later))
    lines += _of_the_error(failure, situation)
    if situation.other:
        lines.append(messages.ADVICE_OTHER_FAILURE.format(failure=situation.other))
    if failure.sticky and failure.process == "this":
        lines.append(_restart(failure))
        if failure.blocking is not True and failure.kind not in _NOWHERE:
            lines += _exact_line(failure, situation)
    lines += possible_bugs(situation.torch_version, failure)
    if failure.sticky and situation.mentions_dsa:
        lines.append(messages.ADVICE_DSA)
    return tuple(lines[:_MAX_ADVICE])


def _without_cuda(failure: Failure, situation: Situation) -> tuple[str, ...]:
    lines = []
    if situation.earlier:
        lines.append(messages.ADVICE_EARLIER.format(message=situation.earlier))
    lines += [text for words, text in messages.ADVICE_NOT_CUDA.items() if words in failure.message]
    return tuple(lines)


def _of_the_error(failure: Failure, situation: Situation) -> list[str]:
    kind, code = failure.kind, failure.code
    if kind == "device_assert":
        return _of_the_assertion(failure)
    if kind == "library_error":
        return [_of_a_library(failure)]
    if kind == "out_of_memory":
        return _of_memory(failure, situation)
    if failure.platform == "hip" and kind in messages.ADVICE_BY_KIND_HIP:
        return [messages.ADVICE_BY_KIND_HIP[kind]]
    if failure.platform == "xpu" and kind == "launch_failure":
        return [messages.ADVICE_XPU_LOST]
    if kind in messages.ADVICE_BY_KIND:
        return [messages.ADVICE_BY_KIND[kind]]
    if failure.sticky:
        return []
    if code in messages.ADVICE_BY_CODE:
        return [messages.ADVICE_BY_CODE[code]]
    if code == _INITIALIZATION:
        return [messages.ADVICE_FORK_SUSPECTED, messages.ADVICE_NOT_STARTED]
    if code is not None and codes.is_start(code):
        return [messages.ADVICE_NOT_STARTED]
    if code in _CAPTURE:
        return [messages.ADVICE_CAPTURE]
    if failure.sticky is False:
        return [messages.ADVICE_ALIVE, messages.ADVICE_REFUSED]
    lost = [messages.ADVICE_DRIVER_LOST] if code == _UNKNOWN_ERROR else []
    unsure = messages.ADVICE_UNSURE_XPU if failure.platform == "xpu" else messages.ADVICE_UNSURE
    return [*lost, unsure]


def _of_a_library(failure: Failure) -> str:
    message = failure.message
    if _NCCL_REMOTE.search(message):
        return messages.ADVICE_NCCL_REMOTE
    if _NCCL_TIMEOUT.search(message):
        return messages.ADVICE_NCCL_TIMEOUT
    name = library(message)
    if name in ("NCCL", "RCCL"):
        return messages.ADVICE_NCCL
    lacks_memory = _LACKS_MEMORY.search(message)
    template = messages.ADVICE_LIBRARY_MEMORY if lacks_memory else messages.ADVICE_LIBRARY
    return template.format(library=name or messages.ADVICE_SOME_LIBRARY)


def _of_memory(failure: Failure, situation: Situation) -> list[str]:
    lines = [messages.ADVICE_BY_KIND["out_of_memory"]]
    if situation.ranks:
        lines = [messages.ADVICE_MEMORY_OF_RANK]
    if _is_fragmented(failure.message):
        lines.append(messages.ADVICE_FRAGMENTED)
    return lines


def _is_fragmented(message: str) -> bool:
    """Whether PyTorch holds more unused memory than it was asked for: not in one piece, then."""
    tried, unused = _TRIED.search(message), _UNUSED.search(message)
    old = _OLD_SIZES.search(message)
    if tried and unused:
        free = _size(unused[1], unused[2])
    elif tried and old:
        free = _size(old[3], old[4]) - _size(old[1], old[2])
    else:
        return False
    return free >= _size(tried[1], tried[2])


def _size(number: str, unit: str) -> float:
    return float(number) * _FACTORS[unit]


def _of_the_assertion(failure: Failure) -> list[str]:
    """Name causes only where the catalogue knows that the user's values can be one."""
    if not failure.assertions:
        return [messages.ADVICE_FIND_ASSERTION]
    first = failure.assertions[0]  # what follows may be its consequence
    row = catalog().find(first.expression, first.file, first.function)
    if row is None:
        return [_of_an_unknown(failure.assertions[0])]
    if row.nature == "internal":
        return [messages.ADVICE_INTERNAL]
    causes = "; ".join(row.causes[:_MAX_CAUSES])
    remedy = row.remedies[0].partition("; ")[0] if row.remedies else ""  # the shortest that helps
    template = messages.ADVICE_CAUSES_AND_REMEDY if remedy else messages.ADVICE_CAUSES
    typical = [template.format(causes=causes, remedy=remedy)] if causes else []
    return [messages.ADVICE_OWN, *typical] if row.nature == "own" else typical


def _of_an_unknown(assertion: Assertion) -> str:
    whose = author(assertion)
    if whose == "compiled":
        return messages.ADVICE_COMPILED
    if whose != "other":
        return messages.ADVICE_UNKNOWN_ASSERTION
    place = base_name(assertion.file)[:80]
    if assertion.line is not None:
        place += f":{assertion.line}"
    return messages.ADVICE_OWN_KERNEL.format(place=place)


def _restart(failure: Failure) -> str:
    if failure.platform == "hip" and failure.code is None:
        return messages.ADVICE_ROCM_ABORT
    return messages.ADVICE_RESTART if failure.platform == "cuda" else messages.ADVICE_RESTART_OTHER


def _exact_line(failure: Failure, situation: Situation) -> list[str]:
    platform, traceback = failure.platform, situation.traceback
    if platform == "xpu":
        return [messages.ADVICE_EXACT_LINE_XPU] if traceback else []
    if platform == "cuda" and situation.blocking_set:
        lost = situation.mentions_async
        said = messages.ADVICE_BLOCKING_LOST if lost else messages.ADVICE_BLOCKING_SET
        return [said] if traceback else []
    if platform == "cuda" and situation.distributed:
        return [messages.ADVICE_EXACT_LINE_DISTRIBUTED[traceback]]
    where = "notebook" if situation.notebook else "windows" if situation.windows else "shell"
    return [messages.ADVICE_EXACT_LINE[platform, where, traceback]]
