"""What a restart would run again and what it would lose, shown before anything happens."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudassert_ipy.restart.handoff import MAX_SOURCE, RecordedCell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LONG_SECONDS = 10.0
"""Cells that took longer than this stand out."""
MAX_LOSSES = 200
_CONTAINER_ITEMS = 1000
_SIZED_PACKAGES = {"numpy", "torch", "pandas", "scipy", "pyarrow", "polars", "PIL"}

# Our own line magics: the restart must never find itself in the plan.
_OWN_LINE = re.compile(r"^%(?:cuda_debug\b|(?:re|un)?load_ext\s+cudassert_ipy\b).*$", re.MULTILINE)
_OWN_CELL = re.compile(r"^%%cuda_debug\b")
_SHELL_LINE = re.compile(r"^\s*(?:!|%(?:sx|system|pip|conda|mamba|uv|micromamba)\b)")
_SHELL_CELL = re.compile(r"^\s*%%(?:bash|sh|script|system|sx|!|cmd)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCell:
    """A cell of the session and how it ended; ``succeeded`` is None where that is not known."""

    cell: RecordedCell
    succeeded: bool | None = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One cell that can run again."""

    source: str
    execution_count: int | None
    seconds: float
    selected: bool
    """Whether it is ticked at first."""
    shell_only: bool
    """It only calls the shell or a package manager: done once is enough, so not ticked."""
    long: bool
    cell_id: str | None = None

    @property
    def cell(self) -> RecordedCell:
        """The cell as the handoff carries it."""
        return RecordedCell(
            source=self.source,
            execution_count=self.execution_count,
            seconds=self.seconds,
            cell_id=self.cell_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One CPU variable that ends with the process."""

    name: str
    type: str
    size: int
    """Bytes, as far as it is known without running the user's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    """What runs again, in this order, and what is lost."""

    steps: tuple[PlanStep, ...] = ()
    losses: tuple[Loss, ...] = ()
    """Largest first."""
    children: tuple[str, ...] = ()
    """Names of child processes that will be ended."""

    def select(self, selected: Sequence[int] | None = None) -> tuple[RecordedCell, ...]:
        """Return the cells with those indices, in plan order; without indices the ticked ones.

        Indices come from a widget: what is out of range is ignored.
        """
        if selected is None:
            return tuple(step.cell for step in self.steps if step.selected)
        wanted = set(selected)
        return tuple(step.cell for index, step in enumerate(self.steps) if index in wanted)


def plan(
    cells: Iterable[PastCell],
    variables: Iterable[Loss] = (),
    children: Iterable[str] = (),
    *,
    failed_count: int | None = None,
) -> RestartPlan:
    """Return the plan for a session.

    Args:
        cells: as they ran. Those that failed are left out; identical ones in a row stand once, with
            the last number; our own magics are taken out.
        variables: what is lost (see ``losses``).
        children: names of the processes that will end.
        failed_count: number of the failing cell. Cells after it are not ticked, since the replay
            needs the state from before it.

    """
    steps: list[PlanStep] = []
    for past in cells:
        if past.succeeded is False:
            continue
        source = _without_own_magics(past.cell.source)
        if not _code_lines(source):
            continue
        step = _step(past.cell, source, failed_count)
        if steps and steps[-1].source == source:
            steps[-1] = step
        else:
            steps.append(step)
    largest = sorted(variables, key=lambda loss: -loss.size)[:MAX_LOSSES]
    return RestartPlan(steps=tuple(steps), losses=tuple(largest), children=tuple(children))


def _step(cell: RecordedCell, source: str, failed_count: int | None) -> PlanStep:
    shell_only = _is_shell_only(source)
    count = cell.execution_count
    too_late = failed_count is not None and count is not None and count > failed_count
    return PlanStep(
        source=source,
        execution_count=count,
        seconds=cell.seconds,
        selected=not (shell_only or too_late or len(source) > MAX_SOURCE),
        shell_only=shell_only,
        long=cell.seconds >= LONG_SECONDS,
        cell_id=cell.cell_id,
    )


def _without_own_magics(source: str) -> str:
    # Blanked, not removed: line numbers in tracebacks stay those of the cell as typed.
    if _OWN_CELL.match(source):
        return source
    return _OWN_LINE.sub("", source)


def _code_lines(source: str) -> list[str]:
    lines = (line.strip() for line in source.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _is_shell_only(source: str) -> bool:
    if _SHELL_CELL.match(source):
        return True
    return all(_SHELL_LINE.match(line) for line in _code_lines(source))


def losses(namespace: Mapping[str, Any], hidden: Iterable[str] = ()) -> tuple[Loss, ...]:
    """Return the variables of ``namespace`` that hold data, with their sizes.

    Modules, functions, classes and private names are not losses. No user code runs: sizes come from
    the interpreter and, for arrays and frames of well-known packages, from their own ``nbytes``.
    """
    skip = set(hidden)
    found = []
    for name, value in list(namespace.items()):
        if name.startswith("_") or name in skip or _is_code(value):
            continue
        found.append(Loss(name=name, type=type(value).__name__, size=_size(value)))
    return tuple(found)


def _is_code(value: Any) -> bool:
    # By type, not by isinstance: that asks the object's __class__, which user code may answer.
    kind = type(value)
    if issubclass(kind, type):
        return True
    return kind.__name__ in {
        "module",
        "function",
        "builtin_function_or_method",
        "method",
        "ZMQExitAutocall",
        "ExitAutocall",
    }


def _size(value: Any, depth: int = 2) -> int:
    kind = type(value)
    if kind.__module__.partition(".")[0] in _SIZED_PACKAGES:
        return _array_size(value)
    total = sys.getsizeof(value) if kind.__module__ == "builtins" else object.__sizeof__(value)
    if depth and kind in (list, tuple, set, frozenset, dict):
        items = list(value.values() if kind is dict else value)[:_CONTAINER_ITEMS]
        total += sum(_size(item, depth - 1) for item in items)
    return total


def _array_size(value: Any) -> int:
    try:
        if hasattr(value, "memory_usage"):  # pandas
            usage = value.memory_usage(deep=False)
            return int(usage if isinstance(usage, int) else usage.sum())
        return int(getattr(value, "nbytes", 0))
    except Exception:  # foreign classes may raise anything; a size is only a courtesy
        return 0
