"""The catalogue of known device-side assertions (``catalog.toml``): find a row, print its line."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

_CAST = re.compile(r"static_cast<[^<>]*>\s*\(([^()]*)\)|\((?:int|int64_t|long|IndexType|index_t)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAssertion:
    """One row of the catalogue; the fields are described at the top of ``catalog.toml``."""

    key: str
    expression: str
    path: str
    also_in: tuple[str, ...] = ()
    functions: tuple[str, ...]
    operations: tuple[str, ...]
    operand: str
    requirement: str
    causes: tuple[str, ...]
    cpu_error: str
    since: str
    until: str
    line: int | None = None
    generic: bool = False

    @property
    def files(self) -> frozenset[str]:
        """Base names of the source files that hold this assertion."""
        return frozenset(base_name(path) for path in (self.path, *self.also_in))

    def render(
        self,
        block: tuple[int, int, int],
        thread: tuple[int, int, int],
        *,
        torch_version: str | None = None,
        function: str | None = None,
    ) -> str:
        """Return the line that the CUDA driver prints on Linux, without its newline.

        ``torch_version`` decides the path's prefix (default: the newest known), ``function`` the
        kernel's name (default: the row's first; lambdas print ``operator()``).
        """
        name = function or (self.functions[0] if self.functions else "operator()")
        place = f"{_prefix(torch_version)}{self.path}:{self.line or 1}: {name}: "
        index = f"block: [{_triple(block)}], thread: [{_triple(thread)}] "
        return f"{place}{index}Assertion `{self.expression}` failed."


class Catalog:
    """All rows, looked up by key or by what a line of text says."""

    def __init__(self, rows: tuple[KnownAssertion, ...]) -> None:
        self.rows = rows
        self._by_key = {row.key: row for row in rows}
        self._by_expression: dict[str, list[KnownAssertion]] = {}
        for row in rows:
            self._by_expression.setdefault(normalize(row.expression), []).append(row)

    def by_key(self, key: str) -> KnownAssertion:
        """Return the row named ``key``; raise ``KeyError`` if there is none."""
        return self._by_key[key]

    def find(self, expression: str, file: str, function: str | None) -> KnownAssertion | None:
        """Return the row for a printed assertion, or None.

        ``file`` may have any prefix or be empty; ``function`` may be a full signature or None. The
        file must agree where it was printed: kernels of other projects use the same expressions.
        Where it was not, the function must; and a row is returned only if the expression is not a
        generic one, and no row of other operations fits as well.
        """
        candidates = self._by_expression.get(normalize(expression), [])
        named = [row for row in candidates if function and _names(function, row.functions)]
        if file:
            name = base_name(file)
            candidates = [row for row in candidates if name in row.files]
        elif named:
            candidates = named
        else:
            # A row without functions is printed by `operator()`, whose name says nothing.
            candidates = [
                row for row in candidates if not (row.generic or (function and row.functions))
            ]
        if len({(row.operations, row.operand) for row in candidates}) != 1:
            return None
        return candidates[0]


@functools.cache
def catalog() -> Catalog:
    """Return the catalogue that ships with this package, read once."""
    text = resources.files("cudassert_ipy.decode").joinpath("catalog.toml").read_text("utf-8")
    rows = []
    for entry in tomllib.loads(text)["assertion"]:
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        rows.append(KnownAssertion(**values))
    return Catalog(tuple(rows))


def normalize(expression: str) -> str:
    """Return ``expression`` without casts and white space, which differ between versions."""
    previous = None
    while previous != expression:
        previous, expression = expression, _CAST.sub(r"\1", expression)
    return re.sub(r"\s+", "", expression)


def base_name(path: str) -> str:
    """Return the last component of a Linux or Windows path."""
    return re.split(r"[/\\]", path)[-1]


def _names(function: str, names: tuple[str, ...]) -> bool:
    """Whether ``function``, a short name or a full signature, is one of ``names``."""
    return any(re.search(rf"\b{re.escape(name)}\b", function) for name in names)


def _triple(index: tuple[int, int, int]) -> str:
    return ",".join(str(item) for item in index)


def _prefix(torch_version: str | None) -> str:
    """Return what ``__FILE__`` starts with in the Linux wheel of this version on PyPI."""
    match = re.match(r"(\d+)\.(\d+)", torch_version or "")
    version = (int(match[1]), int(match[2])) if match else (2, 13)
    if version >= (2, 13):
        return "/__w/pytorch/pytorch/"
    if (1, 11) <= version < (2, 6):
        return "../"
    return "/pytorch/"
