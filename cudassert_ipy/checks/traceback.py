"""Shorten a traceback to the user's own lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cudassert_ipy.checks.frames import is_user_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_PACKAGE = str(Path(__file__).resolve().parents[1])


def trim_traceback(error: BaseException, *, was_caught: bool = False) -> None:
    """Make ``error`` end at the innermost user frame, without frames of torch and this package.

    Frames outside user code before the first user frame stay: IPython counts and hides its own.
    Nothing changes where there is no user frame, unless the error ``was_caught`` by a library that
    raised another one: then the library's frames stay.
    """
    entries = list(_entries(error.__traceback__))
    users = [n for n, entry in enumerate(entries) if is_user_file(_filename(entry))]
    if not users and not was_caught:
        return
    last = users[-1] if users else len(entries) - 1
    kept = [entry for entry in entries[: last + 1] if not _is_machinery(_filename(entry))]
    if not kept:
        return
    # In place: IPython and others hold the traceback beside the exception.
    for entry, following in zip(kept, [*kept[1:], None], strict=True):
        entry.tb_next = following
    error.__traceback__ = kept[0]


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _filename(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _is_machinery(filename: str) -> bool:
    import torch

    # With a separator: torch_geometric and torchvision are no part of torch.
    return filename.startswith((str(Path(torch.__file__).parent) + os.sep, _PACKAGE + os.sep))
