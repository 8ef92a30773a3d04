"""The catalogue of known device-side assertions (``catalog.toml``): find a row, print its line."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Nature: TypeAlias = Literal["range", "count", "probability", "nan", "structure", "internal", "own"]
"""What kind of demand an assertion makes; see the top of ``catalog.toml``."""

_TYPE = (
    r"(?:unsigned |signed |long )*"
    r"(?:char|short|int|long|unsigned|float|double|u?int\d+_t|size_t|IndexType|index_t|scalar_t|accscalar_t|T|AccT)"
)
# Innermost first; arguments may hold one more pair of brackets, as in `static_cast<int>(size(0))`.
_CAST = re.compile(
    r"\b(?:static|reinterpret)_cast<(?:[^<>]|<[^<>]*>)*>\s*\(((?:[^()]|\([^()]*\))*)\)"
    rf"|(?<![\w>])\({_TYPE}\)(?=[\w(])"
)
_MAX_NESTED = 8
_SPACE = re.compile(r"\s+")
# Logs inside logs escape or double quotes, and the backslash of `\n` at the end of a message.
_QUOTE = re.compile(r'(?:\\++n)*+(?:\\*+")++')
_XPU_DIRECTORIES = (["sycl", "xpu"], ["sycl", "aten"])
_MEMBER = re.compile(r"\b(\w*\w)_\b")
_LITERAL = re.compile(r"[\w:=<>&,;! -]*")
_SEPARATOR = re.compile(r"[/\\]+")
_CUT_OFF = frozenset({"", ".", "..", "...", "…"})
_HIP_NAMES = {"hip": "cuda"}
_INTEGER = re.compile(r"-?\d{1,18}")
_GENERATED = re.compile(r"unknown|<.*>|.*\.py")


@dataclass(frozen=True, slots=True)
class ValidRange:
    """``low <= value <= high``, in terms of ``size``; an empty bound is none."""

    low: str
    high: str
    size: str
    """What ``size`` in the bounds stands for, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAssertion:
    """One row of the catalogue; the fields are described at the top of ``catalog.toml``."""

    key: str
    family: str
    title: str
    meaning: str
    expression: str
    also_printed: tuple[str, ...] = ()
    pattern: str = ""
    path: str
    also_in: tuple[str, ...] = ()
    functions: tuple[str, ...]
    operations: tuple[str, ...]
    operand: str
    nature: Nature
    requirement: str
    valid_range: ValidRange | None = None
    negatives: str = ""
    special: tuple[str, ...] = ()
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    """What to do about each of ``causes``."""
    cpu_errors: tuple[str, ...] = ()
    since: str
    until: str = ""
    line: int | None = None
    generic: bool = False

    @property
    def expressions(self) -> tuple[str, ...]:
        """All spellings; for a row with a pattern: examples."""
        return (self.expression, *self.also_printed)

    @property
    def files(self) -> frozenset[str]:
        """Base names of the source files that hold this assertion."""
        return frozenset(base_name(path) for path in (self.path, *self.also_in) if path)

    def is_in(self, file: str) -> bool:
        """Whether ``file``, with any prefix, is a source file that holds this assertion.

        Other projects have files of the same name, so the directories must agree as far as they
        were printed. ROCm builds from copies in ``hip/*.hip``.
        """
        if not self.path:
            return _GENERATED.fullmatch(base_name(file)) is not None
        printed = _components(file)
        return any(_same_file(printed, _components(path)) for path in (self.path, *self.also_in))

    def requirement_of(self, expression: str) -> str:
        """Return what must hold, with the bounds that ``expression`` shows where it has some."""
        lower, upper = self._bounds(expression)
        if not lower and not upper:
            return self.requirement
        parts = (f"{lower} <= " if lower else "", self.operand, f" < {upper}" if upper else "")
        return "".join(parts)

    def numbers_of(self, expression: str) -> dict[str, int | float | str]:
        """Return the bounds that ``expression`` shows, symbolic ones as strings."""
        bounds = zip(("lower", "upper"), self._bounds(expression), strict=True)
        return {
            name: int(text) if _INTEGER.fullmatch(text) else text for name, text in bounds if text
        }

    def _bounds(self, expression: str) -> tuple[str, str]:
        match = _compiled(self.pattern).fullmatch(normalize(expression)) if self.pattern else None
        groups = match.groupdict() if match else {}
        upper = groups.get("upper") or groups.get("upper_only") or ""
        return groups.get("lower") or "", upper.replace("+", " + ")

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
        path = f"{_prefix(torch_version)}{self.path}" if self.path else "unknown"
        line = self.line or (1 if self.path else 0)
        index = f"block: [{_triple(block)}], thread: [{_triple(thread)}] "
        return f"{path}:{line}: {name}: {index}Assertion `{self.expression}` failed."


class Catalog:
    """All rows, looked up by key or by what a line of text says."""

    def __init__(self, rows: tuple[KnownAssertion, ...]) -> None:
        self.rows = rows
        self._by_key = {row.key: row for row in rows}
        self._by_expression: dict[str, list[KnownAssertion]] = {}
        for row in rows:
            for spelling in {normalize(text): None for text in row.expressions}:
                self._by_expression.setdefault(spelling, []).append(row)
        self._patterns = [(_literal_prefix(row.pattern), row) for row in rows if row.pattern]

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
        text = normalize(expression)
        if _components(file)[1:3] in _XPU_DIRECTORIES:
            # PyTorch's kernels for Intel GPUs: the same checks, on members (`sizes_`), in files of
            # other names. What is unmistakable in the CUDA kernels is so here.
            text, file, function = _MEMBER.sub(r"\1", text), "", None
        row = _choose(self._by_expression.get(text, []), file, function)
        return row or _choose(self._matching(text), file, function)

    def _matching(self, text: str) -> Iterable[KnownAssertion]:
        for prefix, row in self._patterns:
            if text.startswith(prefix) and _compiled(row.pattern).fullmatch(text):
                yield row


@functools.cache
def catalog() -> Catalog:
    """Return the catalogue that ships with this package, read once."""
    text = resources.files("cudassert_ipy.decode").joinpath("catalog.toml").read_text("utf-8")
    data = tomllib.loads(text)
    families = {name: _values(entry) for name, entry in data["family"].items()}
    return Catalog(
        tuple(
            KnownAssertion(**{**families[entry["family"]], **_values(entry)})
            for entry in data["assertion"]
        )
    )


def normalize(expression: str) -> str:
    """Return ``expression`` without casts, white space and escapes, which differ between logs."""
    for _ in range(_MAX_NESTED):
        previous, expression = expression, _CAST.sub(r"\1", expression)
        if previous == expression:
            break
    return _QUOTE.sub('"', _SPACE.sub("", expression))


def base_name(path: str) -> str:
    """Return the last component of a Linux or Windows path."""
    return _SEPARATOR.split(path)[-1]


def _choose(
    rows: Iterable[KnownAssertion], file: str, function: str | None
) -> KnownAssertion | None:
    candidates = list(rows)
    if file:
        candidates = [row for row in candidates if row.is_in(file)]
    else:
        named = [row for row in candidates if function and _names(function, row.functions)]
        # A row without functions is printed by `operator()`, whose name says nothing.
        candidates = named or [
            row for row in candidates if not (row.generic or (function and row.functions))
        ]
    if len({(row.operations, row.operand) for row in candidates}) != 1:
        return None
    return candidates[0]


def _values(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a table of the TOML file as fields of :class:`KnownAssertion`."""
    rest = dict(entry)
    values: dict[str, Any] = {}
    if "causes" in rest:
        pairs = rest.pop("causes")
        values["causes"] = tuple(cause for cause, _ in pairs)
        values["remedies"] = tuple(remedy for _, remedy in pairs)
    if "range" in rest:
        values["valid_range"] = ValidRange(**rest.pop("range"))
    for key, value in rest.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    return values


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _literal_prefix(pattern: str) -> str:
    """Return what every text starts with that ``pattern`` can match."""
    prefix = _LITERAL.match(pattern)
    text = prefix[0] if prefix else ""
    quantified = pattern[len(text) : len(text) + 1] in ("?", "*", "+", "{")
    return text[:-1] if quantified else text


def _components(path: str) -> list[str]:
    """Return the components of a path, last first, by the names of the CUDA sources."""
    parts = [_HIP_NAMES.get(part, part) for part in _SEPARATOR.split(path)[::-1]]
    parts[0] = re.sub(r"\.hip$", ".cu", parts[0])
    return parts


def _same_file(printed: list[str], known: list[str]) -> bool:
    if printed[0] != known[0]:
        return False
    # `cuda` is a directory in every project; PyTorch's is `native/cuda`.
    for position in range(1, 3 if known[1] == "cuda" else 2):
        if position >= len(printed) or printed[position] in _CUT_OFF:
            return True
        # The first component may have lost its start to another line.
        is_first = position == len(printed) - 1
        same = known[position].endswith if is_first else known[position].__eq__
        if not same(printed[position]):
            return False
    return True


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
