"""What stands in front of ``block: [`` on a line of CUDA: source file, line, function, rank.

A log glues other things in front: progress bars, rank prefixes, pieces of another process's line.
Everything is searched backwards from the end, so that no regex has to look for a path's start
(which takes quadratic time on a long line without blanks).
"""

from __future__ import annotations

import re

_PLACE_END = re.compile(
    r"(?:\.(?:cuh?|hip|hp?p?|inl|cp?p?|cc|py)|\bunknown|>):(\d{1,9}):", re.IGNORECASE
)
_PLACE_SHORTENED = re.compile(r"\.(?:cuh?|hip)\b(?::(\d{1,9})\b)?", re.IGNORECASE)
_NAME = re.compile(r"(?:[A-Za-z_]\w*::)*(?:operator\(\)|[A-Za-z_]\w*)")
_PATH_REVERSED = re.compile(r"""[^\s:`"'|│\]=]*(?::[A-Za-z](?![A-Za-z0-9]))?""")
# A path with blanks in it, as far as it can be told: from its last root or drive on.
_ROOTED = re.compile(r"^(?:.*[\s\]|│])?((?:[A-Za-z]:[\\/]|/)[^:`\"'|│\]=]*)$", re.DOTALL)
_SENTENCE = re.compile(r"[.,;!?] ")
_MAX_ROOTED = 400
# In front of a path: a progress bar without closing bracket, the numbers of another process's line,
# the newline of a line inside a repr.
_GLUED = re.compile(
    r"^(?:[\d.,?]+(?:[A-Za-z]{1,10}/s|s/[A-Za-z]{1,10}?)(?=/|\.\./)|[\d,]+(?=/)|(?:\\[nrt])+(?=[/.A-Za-z]))"
)
_REPR = re.compile(r".*\\[nrt](?=/|\.\./|[A-Za-z]:[\\/])")  # the line in front, inside a repr
_TWICE = re.compile(r".*\.cuh?(?=/)")  # two processes have printed theirs at once
# torch.distributed and torchrun, mpirun, accelerate and Lightning, srun --label.
_RANK = re.compile(
    r"\[(?:rank|default) ?:?(\d{1,6})\]|\brank(?:=(\d{1,6})\b|[ :]?(\d{1,6})\b(?=[\]:,)]))"
    r"|^\s*\[\d{1,6},(\d{1,6})\]<|^\s*(?:(\d{1,6}): |\[(\d{1,6})\]:)",
    re.IGNORECASE,
)
_RANK_PREFIX = re.compile(
    r"^\s*(?:\[(?:rank|default) ?\d{1,6}\]:?|\d{1,6}: |\[\d{1,6}\]:) *", re.IGNORECASE
)
_MAX_FUNCTION = 300


def place(head: str) -> tuple[str, int | None, str | None]:
    """Return file, line and function from the text in front of ``block:``."""
    places = list(_PLACE_END.finditer(head))
    if not places:
        return _shortened(head)
    last = places[-1]
    end = last.start(1) - 1
    function = head[last.end() :].strip().rstrip(" .:")
    if head[:end].endswith(">"):  # <frozen importlib._bootstrap>: a location that means nothing
        start = head.rfind("<", 0, end)
        path = head[max(start, 0) : end]
    else:
        path = _path(head[:end])
    return path, int(last[1]), function or None


def is_name(function: str | None) -> bool:
    """Whether ``function`` is one C++ name and not words of a person or pieces of another line."""
    return _NAME.fullmatch(function or "") is not None


def rank_in(head: str, rank: int | None) -> int | None:
    """Return the last rank that ``head`` names, else ``rank``."""
    for match in _RANK.finditer(head):
        rank = int(next(group for group in match.groups() if group is not None))
    return rank


def rank_spans(head: bytes) -> list[tuple[int, int]]:
    """Return where ``head`` says whose line it is."""
    # Latin-1: a character for a byte, so that the positions agree.
    return [match.span() for match in _RANK.finditer(head.decode("latin-1"))]


def _shortened(head: str) -> tuple[str, int | None, str | None]:
    """Return what is left of file, line and function where people or other processes cut it."""
    places = list(_PLACE_SHORTENED.finditer(head))
    if not places:
        function = _RANK_PREFIX.sub("", head).strip().rstrip(" .:")
        last_word = function.rpartition(" ")[2]
        if is_name(last_word) and not function.endswith((")", "]")):
            function = last_word
        return "", None, function[-_MAX_FUNCTION:] or None
    last = places[-1]
    name = head[last.end() :].strip(" .:")
    path = _path(head[: last.start() + len(last[0].partition(":")[0])])
    line = int(last[1]) if last[1] else None
    return path, line, name if is_name(name) else None


def _path(head: str) -> str:
    """Return the path that ``head`` ends with."""
    reversed_path = _PATH_REVERSED.match(head[::-1])
    path = _GLUED.sub("", reversed_path[0][::-1]) if reversed_path else ""
    for glued in (_REPR, _TWICE):
        match = glued.match(path)
        path = path[match.end() :] if match else path
    whole = path[:1] in ("/", ".", "\\") or path[1:2] == ":"
    if not whole and ("/" in path or "\\" in path):
        # Cut at a blank inside the path: "/home/me/my project/kernel.cu".
        rooted = _ROOTED.match(head[-_MAX_ROOTED:])
        if rooted and not _SENTENCE.search(rooted[1]):
            return rooted[1]
    return path
