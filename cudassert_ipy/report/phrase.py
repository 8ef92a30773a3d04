"""Sentences with code in them, as data that every renderer can set in its own way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal, TypeAlias

from cudassert_ipy.report.clean import clean_line

Style: TypeAlias = Literal["plain", "code", "strong"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a sentence; ``text`` is clean but not escaped."""

    text: str
    style: Style = "plain"


Phrase: TypeAlias = tuple[Part, ...]

_MARKS = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")


def phrase(template: str, **values: object) -> Phrase:
    """Fill one of our own templates.

    Back-quoted words of the template become code, words between double asterisks become strong; so
    do not pass text from outside as ``template``. A field ``{name:code}`` is set as code, any other
    field as plain text, whatever its value holds. Values that are phrases are put in as they are.
    """
    parts: list[Part] = []
    for literal, name, spec, _ in Formatter().parse(template):
        parts += _marked(literal)
        if name is not None:
            parts += _value(values[name], "code" if spec == "code" else "plain")
    return tuple(part for part in parts if part.text)


def code(text: object) -> Phrase:
    """Return ``text`` set as code."""
    return _value(text, "code")


def plain(text: object, limit: int = 600) -> Phrase:
    """Return ``text`` from outside as plain text."""
    return (Part(clean_line(text, limit)),)


def join(phrases: list[Phrase], separator: str = " ") -> Phrase:
    """Return the phrases one after the other."""
    parts: list[Part] = []
    for item in phrases:
        if parts and item:
            parts.append(Part(separator))
        parts += item
    return tuple(parts)


def as_text(item: Phrase, quote: str = "") -> str:
    """Return the sentence as a string, code that has none itself between ``quote`` characters."""
    return "".join(
        f"{quote}{part.text}{quote}"
        if part.style == "code" and quote not in part.text
        else part.text
        for part in item
    )


def _marked(literal: str) -> list[Part]:
    parts: list[Part] = []
    end = 0
    for match in _MARKS.finditer(literal):
        parts.append(Part(literal[end : match.start()]))
        parts.append(Part(match[1], "code") if match[1] is not None else Part(match[2], "strong"))
        end = match.end()
    parts.append(Part(literal[end:]))
    return parts


def _value(value: Any, style: Style) -> Phrase:
    if isinstance(value, tuple) and all(isinstance(item, Part) for item in value):
        return value
    return (Part(clean_line(value), style),)
