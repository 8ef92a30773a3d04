"""What the child tells its parent and what the parent asks of it: one JSON object a line.

The user's code runs in the child and can write to the pipe, so the parent treats every byte as
hostile: lines and their number are bounded, nothing is unpickled or executed, and what does not fit
an event, or does not carry the token that the worker was made with, is counted and dropped. (Code
that searches the child's memory for the token can still tell anything.)
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

from cudassert_ipy.checks.call_data import CallData  # noqa: TC001 - read at run time
from cudassert_ipy.model import Finding, Outcome, Record, ReplayState, TensorRow

LINE_LIMIT: Final = 256 * 1024
"""Bytes of one event; a longer line is dropped."""
EVENT_LIMIT: Final = 20_000
"""Events of one replay; further ones are dropped, except findings and the child's last word."""
FOUND_LIMIT: Final = 100
"""Findings of one replay, whatever else was sent."""
_TEXT_LIMIT = 4_000
_LIST_LIMIT = 1_000
_DIGITS_LIMIT = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Record):
    """The child is alive."""

    label: str
    seconds: float
    """Seconds since the cell started."""
    fraction: float | None = None
    """Part done, 0 to 1; None where nobody can know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Record):
    """An operation was given an operand that its CUDA kernel would assert on."""

    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Called(Record):
    """The call that the first finding is about, to write it down as a script."""

    call: CallData


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Record):
    """One tensor that an operation of the cell took as operand."""

    row: TensorRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark(Record):
    """CPU torch's own message for the operation of the first finding."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Record):
    """The child's last word."""

    outcome: Outcome
    exception: str | None = None
    seconds: float = 0.0
    cell_seconds: float = 0.0
    """Seconds that the code itself ran, without what was set up before it."""
    substituted: int = 0
    note: str | None = None
    reasons: tuple[str, ...] = ()
    """What a clean replay leaves open, the most likely first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Record):
    """Text that the cell printed. Read from the child's own stdout and stderr, never sent."""

    text: str


Event: TypeAlias = Progress | Found | Called | Row | Remark | Done | Output

_KINDS: Final[dict[str, type[Progress | Found | Called | Row | Remark | Done]]] = {
    "progress": Progress,
    "found": Found,
    "called": Called,
    "row": Row,
    "remark": Remark,
    "done": Done,
}
_NAMES: Final = {cls: name for name, cls in _KINDS.items()}


def encode(event: Progress | Found | Called | Row | Remark | Done, token: str) -> bytes:
    """Return ``event`` as one line of ASCII JSON, its texts and lists cut to a sensible length.

    The line feed before it ends what the cell may have written to the pipe.
    """
    data = {**_cut(event.to_dict()), "event": _NAMES[type(event)], "token": token}
    return b"\n" + json.dumps(data, allow_nan=False).encode("ascii") + b"\n"


def _cut(value: Any) -> Any:
    """Cut texts and lists, and replace lone surrogates, which no file or terminal can take."""
    if isinstance(value, str):
        return value[:_TEXT_LIMIT].encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_cut(item) for item in value[:_LIST_LIMIT]]
    if isinstance(value, dict):
        return {_cut(key): _cut(item) for key, item in islice(value.items(), _LIST_LIMIT)}
    return value


class EventDecoder:
    """Turn the bytes of the pipe, in any chunks, into events.

    Args:
        token: what each line must carry.

    Attributes:
        rejected: lines that were no event, too long, too many or without the token.

    """

    def __init__(self, token: str) -> None:
        self.rejected = 0
        self._token = token
        self._accepted = 0
        self._found = 0
        self._pending = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that ``data`` completes. Never raises for any bytes."""
        events: list[Event] = []
        for piece in _lines(data):
            complete = piece.endswith(b"\n")
            if not self._skipping:
                self._pending += piece
                if len(self._pending) > LINE_LIMIT:
                    self._pending.clear()
                    self._skipping = True
                    self.rejected += 1
            if complete:
                if not self._skipping:
                    self._finish_line(events)
                self._pending.clear()
                self._skipping = False
        return events

    def _finish_line(self, events: list[Event]) -> None:
        line = bytes(self._pending).strip()
        if not line:
            return
        event = _decode(line, self._token)
        if event is None or not self._has_room(event):
            self.rejected += 1
        else:
            events.append(event)

    def _has_room(self, event: Event) -> bool:
        """Count ``event``; no flood of the others takes the room of a finding or the last word."""
        if isinstance(event, Found):
            self._found += 1
            return self._found <= FOUND_LIMIT
        self._accepted += 1
        return self._accepted <= EVENT_LIMIT or isinstance(event, Done)


def _lines(data: bytes) -> list[bytes]:
    """Split at line feeds only, and keep them."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _decode(line: bytes, token: str) -> Event | None:
    try:
        data = json.loads(
            line, parse_constant=_no_constant, parse_float=_finite, parse_int=_short_int
        )
        if not isinstance(data, dict) or data.get("token") != token:
            return None
        kind = _KINDS.get(str(data.get("event")))
        return None if kind is None else kind.from_dict(_cut(data))
    except (ValueError, TypeError, RecursionError):
        return None


def _no_constant(name: str) -> Any:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_constant(text)


def _short_int(text: str) -> int:
    return int(text) if len(text) <= _DIGITS_LIMIT else _no_constant("a number of that length")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest(Record):
    """What the parent asks of the waiting child."""

    source: str
    """The cell as the user typed it."""
    state: ReplayState = "checkpoint"
    timeout: float = 120.0
    """Seconds that the cell may take."""
    rng: dict[str, Any] | None = None
    """``RandomState.to_dict()`` to restore before the cell; None keeps the state of the fork."""

    def line(self) -> bytes:
        """Return the request as one line of JSON, whatever its length."""
        return json.dumps(self.to_dict()).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> ReplayRequest:
        """Read what :meth:`line` wrote. Raises ``ValueError`` for anything else."""
        return cls.from_dict(json.loads(line))
