"""What the words of an assertion say that the catalogue does not know.

Only what is written there: a condition that compares a name with bounds, or the message that its
author put in. Which operation or tensor of the user is meant is not guessed.
"""

from __future__ import annotations

import re

from cudassert_ipy import messages

_MAX = 300
# Adjacent literals stay separate in the printed source: "first half " "second half".
_MESSAGE = re.compile(r'(?:^|&&)\s*((?:"(?:[^"\\]|\\.)*"\s*)+)$')
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERATOR = re.compile(r"[<>=!&|]=?|\(")
# A name as kernels use it: idx, *ptr, sizes[i], src.sizes[dim], self->size(0).
_NAME = r"[*&]?[A-Za-z_][\w.]*(?:->\w+)*(?:\[[^\[\]]{1,60}\]|\(\d*\))*"
_BOUND = r"[^<>=!&|]{1,120}?"
_CHAIN = re.compile(rf"({_BOUND})\s*(<=?)\s*({_NAME})\s*(<=?)\s*({_BOUND})$")
_LOWER = (
    re.compile(rf"(?P<name>{_NAME})\s*>(?P<equal>=?)\s*(?P<bound>{_BOUND})$"),
    re.compile(rf"(?P<bound>{_BOUND})\s*<(?P<equal>=?)\s*(?P<name>{_NAME})$"),
)
_UPPER = (
    re.compile(rf"(?P<name>{_NAME})\s*<(?P<equal>=?)\s*(?P<bound>{_BOUND})$"),
    re.compile(rf"(?P<bound>{_BOUND})\s*>(?P<equal>=?)\s*(?P<name>{_NAME})$"),
)


def words_of(expression: str, message: str = "") -> tuple[str, str]:
    """Return the operand, as the kernel's source names it, and the requirement; either may be "".

    ``label >= 0 && label < num_labels && "label out of range"`` gives ``label`` and
    ``0 <= label < num_labels (the kernel says: label out of range)``. ``message`` is what a verbose
    build printed beside it.
    """
    condition, own = _split(expression.strip()[:_MAX])
    message = message.strip()[:_MAX] or own
    if not condition and not message:
        return "", messages.ASSERTION_SAYS_NOTHING
    if condition in ("false", "0", "False"):
        said = message or ""
        return "", messages.ASSERTION_SAYS.format(words=said) if said else messages.ASSERTION_FALSE
    if not condition or not _OPERATOR.search(condition):
        return "", messages.ASSERTION_SAYS.format(words=message or condition)
    name, must = _range(condition)
    must = must or condition
    if message:
        must = f"{must} ({messages.ASSERTION_SAYS.format(words=message)})"
    return name, must


def _split(expression: str) -> tuple[str, str]:
    """Return the condition and the message of ``condition && "message"``."""
    match = _MESSAGE.search(expression)
    if match is None:
        return expression, ""
    literals = _LITERAL.findall(match[1])
    message = "".join(literals).replace("\\n", " ").replace('\\"', '"').strip()
    return expression[: match.start()].strip(), message


def _range(condition: str) -> tuple[str, str]:
    """Return the name that is compared with its bounds, and the range in one chain."""
    parts = [part.strip() for part in _unwrapped(condition).split("&&")]
    if len(parts) == 1:
        chain = _CHAIN.match(parts[0])
        if chain:
            return chain[3], parts[0]
    if len(parts) != 2:  # a lower and an upper bound
        single = _match(_UPPER, parts[0]) or _match(_LOWER, parts[0]) if len(parts) == 1 else None
        return (single["name"], parts[0]) if single else ("", "")
    for lower, upper in ((parts[0], parts[1]), (parts[1], parts[0])):
        for low in _all(_LOWER, lower):
            for high in _all(_UPPER, upper):
                if low["name"] == high["name"]:
                    name = low["name"]
                    left = f"{low['bound'].strip()} <{low['equal']} {name}"
                    return name, f"{left} <{high['equal']} {high['bound'].strip()}"
    return "", ""


def _match(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    return next(iter(_all(patterns, text)), None)


def _all(patterns: tuple[re.Pattern[str], ...], text: str) -> list[re.Match[str]]:
    return [match for pattern in patterns if (match := pattern.match(text))]


def _unwrapped(condition: str) -> str:
    """Return ``condition`` without the parentheses around all of it."""
    if condition.startswith("(") and condition.endswith(")"):
        inner = condition[1:-1]
        if "(" not in inner and ")" not in inner:
            return inner
    return condition
