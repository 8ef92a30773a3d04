"""What a replay's process said when an operation killed it: which one, and on which line.

``faulthandler`` writes the Python stack of a crash to the child's stderr. The cell's own code can
write the same words there; then a wrong line is named, and nothing worse.
"""

from __future__ import annotations

import linecache
import re
from typing import Final

from cudassert_ipy import messages
from cudassert_ipy.checks.frames import is_user_file

TAIL: Final = 16_000
"""Characters of the end of the output that are searched."""
_BEGIN = "Fatal Python error: "
_STACK = re.compile(
    r"Fatal Python error: [^\n]{1,80}\n\n(?:Current thread|Thread|Stack) [^\n]{1,120}\n"
    r'(?P<frames>(?:  File "[^"\n]{1,600}", line \d{1,9} in [^\n]{1,200}\n?){1,200})'
)
"""Python/traceback.c and Modules/faulthandler.c, Python 3.11 to 3.14."""
_FRAME = re.compile(r'  File "([^"\n]*)", line (\d+) in ([^\n]*)')
_TORCH = re.compile(
    r"[/\\]torch[/\\](?:nn[/\\]functional|functional|_tensor|sparse[/\\]__init__)\.py$"
)


def without_stack(output: str) -> str:
    """Return what the cell printed, without the stack that ``faulthandler`` added at its end."""
    start = output.rfind(_BEGIN)
    return output if start < 0 else output[:start]


def describe_crash(output: str, how: str) -> str:
    """Return what to say of a process that ended by ``how`` (``SIGSEGV``, ``exit status 3``).

    Args:
        output: the end of what it printed.
        how: its end, or empty where nobody knows.

    """
    found = None
    for match in _STACK.finditer(output):
        found = match
    if found is None or how == "SIGKILL":
        return messages.REPLAY_CRASHED.format(how=how or messages.REPLAY_UNKNOWN_END)
    what = messages.REPLAY_CRASHED_OPERATION
    for file, line, function in _FRAME.findall(found["frames"]):
        if _TORCH.search(file):
            what = function
        elif is_user_file(file):
            source = linecache.getline(file, int(line)).strip()[:200]
            place = messages.REPLAY_CRASHED_PLACE.format(source=source) if source else ""
            return messages.REPLAY_CRASHED_IN.format(what=what, how=how, place=place)
    return messages.REPLAY_CRASHED_IN.format(what=what, how=how, place="")
