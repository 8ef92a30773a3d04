"""How this process was started: command, environment, working directory.

Read when the extension loads, before user code changes any of it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BLOCKING = "CUDA_LAUNCH_BLOCKING"
EXTENSION_OPTION = "--InteractiveShellApp.extra_extensions=cudassert_ipy"
HANDOFF_OPTION = "--CudaDebug.handoff="

# What ipykernel 6 and 7 (zmqshell.init_environment, kernelapp.init_gui_pylab) and debugpy put into
# os.environ. A kernel that is started anew must not inherit it as if the user had set it.
_KERNEL_ADDITIONS = {
    "TERM": "xterm-color",
    "CLICOLOR": "1",
    "FORCE_COLOR": "1",
    "CLICOLOR_FORCE": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYDEVD_USE_FRAME_EVAL": "NO",
}
_WITNESSES = ("PATH", "HOME", "JPY_PARENT_PID")


class Start:
    """What a new process needs to start like this one did.

    A plain class: it is made at every load, and a dataclass takes longer to define than all of it.

    Attributes:
        environment: the environment this process was started with.
        cwd: the directory it was started in, as far as is known.
        sys_path: ``sys.path`` when the extension loaded: front ends add to it after the start
            (VS Code).

    """

    def __init__(self, environment: Mapping[str, str], cwd: str, sys_path: Sequence[str]) -> None:
        self.environment = environment
        self.cwd = cwd
        self.sys_path = tuple(sys_path)

    @classmethod
    def capture(cls, cwd: str | None = None) -> Self:
        """Return the state now; ``cwd`` where the caller knows an earlier directory than now's.

        Never raises: what user code made odd is left out.
        """
        if cwd is None or not is_text(cwd):
            cwd = _directory()
        path = sys.path if isinstance(sys.path, list | tuple) else ()
        # Python ignores entries that are no text, and none with a NUL can be a file's name.
        return cls(start_environment(), cwd, [entry for entry in path if is_text(entry)])


def _directory() -> str:
    for ask in (Path.cwd, Path.home):
        # Removed meanwhile; no home directory known.
        with contextlib.suppress(OSError, RuntimeError):
            return str(ask())
    return os.sep


def is_text(value: object) -> bool:
    """Whether the system takes ``value`` as a path, an argument or a part of the environment."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:  # a lone surrogate
        return False


def own_command() -> list[str]:
    """Return ``sys.orig_argv``; empty where user code made it something that cannot be executed."""
    command = getattr(sys, "orig_argv", None)
    if not isinstance(command, list) or not all(is_text(argument) for argument in command):
        return []
    return list(command)


def pending_path(directory: Path, connection_file: str) -> Path:
    """Return where a handoff waits for a restart by hand of the kernel with that file.

    Every load looks whether there is one.
    """
    return directory / f"cudassert-pending-{Path(connection_file).name}"


def take_over(cwd: str | None, sys_path: Sequence[str]) -> None:
    """Go to ``cwd`` if it still exists, and add what is missing of ``sys_path``, at its place.

    Each added entry goes before the next one of ``sys_path`` that is there already, so that what a
    front end put in front stays in front.
    """
    if cwd is not None:
        with contextlib.suppress(OSError, ValueError):
            os.chdir(cwd)
    place = len(sys.path)
    for entry in reversed([entry for entry in sys_path if is_text(entry)]):
        if entry in sys.path:
            place = sys.path.index(entry)
        else:
            sys.path.insert(place, entry)


def start_environment() -> dict[str, str]:
    """Return the environment this process was started with, without the kernel's own additions.

    From ``/proc/self/environ``. Programs that rewrite their title overwrite it (setproctitle, some
    launchers), so it counts only when it is well-formed and holds what is known to be there;
    otherwise, and where there is no ``/proc``, it is ``os.environ`` less the known additions.
    """
    try:
        data = Path("/proc/self/environ").read_bytes()
    except OSError:
        data = b""
    parsed = parse_environment(data)
    if parsed is not None and all(name in parsed for name in _WITNESSES if name in os.environ):
        return parsed
    return {
        name: value for name, value in os.environ.items() if _KERNEL_ADDITIONS.get(name) != value
    }


def parse_environment(data: bytes) -> dict[str, str] | None:
    """Return the variables in ``data`` (``NAME=value`` ended by NUL each), None if malformed."""
    if not data.endswith(b"\0"):
        return None
    variables: dict[str, str] = {}
    for entry in data[:-1].split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if not name or not equals:
            return None
        variables.setdefault(os.fsdecode(name), os.fsdecode(value))
    return variables


def next_environment(start: Mapping[str, str], *, blocking: bool) -> dict[str, str]:
    """Return the environment of the next process: the start environment, launches as asked for."""
    environment = {name: value for name, value in start.items() if name != BLOCKING}
    if blocking:
        environment[BLOCKING] = "1"
    return environment


def next_command(arguments: Sequence[str], handoff: Path) -> list[str]:
    """Return the command of the next process: this one's own, plus extension and handoff.

    Args:
        arguments: ``sys.orig_argv`` (``sys.argv[0]`` names the launcher file, not the command).
        handoff: file that the next process reads.

    """
    own = [
        argument
        for argument in arguments[1:]
        if argument != EXTENSION_OPTION and not argument.startswith(HANDOFF_OPTION)
    ]
    return [sys.executable, *own, EXTENSION_OPTION, f"{HANDOFF_OPTION}{handoff}"]
