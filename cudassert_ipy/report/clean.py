"""Make text from users, logs and child processes safe to show: no control characters, bounded."""

from __future__ import annotations

import os
import re
import unicodedata

LINE_LIMIT = 300
TEXT_LIMIT = 4000

_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colors, cursor movement
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
# Cc: controls; Cf: bidirectional overrides, zero-width, tags; Cs: lone surrogates, which
# cannot be encoded; Co: private use; Zl and Zp: line separators that some viewers honor.
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MAX_MARKS = 4
# Also behind other characters, such as an escaped newline: a name too many is worse than a path
# that is short without need. Separators may be escaped themselves.
_HOME = re.compile(
    r"(?:[\\/]{1,4}(?:home|Users)|[A-Za-z]:[\\/]{1,4}(?i:users))[\\/]{1,4}[^\\/\s\"'`:]+"
)


def clean(text: object, limit: int = TEXT_LIMIT) -> str:
    """Return ``text`` without ANSI sequences, control and bidirectional characters.

    Newlines stay, tabs become four spaces, carriage returns become newlines. At most ``limit``
    characters are returned; a cut is shown by an ellipsis.
    """
    raw = text if isinstance(text, str) else str(text)
    # Bound the work before looking at single characters: the input may have 100 MB.
    raw = _ANSI.sub("", raw[: 4 * limit + 1000])
    raw = raw.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    kept = []
    marks = 0
    for character in raw:
        category = unicodedata.category(character)
        # A pile of combining marks draws over the neighboring lines.
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks <= _MAX_MARKS and (character == "\n" or category not in _DROPPED):
            kept.append(character)
    return cut("".join(kept), limit)


def clean_line(text: object, limit: int = LINE_LIMIT) -> str:
    """Return ``text`` cleaned as by :func:`clean`, on one line."""
    return cut(clean(text, limit).replace("\n", " "), limit)


def cut(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text``, the last an ellipsis where it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def hide_home(text: str) -> str:
    """Return ``text`` with home directories, which name a person, written as ``~``."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    if len(home) > 1:
        text = re.sub(re.escape(home) + r"(?=[\\/]|\b)", "~", text)
    return _HOME.sub("~", text)
