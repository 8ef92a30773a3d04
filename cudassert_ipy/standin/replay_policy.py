"""The replay on the CPU: a bad operand is an exception at its operation, with the finding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cudassert_ipy.checks.history import History
from cudassert_ipy.checks.inspect import Inspector
from cudassert_ipy.checks.wording import operand_error
from cudassert_ipy.standin.tags import tag_of

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.checks.operators import Operator
    from cudassert_ipy.model import Finding, TensorRow

MAX_FINDINGS = 20


def _is_substitute(tensor: Tensor) -> bool:
    found = tag_of(tensor)
    return found is not None and found.substitute


@dataclass(slots=True)
class Collector:
    """What a replay saw, also where the user's own ``except`` swallowed it."""

    findings: list[Finding] = field(default_factory=list)
    """The first ``MAX_FINDINGS``, in order."""
    substitute_index_passed: bool = False
    """A checked operand had substitute values and was valid: that proves nothing."""
    substitute_integer_read: bool = False
    """An integer made of substitute values became a Python number or a CPU value."""
    history: History = field(default_factory=History)
    inspector: Inspector = field(init=False)

    remarks: list[str] = field(default_factory=list)
    """What was done differently from the device, for the user to know."""
    gaps: list[str] = field(default_factory=list)
    """What could not be run: without a finding the replay is inconclusive."""

    def __post_init__(self) -> None:
        self.inspector = Inspector(_is_substitute, self.history.of)

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """Every checked operand, one row per call in the source (bounded)."""
        return self.inspector.rows


class ReplayPolicy:
    """Checks every operand before its operation; the device itself cannot fail."""

    tracks_substitutes = True

    def __init__(self, collector: Collector, *, device_count: int = 1) -> None:
        self.collector = collector
        self.device_count = device_count

    def launch(self, operator: Operator | None, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Raise ``OperandError`` if an operand of this call is bad."""
        if operator is not None:
            self._check(operator, args, kwargs)
        return True

    def call(self, operator: Operator, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Raise ``OperandError`` if an operand of a torch function is bad."""
        self._check(operator, args, kwargs)
        return True

    def _check(self, operator: Operator, args: tuple[Any, ...], kwargs: Any) -> None:
        checked, findings = self.collector.inspector.inspect(operator, args, kwargs)
        for item in checked:
            if not item.offenders.bad_count and _is_substitute(item.operand.tensor):
                self.collector.substitute_index_passed = True
        if findings:
            room = MAX_FINDINGS - len(self.collector.findings)
            self.collector.findings.extend(findings[:room])
            self.found(findings, operator, args, kwargs)
            raise operand_error(findings[0])

    def found(
        self, findings: list[Finding], operator: Operator, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        """Take the findings of one call, before it raises; here the collector is enough."""

    def reserve(self, size: int) -> None:
        """Do nothing: the CPU has the memory that it has."""

    def allocated(self, storage: Any) -> None:
        """Do nothing: memory is not counted."""

    def synchronize(self) -> None:
        """Do nothing: nothing is asynchronous."""

    def query(self) -> None:
        """Do nothing: nothing is asynchronous."""

    def remark(self, text: str) -> None:
        """Note what is done differently from a real device."""
        if text not in self.collector.remarks:
            self.collector.remarks.append(text)

    def gap(self, text: str) -> None:
        """Note what could not be run."""
        if text not in self.collector.gaps:
            self.collector.gaps.append(text)

    def unreadable(self) -> None:
        """Do nothing: the stand-in cannot die."""

    def copied_to_host(self, tensor: Tensor) -> None:
        """Note where integers that may be wrong leave the tensors that say so."""
        if not tensor.dtype.is_floating_point and _is_substitute(tensor):
            self.collector.substitute_integer_read = True
