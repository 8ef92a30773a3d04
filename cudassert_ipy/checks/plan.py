"""The checks of a batch, from whatever a user gives: a rule, rules by key path, or a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.checks.paths import Path, as_tensor, find, path_text, read, walk
from cudassert_ipy.checks.rules import Demand, Rule, Unreadable, as_rule, bad_rows, check
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.report.clean import clean_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from cudassert_ipy.checks.region import Region
    from cudassert_ipy.model import Finding

Shapes = dict[Path, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One demand on one place of every batch."""

    demand: Demand
    key: Any = ()
    """What the user wrote; a tuple of keys where a model was traced."""
    path: Path | None = None
    """Where the place is known exactly."""
    region: Region | None = None
    """The part of the tensor that the demand is about; None: all of it."""
    shapes: Shapes | None = None
    """The demand holds only for batches with these shapes; None: for all."""
    rule_of: Callable[[Any], Any] | None = None
    """Makes the rule from the batch, where it depends on the batch."""


@dataclass(slots=True)
class Plan:
    """What is checked in every batch."""

    asked: list[Asked] = field(default_factory=list)
    without_rule: list[str] = field(default_factory=list)
    """Integer tensors of the batch for which no rule could be derived from the model."""
    met: frozenset[str] = frozenset()
    """Tensors of which the traced model itself checked what it used, in this batch only."""


@dataclass(frozen=True, slots=True)
class Bad:
    """One tensor of one batch that breaks a demand."""

    finding: Finding
    demand: Demand
    path: Path
    tensor: Tensor
    region: Region | None = None
    has_rows: bool = True
    """Whether dimension 0 can be the batch."""

    @property
    def row_count(self) -> int:
        """The number of batch rows: 1 for a single number, 0 where there are none."""
        if not self.has_rows:
            return 0
        return self.tensor.shape[0] if self.tensor.dim() else 1

    def rows(self, limit: int) -> list[int]:
        """Return the rows with bad values: more than a finding lists."""
        part = self.tensor if self.region is None else self.region.of(self.tensor)
        if part is None or not self.has_rows:
            return []
        rows = bad_rows(part, self.demand, limit)
        return rows if self.region is None else self.region.rows(rows, self.tensor)


@dataclass(slots=True)
class Result:
    """What checking one batch gave."""

    bad: list[Bad] = field(default_factory=list)
    checked: int = 0
    unchecked: list[str] = field(default_factory=list)


def plan_from_rules(rules: Any) -> Plan:
    """Return the plan for a dict from key path to rule, or for one rule about the whole batch.

    Raises ``CudassertError`` for anything else, and for a dict without rules.
    """
    pairs = rules.items() if isinstance(rules, Mapping) else [((), rules)]
    plan = Plan()
    for key, value in pairs:
        if callable(value) and not isinstance(value, Rule):
            plan.asked.append(Asked(Demand(Rule()), key=key, rule_of=value))
        else:
            plan.asked.append(Asked(Demand(as_rule(value)), key=key))
    if not plan.asked:
        raise CudassertError(messages.RULES_EMPTY)
    return plan


def check_plan(batch: Any, plan: Plan) -> Result:
    """Check one batch. Raises ``CudassertError`` where a rule names what the batch lacks."""
    result = Result()
    shapes: Shapes | None = None
    for asked in plan.asked:
        if asked.shapes is not None:
            shapes = shapes if shapes is not None else shapes_of(batch)
            if shapes != asked.shapes:
                result.unchecked.append(path_text(asked.path or ()))
                continue
        demand = asked.demand
        if asked.rule_of is not None:
            demand = Demand(_called(asked.rule_of, batch))
        for path, tensor in _tensors(batch, asked):
            _check_one(result, asked, demand, path, tensor, batch)
    return result


def shapes_of(batch: Any) -> Shapes:
    """Return the shape of every tensor in the batch."""
    return {leaf.path: tuple(leaf.tensor.shape) for leaf in walk(batch).found}


def _check_one(
    result: Result, asked: Asked, demand: Demand, path: Path, tensor: Tensor, batch: Any
) -> None:
    name = path_text(path)
    part = tensor
    if asked.region is not None:
        found = asked.region.of(tensor)
        if found is None:
            result.unchecked.append(name)
            return
        part = found
    try:
        finding = check(part, demand, name)
    except Unreadable:
        result.unchecked.append(name)
        return
    result.checked += 1
    if finding is None:
        return
    if asked.region is not None:
        finding = asked.region.place(finding, tensor)
    has_rows = _has_rows(path, tensor, batch)
    if not has_rows:
        finding = replace(finding, batch_rows=())
    result.bad.append(Bad(finding, demand, path, tensor, asked.region, has_rows))


def _has_rows(path: Path, tensor: Tensor, batch: Any) -> bool:
    """Whether dimension 0 can be the batch: no row is better than a wrong one.

    It is not in the ``edge_index`` of torch_geometric (2 rows: from and to), nor where no other
    tensor of the batch has the same size.
    """
    if tensor.dim() < 2:
        return True
    name = str(path[-1].key) if path else ""
    if tensor.shape[0] == 2 and "edge" in name and name.endswith("index"):
        return False
    others = [shape for other, shape in shapes_of(batch).items() if other != path and shape]
    return not others or any(shape[0] == tensor.shape[0] for shape in others)


def _tensors(batch: Any, asked: Asked) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors that a rule is about: of a list or the like, every tensor in it."""
    if asked.path is not None:
        nodes = [(asked.path, read(batch, asked.path))]
    elif asked.key == ():
        nodes = [((), batch)]
    else:
        nodes = find(batch, asked.key)
    for path, value in nodes:
        tensor = as_tensor(value)
        if tensor is not None:
            yield path, tensor
            continue
        leaves = walk(value, path)
        if not leaves.found or leaves.is_cut or leaves.unread:
            kind = type(value).__name__
            template = (
                messages.RULE_TOO_LARGE
                if leaves.found or leaves.is_cut
                else messages.RULE_NO_TENSOR
            )
            raise CudassertError(template.format(part=path_text(path), kind=kind))
        for leaf in leaves.found:
            yield leaf.path, leaf.tensor


def _called(rule_of: Callable[[Any], Any], batch: Any) -> Rule:
    try:
        value = rule_of(batch)
    except Exception as error:  # a user's function may raise anything
        what = clean_line(f"{type(error).__name__}: {error}", 200)
        raise CudassertError(messages.RULE_FAILED.format(error=what)) from error
    try:
        return as_rule(value)
    except CudassertError as error:
        text = messages.RULE_OF_FUNCTION.format(error=error, kind=type(value).__name__)
        raise CudassertError(text) from None
