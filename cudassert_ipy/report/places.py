"""How lines and functions of the user's code are called."""

from __future__ import annotations

from cudassert_ipy import messages
from cudassert_ipy.report import numbers
from cudassert_ipy.report.clean import clean_line


def function_in(function: str, file: str) -> str:
    """Return a function and where it stands, e.g. ``Net.forward in model.py``."""
    name = clean_line(function, 60)
    return f"{name} in {clean_line(file, 60)}" if file else name


def line_of(line: int | None, function: str, file: str) -> str:
    """Return ``line 3``, and of which function where that is not the cell itself."""
    if line is None:
        return ""
    text = f"line {numbers.number(line)}"
    if not file and (not function or function.startswith("<")):
        return text
    return messages.PLACE_OF.format(line=text, function=function_in(function, file))
