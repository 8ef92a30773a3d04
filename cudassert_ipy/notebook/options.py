"""Options of the two magics, and what a wrong one gets to read."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from cudassert_ipy import messages

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

COMMANDS: dict[str, tuple[str, ...]] = {
    "status": (),
    "replay": (),
    "restart": (),
    "report": (),
    "repro": (),
    "guard": ("on", "off"),
    "simulator": ("on", "off"),
    "off": (),
}
"""Commands of `%cuda_debug` and the values each accepts."""


def parse_size(text: str) -> int:
    """Return a size such as ``256MB`` or ``1.5g`` in bytes. Raises ``ValueError``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        msg = messages.BAD_SIZE.format(text=text[:40])
        raise ValueError(msg)
    return int(float(match[1]) * _UNITS[match[2].upper()])


@magic_arguments("%%cuda_debug")
@argument("--no-guard", action="store_true", help=messages.HELP_NO_GUARD)
@argument("--no-checkpoint", action="store_true", help=messages.HELP_NO_CHECKPOINT)
@argument("--no-replay", action="store_true", help=messages.HELP_NO_REPLAY)
@argument("--budget", type=parse_size, default=256 << 20, help=messages.HELP_BUDGET)
@argument("--timeout", type=float, default=None, help=messages.HELP_TIMEOUT)
@argument("--stats", action="store_true", help=messages.HELP_STATS)
def cell_options(line: str) -> Any:
    """Parse the options of ``%%cuda_debug``. Raises ``UsageError`` that lists what is accepted."""
    return _parse(cell_options, line, messages.CELL_USAGE)


@magic_arguments("%cuda_debug")
@argument(
    "command", nargs="?", default="status", choices=tuple(COMMANDS), help=messages.HELP_COMMAND
)
@argument("value", nargs="?", default=None, help=messages.HELP_VALUE)
@argument("--json", action="store_true", help=messages.HELP_JSON)
@argument("--output", action="store_true", help=messages.HELP_OUTPUT)
@argument("--cells", action="store_true", help=messages.HELP_CELLS)
@argument("--whole", action="store_true", help=messages.HELP_WHOLE)
def line_options(line: str) -> Any:
    """Parse the options of ``%cuda_debug``. Raises ``UsageError`` that lists what is accepted."""
    options = _parse(line_options, line, messages.LINE_USAGE)
    if options.command == "repro":  # any file
        options.value = options.value and options.value.strip("'\"")
        return options
    accepted = COMMANDS[options.command]
    if (options.value or accepted) and options.value not in accepted:
        if not accepted:
            problem = messages.NO_VALUE.format(command=options.command)
        else:
            problem = messages.NEEDS_VALUE.format(
                command=options.command, accepted=" | ".join(accepted)
            )
        msg = f"{problem}\n{messages.LINE_USAGE}"
        raise UsageError(msg)
    return options


def _parse(function: Any, line: str, usage: str) -> Any:
    try:
        return parse_argstring(function, line)
    except (UsageError, ValueError) as error:
        msg = f"{error}\n{usage}"
        raise UsageError(msg) from None
