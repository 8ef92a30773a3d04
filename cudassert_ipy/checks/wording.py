"""The text of an :class:`~cudassert_ipy.OperandError`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cudassert_ipy import messages
from cudassert_ipy.errors import OperandError
from cudassert_ipy.model import Frame

if TYPE_CHECKING:
    from cudassert_ipy.model import Finding

_MAX_LINES = 6
_MAX_SOURCE = 200


def operand_error(finding: Finding) -> OperandError:
    """Return the exception for ``finding``; it can still be raised, pickled and compared."""
    return OperandError(describe(finding), finding)


def describe(finding: Finding) -> str:
    """Return the finding as a few plain lines; without values where the finding has none."""
    what = finding.operand
    if finding.expression and finding.expression != finding.operand:
        what = f"`{finding.expression}`"
    elif finding.holder is not None and not finding.expression:
        what = messages.OPERAND_MADE_FROM.format(
            operand=finding.operand, expression=finding.holder.expression
        )
    total = math.prod(finding.shape)
    headline = messages.OPERAND_HEADLINE
    if finding.valid_minimum is None and finding.valid_maximum is None:
        headline = messages.OPERAND_HEADLINE_RULE
    elif finding.bad_count == 1:
        headline = messages.OPERAND_HEADLINE_ONLY if total == 1 else messages.OPERAND_HEADLINE_ONE
    lines = [
        headline.format(
            operation=finding.operation,
            count=finding.bad_count,
            total=total,
            what=what,
            valid=_valid(finding),
            requirement=finding.requirement,
        )
    ]
    is_all_nan = 0 < total <= finding.nan_count and finding.minimum is not None
    pairs = (
        []
        if is_all_nan
        else list(zip(finding.bad_values, finding.bad_positions, strict=False))[:_MAX_LINES]
    )
    lines += [
        messages.OPERAND_VALUES.format(value=value, position=list(position))
        for value, position in pairs
    ]
    if pairs and finding.bad_count > len(pairs):
        lines.append(messages.OPERAND_MORE.format(count=finding.bad_count - len(pairs)))
    template = messages.OPERAND_TENSOR
    if is_all_nan:
        template = messages.OPERAND_TENSOR_NAN
    elif finding.minimum is None:
        template = messages.OPERAND_TENSOR_PLAIN
    lines.append(
        template.format(
            operand=finding.operand,
            shape=list(finding.shape),
            dtype=finding.dtype,
            minimum=finding.minimum,
            maximum=finding.maximum,
        )
    )
    if finding.holder is not None and not finding.expression:
        places = [str(list(position)) for position in finding.holder.positions[:_MAX_LINES]]
        lines.append(
            messages.OPERAND_HOLDER.format(
                expression=finding.holder.expression,
                shape=list(finding.holder.shape),
                dtype=finding.holder.dtype,
                positions=", ".join(places),
            )
        )
    lines += _where(finding)
    if finding.library is not None:
        lines.append(messages.OPERAND_LIBRARY.format(place=_place(finding.library)))
    if finding.hint:
        lines.append(messages.OPERAND_HINT.format(hint=finding.hint))
    if finding.certainty == "depends_on_substitutes":
        lines.append(messages.OPERAND_SUBSTITUTE)
    return "\n".join(lines)


def _where(finding: Finding) -> list[str]:
    """Return the line of the operation, and the line that called it if that is another frame."""
    if finding.line is None:
        return []
    if len(finding.frames) < 2:
        here = Frame(function="<module>", line=finding.line, source=finding.source)
        return [messages.OPERAND_WHERE.format(place=_place(here))]
    outer, inner = finding.frames[0], finding.frames[-1]
    lines = [messages.OPERAND_WHERE.format(place=_place(inner))]
    if (outer.file, outer.line) != (inner.file, inner.line):  # else a lambda in its own line
        lines.append(messages.OPERAND_CALLED_FROM.format(place=_place(outer)))
    return lines


def _place(frame: Frame) -> str:
    """Return ``line 7 of Net.forward in mymod.py: source``, of which parts may be missing."""
    place = messages.OPERAND_PLACE.format(line=frame.line)
    if frame.function != "<module>" and not frame.function.startswith("<cell line:"):
        place += messages.OPERAND_PLACE_FUNCTION.format(function=frame.function)
    file = _file_name(frame.file)
    if file:
        place += messages.OPERAND_PLACE_FILE.format(file=file)
    source = frame.source.strip()[:_MAX_SOURCE]
    return place + (messages.OPERAND_PLACE_SOURCE.format(source=source) if source else "")


def _file_name(file: str) -> str:
    """Return the last part of a file's path; nothing for the made-up names of notebook cells.

    Cells are ``<ipython-input-...>`` in IPython, and files that nobody wrote in the temporary
    directories of ipykernel (``ipykernel_<pid>/``) and xeus-python (``xpython_<pid>/``).
    """
    directory, _, name = file.replace("\\", "/").rpartition("/")
    parent = directory.rpartition("/")[2]
    if file.startswith("<") or parent.startswith(("ipykernel_", "xpython_")):
        return ""
    return name


def _valid(finding: Finding) -> str:
    low, high = finding.valid_minimum, finding.valid_maximum
    special = ", ".join(str(value) for value in finding.special_values)
    template = messages.OPERAND_VALID_SPECIAL if special else messages.OPERAND_VALID
    if high is None:
        template = messages.OPERAND_VALID_FROM
    elif low is None:
        template = messages.OPERAND_VALID_TO
    return template.format(low=low, high=high, special=special)
