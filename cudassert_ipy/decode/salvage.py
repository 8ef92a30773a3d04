"""Find a known assertion in an expression that another process's output has run into."""

from __future__ import annotations

import functools

from cudassert_ipy.decode.catalog import KnownAssertion, base_name, catalog, normalize

_MIN_LENGTH = 12  # of a normalized expression that says enough by itself


def find_inside(expression: str, file: str) -> KnownAssertion | None:
    """Return the one row whose expression is part of ``expression``, or None.

    The file must agree where it is known; without it, rows of other operations must not fit.
    """
    text = normalize(expression)
    name = base_name(file)
    found = [
        row
        for known, row in _searchable()
        if known in text and (name in row.files if name else not row.generic)
    ]
    if not found:
        return None
    longest = max(found, key=lambda row: len(row.expression))
    short = normalize(longest.expression)
    same = [row for row in found if normalize(row.expression) not in short or row is longest]
    return longest if len({(row.operations, row.operand) for row in same}) == 1 else None


@functools.cache
def _searchable() -> tuple[tuple[str, KnownAssertion], ...]:
    rows = ((normalize(row.expression), row) for row in catalog().rows)
    return tuple((known, row) for known, row in rows if len(known) >= _MIN_LENGTH)
