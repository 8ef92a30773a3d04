"""The data this tool is about, as frozen dataclasses with JSON both ways.

Everything here is plain data: a diagnosis can be built in a child process, sent over a pipe, stored
across a restart and rendered where torch is not importable. The JSON layouts are contracts.

Numbers are numbers; NaN and the infinities, which JSON does not have, are the strings ``"nan"``,
``"inf"`` and ``"-inf"``.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias, get_args, get_origin, get_type_hints

Kind: TypeAlias = Literal[
    "device_assert",
    "illegal_memory_access",
    "misaligned_address",
    "illegal_instruction",
    "launch_failure",
    "launch_timeout",
    "hardware_error",
    "ecc_error",
    "library_error",
    "out_of_memory",
    "no_kernel_image",
    "out_of_resources",
    "fork_after_init",
    "cuda_error",
    "not_cuda",
]
Platform: TypeAlias = Literal["cuda", "hip", "xpu"]
Context: TypeAlias = Literal["dead", "alive", "unknown"]
Role: TypeAlias = Literal["index", "target", "probability", "count", "offset", "input"]
ReplayWhere: TypeAlias = Literal["cpu", "gpu"]
ReplayState: TypeAlias = Literal["checkpoint", "after_failure", "rerun", "guard"]
Outcome: TypeAlias = Literal["raised", "clean", "inconclusive", "crashed", "timed_out", "cancelled"]
Certainty: TypeAlias = Literal["exact", "depends_on_substitutes"]

MAX_POSITIONS = 20
"""Offending positions and values that a finding lists; ``bad_count`` has the true number."""

_TEXT_LIMIT = 200_000
_ITEMS_LIMIT = 20_000


def _to_json(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    return value


_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _from_json(hint: Any, value: Any, path: str) -> Any:
    """Return ``value`` as the type ``hint`` names, or raise ``ValueError`` that names ``path``."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _from_union(get_args(hint), value, path)
    if origin is Literal:
        if value in get_args(hint):
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple) and len(value) <= _ITEMS_LIMIT:
            item_hint = get_args(hint)[0]
            return tuple(_from_json(item_hint, item, f"{path}[]") for item in value)
    elif origin is dict:
        if isinstance(value, dict) and len(value) <= _ITEMS_LIMIT:
            item_hint = get_args(hint)[1]
            return {
                str(key)[:_TEXT_LIMIT]: _from_json(item_hint, item, f"{path}.*")
                for key, item in value.items()
            }
    elif hint is float:
        if isinstance(value, str) and value in _NON_FINITE:
            return _NON_FINITE[value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif hint is str:
        if isinstance(value, str):
            return value[:_TEXT_LIMIT]
    elif isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_dict(value)
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    msg = f"{path}: expected {hint}, got {type(value).__name__}"
    raise ValueError(msg)


def _from_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and types.NoneType in options:
        return None
    for option in options:
        if option is types.NoneType:
            continue
        try:
            return _from_json(option, value, path)
        except ValueError:
            continue
    msg = f"{path}: {type(value).__name__} does not fit"
    raise ValueError(msg)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


@dataclass(frozen=True, slots=True)
class Record:
    """Base of everything that travels as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: only dicts, lists, strings, finite numbers, booleans and None."""
        return {item.name: _to_json(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Build one from JSON data; the data may be hostile.

        Unknown keys are ignored, so that a newer writer can be read. Raises ``ValueError`` for a
        missing key without default, a wrong type, or a list beyond any sensible length.
        """
        if not isinstance(data, dict):
            msg = f"{cls.__name__}: expected an object, got {type(data).__name__}"
            raise ValueError(msg)  # noqa: TRY004 - wrong data, as documented
        hints = _hints(typing.cast("Any", cls))  # a class is hashable, whatever mypy thinks
        values = {}
        for item in fields(cls):
            path = f"{cls.__name__}.{item.name}"
            if item.name in data:
                values[item.name] = _from_json(hints[item.name], data[item.name], path)
            elif item.default is MISSING and item.default_factory is MISSING:
                msg = f"{path}: missing"
                raise ValueError(msg)
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion(Record):
    """One device-side assertion, decoded; identical ones of many threads are one with a count."""

    expression: str
    file: str
    """Source file as printed, with its path prefix; empty where the platform printed none."""
    line: int | None
    function: str | None
    """Kernel function; None where the platform prints none (Windows)."""
    count: int = 1
    block: tuple[int, ...] | None = None
    """Block index (x, y, z) of the first line of the group."""
    thread: tuple[int, ...] | None = None
    rank: int | None = None
    operations: tuple[str, ...] = ()
    """Operations, by the user's name for them, that launch this kernel."""
    operand: str = ""
    requirement: str = ""
    """What must hold, in words."""
    values: dict[str, int | float | str] | None = None
    """Numbers that a verbose assertion printed."""
    known: bool = False
    """Whether the catalogue has a row for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Record):
    """What went wrong, from an error and its text."""

    version: int = 1
    kind: Kind
    code: int | None = None
    platform: Platform = "cuda"
    context: Context = "unknown"
    sticky: bool | None = None
    process: Literal["this", "child"] = "this"
    blocking: bool | None = None
    """Whether launches were blocking, where the text shows it."""
    message: str = ""
    assertions: tuple[Assertion, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame(Record):
    """One frame of user code on the way from the cell to the operation."""

    function: str
    line: int
    source: str
    file: str = ""
    """File name of the code as Python knows it; a renderer shortens it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(Record):
    """One operation that made or changed the values of an operand, on their way to it."""

    operation: str
    """The user's name for it where torch has one, e.g. ``torch.remainder``."""
    expression: str | None = None
    """What the user wrote for it, e.g. ``ids + 1``; None where it is no expression."""
    line: int | None = None
    """1-based line, counted like that of a finding."""
    source: str = ""
    function: str = ""
    file: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    minimum: int | float | None = None
    """Of the result; None where it was not looked at (large tensors, floats)."""
    maximum: int | float | None = None
    nan_count: int = 0
    given_dtype: str = ""
    """Type of what it was made from; empty where that is not known."""
    given_minimum: int | float | None = None
    given_maximum: int | float | None = None
    given_nan_count: int = 0
    note: str = ""
    """What this operation did to the values, where that is certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(Record):
    """The user's tensor that holds the bad values of an operand that a library made of it."""

    expression: str
    """What the user wrote for it, e.g. ``batch["labels"]``."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    positions: tuple[tuple[int, ...], ...] = ()
    """Where the values stand in it, at most ``MAX_POSITIONS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Record):
    """An operand whose values are outside what its operation allows."""

    operation: str
    """The user's name, e.g. ``torch.nn.functional.embedding``."""
    aten: str
    operand: str
    """The operation's name for the operand, e.g. ``input``."""
    expression: str | None = None
    """What the user wrote for the operand, e.g. ``batch["ids"]``."""
    line: int | None = None
    """1-based line in the cell as typed (or in the file of the innermost user frame)."""
    column: int | None = None
    """0-based character of ``source`` where the failing call or index expression starts."""
    end_column: int | None = None
    source: str = ""
    frames: tuple[Frame, ...] = ()
    """User frames, from the cell inwards."""
    library: Frame | None = None
    """Where in an installed package the operation stands, if the user called it through one."""
    holder: Holder | None = None
    """Only where ``expression`` is None."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    minimum: int | float | None = None
    maximum: int | float | None = None
    valid_minimum: int | float | None = None
    """Smallest valid value; the valid range is closed on both sides."""
    valid_maximum: int | float | None = None
    special_values: tuple[int | float, ...] = ()
    """Values valid beside the range, e.g. ``ignore_index``."""
    nan_count: int = 0
    bad_count: int = 0
    bad_positions: tuple[tuple[int, ...], ...] = ()
    """Positions, one index per dimension, of the first ``MAX_POSITIONS`` offending values."""
    bad_values: tuple[int | float, ...] = ()
    batch_rows: tuple[int, ...] = ()
    """Indices along dimension 0 that hold an offending value (at most ``MAX_POSITIONS``)."""
    dataset_indices: tuple[int, ...] = ()
    """Dataset indices of the items with these offending values, where that is proven."""
    certainty: Certainty = "exact"
    requirement: str = ""
    hint: str = ""
    origin: tuple[Origin, ...] = ()
    """Operations of the replayed cell that made the values, the last one last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow(Record):
    """One tensor that an operation of the cell took as operand."""

    name: str
    role: Role
    operation: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    minimum: int | float | None = None
    maximum: int | float | None = None
    nan_count: int = 0
    inf_count: int = 0
    valid_minimum: int | float | None = None
    valid_maximum: int | float | None = None
    bad_count: int = 0
    substitute: bool = False
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Record):
    """How a replay went."""

    where: ReplayWhere
    state: ReplayState
    outcome: Outcome
    exception: str | None = None
    """The exception's own text, e.g. CPU torch's message."""
    seconds: float = 0.0
    substituted: int = 0
    """Tensors whose values were lost with the context and were replaced by zeros."""
    note: str | None = None
    reasons: tuple[str, ...] = ()
    """What a clean replay of this cell leaves open, the most likely first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Record):
    """The cell a diagnosis belongs to."""

    execution_count: int | None = None
    id: str | None = None
    first_failed: int | None = None
    """Execution count of the cell in which the context died."""
    innocent: bool = False
    """Whether this cell failed only because the context was dead already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedAt(Record):
    """Where Python noticed the error, which under asynchronous launches is rarely its cause."""

    line: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(Record):
    """Versions that a bug report needs."""

    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    gpu: str | None = None
    ipykernel: str | None = None
    front_end: str | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Record):
    """Everything known about one failed cell."""

    version: int = 1
    failure: Failure | None = None
    cell: Cell = field(default_factory=Cell)
    reported_at: ReportedAt | None = None
    finding: Finding | None = None
    more: tuple[Finding, ...] = ()
    """Further bad operands, each at a place of its own: the user's ``except`` let the cell go on,
    or one operation had several."""
    replay: Replay | None = None
    tensors: tuple[TensorRow, ...] = ()
    context: Context = "unknown"
    actions: tuple[str, ...] = ()
    """What can be done next: ``replay``, ``restart_and_replay``, ``restart``, ``report``."""
    environment: Environment = field(default_factory=Environment)


MIME_TYPE = "application/vnd.cudassert.diagnosis.v1+json"
"""Key of ``Diagnosis.to_dict()`` in every display bundle."""
