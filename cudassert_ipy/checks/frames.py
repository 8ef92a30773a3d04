"""Which frames are the user's, and the source text of a frame's current instruction."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

_SHELL = os.path.join("IPython", "core", "interactiveshell.py")  # noqa: PTH118  only a suffix

# The last two are what IPython calls the body of a cell under `%%time` (seen in 8.0 to 9.18).
_USER_NAMES = frozenset({"<stdin>", "<string>", "<timed exec>", "<timed eval>"})

# Code that torch_geometric writes for each layer (`module_from_template` of its template.py, seen
# in 2.5 to 2.8): nobody wrote it, and nobody can fix a line of it.
_GENERATED = re.compile(r"_(?:propagate|edge_updater)_\w{8}\.py$")


@dataclass(frozen=True, slots=True)
class Span:
    """Where an instruction comes from, in characters of its source line."""

    line: int
    column: int | None
    end_column: int | None
    source: str
    """The line, without its end."""
    end_line: int | None = None
    byte_columns: tuple[int, int] | None = None
    """Start and end as ``co_positions`` and ``ast`` count them: UTF-8 bytes."""


def user_frames(start: FrameType | None = None) -> Iterator[FrameType]:
    """Yield the frames of user code, innermost first, from ``start`` (default: the caller's).

    Everything outside torch, installed packages, the standard library, IPython and this package
    is the user's: notebook cells, scripts, and modules of an editable project. The walk ends at
    the shell that runs a cell: what is beyond started the shell.
    """
    frame = start if start is not None else sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_shell_file(filename):
            return
        if is_user_file(filename):
            yield frame
        frame = frame.f_back  # type: ignore[assignment]


def library_frame(start: FrameType) -> FrameType | None:
    """Return the innermost frame of an installed package other than torch; None if there is none.

    It is looked for between ``start`` and the innermost frame of the user's.
    """
    frame: FrameType | None = start
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if is_library_file(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def below_packages(filename: str) -> str:
    """Return the path of a library's file as it is imported: ``transformers/models/...``."""
    path = os.path.realpath(filename)
    root = next((root for root in _package_roots() if path.startswith(root)), "")
    return path.removeprefix(root).replace(os.sep, "/")


@functools.lru_cache(maxsize=4096)
def is_library_file(filename: str) -> bool:
    """Whether code compiled under ``filename`` is of an installed package other than torch."""
    if _GENERATED.search(filename):
        return False  # its source says nothing; who called it does
    path = os.path.realpath(filename)
    torch = sys.modules.get("torch")
    own = [str(Path(__file__).resolve().parents[1])]
    own += [str(Path(torch.__file__).parent)] if torch is not None and torch.__file__ else []
    if path.startswith(tuple(os.path.realpath(root) + os.sep for root in own)):
        return False
    return path.startswith(_package_roots())


def is_shell_file(filename: str) -> bool:
    """Whether a file is IPython's shell, which runs the cells."""
    return filename.endswith(_SHELL)


@functools.lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """Whether code compiled under ``filename`` is the user's."""
    if filename.startswith("<ipython-input-") or filename in _USER_NAMES:
        return True
    if filename.startswith("<"):
        # `<frozen importlib…>`, `<__array_function__ internals>`, `<eval_with_key>` of torch.fx.
        # Cells that a test or a tool compiles under a name of their own have it in linecache.
        return filename in linecache.cache
    if _GENERATED.search(filename) and os.path.realpath(filename).startswith(_temporary()):
        return False
    path = os.path.realpath(filename)
    return not path.startswith(_library_roots())


def _temporary() -> str:
    return os.path.realpath(tempfile.gettempdir()) + os.sep


@functools.cache
def _package_roots() -> tuple[str, ...]:
    roots = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    roots.update(entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    return tuple(os.path.realpath(root) + os.sep for root in roots if root)


@functools.cache
def _library_roots() -> tuple[str, ...]:
    # `scripts` has the starters of pytest, torchrun and the like, which are no caller to name.
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    roots = {sysconfig.get_path(name) for name in names}
    roots.add(str(Path(__file__).resolve().parents[1]))
    for name in ("torch", "IPython", "ipykernel"):
        module = sys.modules.get(name)
        if module is not None and module.__file__:
            roots.add(str(Path(module.__file__).parent))
    for entry in sys.path:
        if entry.endswith(("site-packages", "dist-packages")):
            roots.add(entry)
    return tuple(os.path.realpath(root) + os.sep for root in roots if root)


def span_of(code: CodeType, last_instruction: int, fallback_line: int) -> Span:
    """Return the source of one instruction; columns are None under ``PYTHONNODEBUGRANGES``."""
    position = next(itertools.islice(code.co_positions(), last_instruction // 2, None), None)
    line, end_line, start, end = position or (None, None, None, None)
    line = line or fallback_line
    source = linecache.getline(code.co_filename, line).rstrip("\r\n")
    if start is None or end is None:
        return Span(line, None, None, source)
    column = _characters(source, start)
    last = len(source) if end_line != line else _characters(source, end)
    return Span(line, column, last, source, end_line, (start, end))


def _characters(source: str, byte_column: int) -> int:
    """Return the character position of a UTF-8 byte position, which ``co_positions`` counts in."""
    return len(source.encode("utf-8")[:byte_column].decode("utf-8", "ignore"))
