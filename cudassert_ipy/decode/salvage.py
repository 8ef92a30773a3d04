"""Find a known assertion in an expression that another process's output has run into."""

from __future__ import annotations

import functools

from cudassert_ipy.decode.catalog import KnownAssertion, catalog, normalize

_MIN_LENGTH = 12  # of a normalized expression that says enough by itself


def find_inside(expression: str, file: str) -> KnownAssertion | None:
    """Return the one row whose expression is part of ``expression``, or None.

    The file must agree where it is known; without it, rows of other operations must not fit.
    """
    text = normalize(expression)
    found = [
        (known, row)
        for known, row in _searchable()
        if known in text and (row.is_in(file) if file else not row.generic)
    ]
    if not found:
        return None
    longest, best = max(found, key=lambda item: len(item[0]))
    same = [row for known, row in found if known not in longest or known == longest]
    return best if len({(row.operations, row.operand) for row in same}) == 1 else None


@functools.cache
def _searchable() -> tuple[tuple[str, KnownAssertion], ...]:
    every = ((normalize(text), row) for row in catalog().rows for text in row.expressions)
    return tuple((known, row) for known, row in every if len(known) >= _MIN_LENGTH)
