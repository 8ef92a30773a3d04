"""``%%cuda_debug`` at the top of a cell.

The magic is not a nested ``run_cell``, which would lose the status, ``await`` and line numbers: an
input transformer turns the magic line into a comment, so that IPython runs the rest as the cell it
is, and the hooks before and after the cell do the work.
"""

from __future__ import annotations

_MAGIC = "%%cuda_debug"


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
        return ["#\n"] * (number + 1) + rest
    return lines
