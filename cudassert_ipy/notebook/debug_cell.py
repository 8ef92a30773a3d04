"""``%%cuda_debug`` at the top of a cell.

The magic is not a nested ``run_cell``, which would lose the status, ``await`` and line numbers: an
input transformer turns the magic line into a comment, so that IPython runs the rest as the cell it
is, and the hooks before and after the cell do the work.
"""

from __future__ import annotations

import itertools
import linecache

_MAGIC = "%%cuda_debug"
TIMED_FILES = ("<timed exec>", "<timed eval>")
"""File names under which IPython compiles the body of ``%%time`` (seen in 8.0 to 9.18)."""


def lines_before_code(source: str) -> int:
    """Return how many blank lines stand at the top of a cell."""
    lines = source.splitlines()
    return next((number for number, line in enumerate(lines) if line.strip()), 0)


def lines_before_body(source: str) -> int:
    """Return how many lines, blank or cell magics, stand above the body of a cell."""
    for number, line in enumerate(source.splitlines()):
        if line.strip() and not line.lstrip().startswith("%%"):
            return number
    return 0


def is_in_body(source: str, line: int, text: str) -> bool:
    """Whether ``text``, line ``line`` of what IPython compiled, is that of a magic's body.

    ``%%capture`` and the like run the body of the cell as a cell of its own (``shell.run_cell``).
    """
    lines = source.splitlines()
    magics = list(itertools.takewhile(lambda item: not item or item[:2] == "%%", lines))
    if all(not item or _options(item) is not None for item in magics):
        return False
    place = lines_before_body(source) + line - 1
    return 0 <= place < len(lines) and lines[place].rstrip() == text.rstrip() != ""


def remember_timed_body(source: str) -> None:
    """Give Python the source of the body of a cell under ``%%time``, which IPython does not.

    All such cells have the same file names, so what an earlier one left is taken away first.
    """
    for name in TIMED_FILES:
        linecache.cache.pop(name, None)
    if not any(line.split()[:1] == ["%%time"] for line in source.splitlines()[:5]):
        return
    body = source.splitlines(keepends=True)[lines_before_body(source) :]
    for name in TIMED_FILES:
        linecache.cache[name] = (len("".join(body)), None, body, name)


def _options(line: str) -> str | None:
    """Return what follows the magic on its line; None for any other line."""
    word, _, options = line.strip().partition(" ")
    if "\t" in word:
        word, _, options = line.strip().partition("\t")
    return options.strip() if word == _MAGIC else None


def find_magic_line(source: str) -> str | None:
    """Return the options of ``%%cuda_debug`` if the cell has it, else None.

    It may stand on the first line that is not blank, or below other cell magics
    (``%%time``, then ``%%cuda_debug``).
    """
    for line in source.splitlines():
        if not line.strip():
            continue
        if (options := _options(line)) is not None:
            return options
        if not line.lstrip().startswith("%%"):
            return None
    return None


def options_are_valid(options: str) -> bool:
    """Whether ``%%cuda_debug`` accepts these options."""
    from IPython.core.error import UsageError

    from cudassert_ipy.notebook.options import cell_options

    try:
        cell_options(options)
    except UsageError:
        return False
    return True


def blank_magic_line(lines: list[str]) -> list[str]:
    """Input transformer: turn the ``%%cuda_debug`` line into a comment.

    A line with an option that does not exist is left alone: IPython then calls the cell magic,
    which answers with the usage and does not run the cell.

    Line numbers stay what the user sees. Only where another cell magic follows is the line removed,
    because that magic must come first and counts its own lines anyway.
    """
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        options = _options(line)
        if options is None or not options_are_valid(options):
            return lines
        rest = lines[number + 1 :]
        if rest and rest[0].lstrip().startswith("%%"):
            return rest
        # Blank lines before it too: IPython drops leading blank lines, which would shift the rest.
        return ["#\n"] * number + [f"# {line.strip()}\n", *rest]
    return lines
