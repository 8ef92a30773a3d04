"""Write one call with a bad operand as a script of a few lines, in the user's spelling.

The call comes from a child in which the user's code ran, so all of it is checked before it is
written: names, dtypes and numbers are what they should be, and texts go into comments only.
"""

from __future__ import annotations

import keyword
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cudassert_ipy import messages
from cudassert_ipy.checks.call_data import LITERALS, flat_index
from cudassert_ipy.checks.wording import describe
from cudassert_ipy.replay.spelling import REDUCTIONS, SHRINKING, SPELLINGS, UNSUITED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudassert_ipy.checks.call_data import CallData
    from cudassert_ipy.model import Environment, Finding

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
_ATEN = re.compile(r"aten::([a-z_][a-z0-9_]{0,80})(?:\.([A-Za-z_][A-Za-z0-9_]{0,40}))?")
_TORCH = re.compile(r"torch\.[a-z][a-z0-9_]{1,30}")
_WIDTH: Final = 96
_COMMENT: Final = 300
# Values of these decide whether a call is one at all, so they are never replaced by zeros.
_KEPT: Final = frozenset(
    (
        *("offsets", "lengths", "offs", "repeats", "input_lengths", "target_lengths"),
        *("compressed_indices", "plain_indices", "sorter"),
    )
)
_NON_FINITE = {"nan": 'float("nan")', "inf": 'float("inf")', "-inf": '-float("inf")'}


class CannotWriteError(ValueError):
    """The call cannot be written down; the message says what is missing."""


def operation_scripts(
    call: CallData, finding: Finding, environment: Environment
) -> tuple[str, ...]:
    """Return the script of one call: in the user's spelling, then as the operation of PyTorch.

    Which of them raises the finding is for the caller to try: what a function of torch does before
    it comes to the operation is torch's own. Tensors of up to ``LITERALS`` elements have their
    values; larger ones are zeros, but for the bad elements. Raises :class:`CannotWriteError`.
    """
    writers = []
    packet = _packet(call)[0]
    if packet not in UNSUITED:
        writers.append(_Writer(call, finding).as_written)
    if _packet(call)[1]:
        writers.append(_Writer(call, finding).as_operation)
    head = _head(finding, environment)
    scripts = []
    for write in writers:
        lines = write()
        scripts.append("\n".join([*head, *lines, *_FOOT]) + "\n")
    return tuple(scripts)


_FOOT: Final = ('if device == "cuda":', "    torch.cuda.synchronize()  # the error comes here")


def _packet(call: CallData) -> tuple[str, str | None]:
    match = _ATEN.fullmatch(call.aten)
    if match is None:
        raise CannotWriteError(messages.SCRIPT_ODD)
    return match[1], match[2]


def _head(finding: Finding, environment: Environment) -> list[str]:
    versions = ", ".join(
        f"{name} {value}"
        for name, value in (
            *(("Python", environment.python), ("torch", environment.torch)),
            *(("CUDA", environment.cuda), ("driver", environment.driver)),
            ("GPU", environment.gpu),
        )
        if value
    )
    bare = replace(finding, frames=(), line=None, source="", expression=None, hint="")
    text = describe(bare)
    said = [*messages.SCRIPT_HEAD, versions, "", *messages.SCRIPT_EXPECTED, *text.splitlines()]
    if finding.certainty != "exact":
        said.append(messages.SCRIPT_SUBSTITUTES)
    return [*map(comment, said), "import torch", "", 'device = "cuda"']


def comment(text: str) -> str:
    """Return ``text`` as one line of comment, whatever it holds."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:_COMMENT])
    return f"# {shown}".rstrip()


class _Writer:
    """Writes one call: a variable for each tensor, and the call."""

    def __init__(self, call: CallData, finding: Finding) -> None:
        self._call = call
        self._finding = finding
        self._packet, self._overload = _packet(call)
        self._lines: list[str] = []
        self._names: set[str] = {"torch", "device"}

    def as_written(self) -> list[str]:
        """Return the lines with the function that a user calls."""
        spelling = SPELLINGS.get(self._packet)
        given = self._call.arguments
        if spelling is None:
            raise CannotWriteError(messages.SCRIPT_ODD)
        if spelling.indexes:
            return self._indexed(given)
        positional, named = [], []
        for written in spelling.arguments:
            key, _, rest = written.rpartition("=")
            schema, _, variable = rest.partition(">")
            if given.get(schema) is None:
                continue
            value = given[schema]
            if schema == "mode" and type(value) is int and 0 <= value < 3:
                value = ("sum", "mean", "max")[value]
            if schema == "reduction" and value in (0, 1, 2):
                if REDUCTIONS[value] == "mean":
                    continue
                value = REDUCTIONS[value]
            text = self._value(variable or schema, value)
            if key:
                named.append(f"{key}={text}")
            else:
                positional.append(text)
        function = spelling.function
        if self._finding.operation in spelling.also:
            function = self._finding.operation
        if function.startswith("."):
            return [
                *self._lines,
                self._wrapped(f"{positional[0]}{function}", positional[1:] + named),
            ]
        return [*self._lines, self._wrapped(function, positional + named)]

    def as_operation(self) -> list[str]:
        """Return the lines with the operation itself."""
        texts: list[str] = []
        names = list(self._call.arguments)
        # Positional up to the one called `self`: Python's own call takes that name.
        by_position = names.index("self") if "self" in names else 0
        for place, (name, value) in enumerate(self._call.arguments.items()):
            text = self._value(self._variable(name), value)
            texts.append(text if place <= by_position else f"{self._checked(name)}={text}")
        return [
            *self._lines,
            self._wrapped(f"torch.ops.aten.{self._packet}.{self._overload}", texts),
        ]

    def _indexed(self, given: dict[str, Any]) -> list[str]:
        target = self._value("x", given.get("self"))
        indices = given.get("indices")
        if not isinstance(indices, list):
            raise CannotWriteError(messages.SCRIPT_ODD)
        single = sum(item is not None for item in indices) == 1
        count = 0
        texts = []
        for item in indices:
            count += item is not None
            name = "index" if single else f"index_{count}"
            texts.append(":" if item is None else self._value(name, item, alone=single))
        place = f"{target}[{', '.join(texts)}]"
        if "values" not in given:
            return [*self._lines, place]
        values = self._value("values", given["values"])
        if given.get("accumulate") is True:
            if None in indices:
                raise CannotWriteError(messages.SCRIPT_ODD)
            call = f"{target}.index_put_(({', '.join(texts)},), {values}, accumulate=True)"
            return [*self._lines, call]
        return [*self._lines, f"{place} = {values}"]

    @staticmethod
    def _variable(name: str) -> str:
        return "input" if name == "self" else name

    @staticmethod
    def _checked(name: str) -> str:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or keyword.iskeyword(name):
            raise CannotWriteError(messages.SCRIPT_ODD)
        return name

    def _value(self, name: str, value: Any, *, alone: bool = True) -> str:
        """Return the text of a value; a tensor gets lines and a variable of its own."""
        if isinstance(value, dict):
            if "torch" in value:
                if not isinstance(value["torch"], str) or not _TORCH.fullmatch(value["torch"]):
                    raise CannotWriteError(messages.SCRIPT_ODD)
                return value["torch"]
            variable = self._checked(name)
            while variable in self._names:
                variable += "_"
            self._names.add(variable)
            self._lines += self._tensor(variable, name, value, alone=alone)
            return variable
        if isinstance(value, list):
            items = [self._value(f"{name}_{n}", item) for n, item in enumerate(value)]
            return f"[{', '.join(items)}]"
        if isinstance(value, str):
            return _NON_FINITE.get(value, repr(value))
        if value is None or type(value) in (bool, int, float):
            return repr(value)
        raise CannotWriteError(messages.SCRIPT_ODD)

    def _tensor(
        self, variable: str, name: str, data: dict[str, Any], *, alone: bool
    ) -> Iterable[str]:
        shape, dtype, values = data.get("tensor"), data.get("dtype"), data.get("values")
        if (
            not _is_shape(shape)
            or not isinstance(dtype, str)
            or not _TORCH.fullmatch(f"torch.{dtype}")
        ):
            raise CannotWriteError(messages.SCRIPT_ODD)
        assert isinstance(shape, list)  # noqa: S101  _is_shape says so
        if values is not None and (not isinstance(values, list) or len(values) != math.prod(shape)):
            raise CannotWriteError(messages.SCRIPT_ODD)
        place = f"dtype=torch.{dtype}"
        if data.get("device") is True:
            place += ", device=device"
        size = math.prod(shape)
        small = values is not None and (size <= LITERALS or name in _KEPT)
        if data.get("bad") is True and not small:
            if self._is_rule() and values is not None:
                small = True
            elif self._finding.bad_values and not self._is_rule():
                return self._bad_elements(variable, shape, place, alone=alone)
        if small and values is not None:
            literal = _nested([_number(item) for item in values], shape)
            lines = self._wrapped(f"{variable} = torch.tensor", [literal, place]).split("\n")
            # An empty list says nothing of the other dimensions.
            return lines if size else [f"{variable} = torch.empty({tuple(shape)}, {place})"]
        factory = "ones" if dtype == "bool" else "zeros"
        text = f"{variable} = torch.{factory}({tuple(shape)}, {place})"
        return [f"{text}.to_sparse()" if data.get("sparse") is True else text]

    def _is_rule(self) -> bool:
        return self._finding.valid_minimum is None and self._finding.valid_maximum is None

    def _bad_elements(
        self, variable: str, shape: list[int], place: str, *, alone: bool
    ) -> Iterable[str]:
        finding = self._finding
        values = [_number(item) for item in finding.bad_values]
        if self._packet in SHRINKING and alone:
            return self._wrapped(
                f"{variable} = torch.tensor", [f"[{', '.join(values)}]", place]
            ).split("\n")
        if math.prod(finding.shape) != math.prod(shape):
            raise CannotWriteError(messages.SCRIPT_ODD)
        fill: Any = 0
        low, high = finding.valid_minimum, finding.valid_maximum
        if low is not None and low > 0:
            fill = low
        elif high is not None and high < 0:
            fill = high
        lines = [f"{variable} = torch.full({tuple(shape)}, {_number(fill)}, {place})"]
        for position, value in zip(finding.bad_positions, values, strict=False):
            index = flat_index(position, finding.shape)
            where = []
            for length in reversed(shape):
                where.append(str(index % length))
                index //= length
            lines.append(f"{variable}[{', '.join(reversed(where)) or '()'}] = {value}")
        return lines

    @staticmethod
    def _wrapped(function: str, texts: list[str]) -> str:
        line = f"{function}({', '.join(texts)})"
        if len(line) <= _WIDTH:
            return line
        return "\n".join([f"{function}(", *(f"    {text}," for text in texts), ")"])


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(
        type(size) is int and 0 <= size < 1 << 62 for size in shape
    )


def _number(value: Any) -> str:
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if type(value) is float and not math.isfinite(value):
        return _NON_FINITE[str(value)]
    if type(value) in (bool, int, float):
        return repr(value)
    raise CannotWriteError(messages.SCRIPT_ODD)


def _nested(texts: list[str], shape: list[int]) -> str:
    """Return a nested list of ``shape``."""
    if not shape:
        return texts[0]
    step = len(texts) // shape[0] if shape[0] else 0
    parts = [_nested(texts[n * step : (n + 1) * step], shape[1:]) for n in range(shape[0])]
    return f"[{', '.join(parts)}]"
