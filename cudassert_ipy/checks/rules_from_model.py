"""What a model demands of its batch, learned by running it once on a copy of one batch."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from cudassert_ipy import messages
from cudassert_ipy.checks.calling import call_model, scores_of
from cudassert_ipy.checks.inspect import Inspector, called, dtype_name
from cudassert_ipy.checks.location import locate_call
from cudassert_ipy.checks.model_copy import Borrowed, borrow, kept_random_state
from cudassert_ipy.checks.operators import function_table, lookup, table
from cudassert_ipy.checks.origins import Origins, split, storage_of
from cudassert_ipy.checks.paths import Leaf, path_text, walk
from cudassert_ipy.checks.plan import Asked, Plan, check_plan, shapes_of
from cudassert_ipy.checks.region import Region, region_of
from cudassert_ipy.checks.rules import Demand, Rule
from cudassert_ipy.checks.statistics import locate
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.report.clean import clean_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from cudassert_ipy.checks.operators import Operand, Operator
    from cudassert_ipy.model import Finding

_MAX_ASKED = 1_000
_MAX_FINDINGS = 50


def plan_from_model(
    model: Any,
    batch: Any,
    call: Callable[[Any, Any], Any] | None,
    classes: int | None,
    ignore_index: int,
) -> tuple[Plan, tuple[Finding, ...]]:
    """Return the demands that ``model`` makes on ``batch``, and bad operands they do not explain.

    Raises ``CudassertError`` where the model or the batch cannot be copied, or cannot run.
    """
    leaves = walk(batch)
    if leaves.is_cut or not leaves.found:
        raise CudassertError(messages.MODEL_BATCH)
    borrowed = borrow(model)
    copies, batch_copy = _copy_batch(batch, leaves.found)
    recorder = _Recorder(leaves.found, copies, borrowed, shapes_of(batch))
    output, fed = None, None
    with kept_random_state():
        try:
            with torch.no_grad(), recorder, _Functions(recorder.note):
                output, fed = call_model(borrowed.model, batch_copy, call)
        except CudassertError:
            raise
        except Exception as error:  # the user's model may raise anything
            if not recorder.findings:  # else what was found is the cause, and is reported
                what = clean_line(f"{type(error).__name__}: {error}", 300)
                raise CudassertError(messages.MODEL_FAILED.format(error=what)) from error
        finally:
            recorder.put_back()
    plan = Plan(asked=recorder.asked)
    if fed is not None:
        labels = [
            n
            for n, leaf in enumerate(leaves.found)
            if n not in recorder.touched and not _is_below(leaf.path, fed) and _is_index(leaf)
        ]
        _add_labels(plan, leaves.found, labels, scores_of(output), classes, ignore_index, recorder)
    known = {asked.path for asked in plan.asked}
    plan.without_rule = [
        path_text(leaf.path) for leaf in leaves.found if _is_index(leaf) and leaf.path not in known
    ]
    plan.met = frozenset(path_text(leaves.found[number].path) for number in recorder.met)
    return plan, recorder.unexplained(check_plan(batch, plan).bad)


class _Recorder(TorchDispatchMode):
    """Notes which batch tensors reach which operand; bad values are replaced, and it goes on."""

    def __init__(
        self, leaves: list[Leaf], copies: list[Tensor], borrowed: Borrowed, shapes: Any
    ) -> None:
        super().__init__()
        self._operators = table()
        self._inspector = Inspector()
        self._leaves = leaves
        self._origins = Origins()
        self._storages: dict[int, int] = {}
        self._borrowed = borrowed
        self._shapes = shapes
        self._batch_sizes = {size for shape in shapes.values() for size in shape}
        self._seen: set[Any] = set()
        self.asked: list[Asked] = []
        self.touched: set[int] = set()
        self.met: set[int] = set()
        self.findings: list[tuple[Finding, tuple[Any, ...]]] = []
        for number, tensor in enumerate(copies):
            storage = storage_of(tensor)
            # One tensor under two keys goes by the first: they cannot be told apart.
            if storage is None or storage in self._storages:
                continue
            if self._origins.add(number, tensor):
                self._storages[storage] = number

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in the guard: else torch imports torch._dynamo

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self._touch((args, kwargs))
        if func._schema.is_mutable:
            self._borrowed.keep(func, args)
        operator = self._operators.get(func)
        if operator is not None:
            args, kwargs = self.note(operator, args, kwargs)
        result = func(*args, **kwargs)
        self._origins.follow(func, args, kwargs, result)
        return result

    def put_back(self) -> None:
        """Undo what the run changed in the user's parameters."""
        self._borrowed.put_back()

    def unexplained(self, bad: Any) -> tuple[Finding, ...]:
        """Return bad operands for which none of ``bad`` stands.

        They were made inside the model.
        """
        explained = {(item.path, item.finding.aten) for item in bad}
        return tuple(
            finding
            for finding, paths in self.findings
            if not any((path, finding.aten) in explained for path in paths)
        )

    def is_fixed(self, size: int) -> bool:
        """Whether a size is the model's own, and not one that the batch happens to have."""
        return size in self._borrowed.sizes and size not in self._batch_sizes

    def _touch(self, arguments: Any) -> None:
        def note(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                number = self._storages.get(storage_of(value) or 0)
                if number is not None:
                    self.touched.add(number)
            return value

        tree_map(note, arguments)

    def note(
        self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Note the operands of one call; return its arguments with valid values in bad places."""
        checked, findings = self._inspector.inspect(operator, args, kwargs)
        replaced: dict[int, Tensor] = {}
        remaining = iter(findings)
        for item in checked:
            paths: list[Any] = []
            codes = self._origins.of(item.operand.tensor)
            if codes is not None:
                self.met.update(split(codes, chosen=True))
            if codes is not None and _is_about_values(item.operand):
                fixed = self._bound_is_fixed(item.operand, (args, kwargs))
                for number, positions in split(codes).items():
                    paths.append(self._leaves[number].path)
                    self._ask(operator, item.operand, number, positions, fixed)
            if item.offenders.bad_count:
                replaced[id(item.operand.tensor)] = _made_valid(item.operand)
                finding = next(remaining)
                if codes is not None:
                    finding = in_batch(finding, item.operand, codes, self._leaves)
                self._found(finding, tuple(paths))
        if replaced:
            args, kwargs = tree_map(lambda v: replaced.get(id(v), v), (args, kwargs))
        return args, kwargs

    def _found(self, finding: Finding, paths: tuple[Any, ...]) -> None:
        # One bad edge of a graph is met by every layer.
        places = {(item.expression, item.bad_positions) for item, _ in self.findings}
        is_new = (finding.expression, finding.bad_positions) not in places
        if is_new and len(self.findings) < _MAX_FINDINGS:
            self.findings.append((finding, paths))

    def _ask(
        self, operator: Operator, operand: Operand, number: int, positions: Tensor, fixed: bool
    ) -> None:
        leaf = self._leaves[number]
        region: Region | None = None
        if positions.numel() != leaf.tensor.numel():
            region = region_of(positions, tuple(leaf.tensor.shape))
            if region is None:
                return
        key = (leaf.path, region, operator.aten, operand.low, operand.high, operand.special)
        if key in self._seen or len(self.asked) >= _MAX_ASKED:
            return
        self._seen.add(key)
        here = locate_call()
        demand = Demand(
            Rule(operand.low, operand.high, operand.special, finite=operand.finite),
            operation=called(operator, operand),
            aten=operator.aten,
            operand=operand.name,
            role=operand.role,
            requirement=operand.requirement,
            operator=operator,
            # Without its frames: they would keep the copy of the model alive.
            location=replace(here, _frame=None, _span=None, _callee=None),
        )
        shapes = None if fixed else self._shapes
        self.asked.append(Asked(demand, path=leaf.path, region=region, shapes=shapes))

    def _bound_is_fixed(self, operand: Operand, arguments: Any) -> bool:
        """Whether the operand's range is the same for every batch.

        It is where it is the size of a parameter; a size that only an activation has may follow
        from the batch (the length of its sequences, the number of its nodes).
        """
        if operand.high is None or operand.role == "probability":
            return True
        size = int(operand.high) + 1
        sized = []

        def note(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value is not operand.tensor:
                sized.append(size in value.shape and self._borrowed.owns(value))
            return value

        tree_map(note, arguments)
        return any(sized) or self.is_fixed(size)


def in_batch(finding: Finding, operand: Operand, codes: Tensor, leaves: list[Leaf]) -> Finding:
    """Return a finding inside the model as one about the batch tensor that its values came from.

    The finding stays as it is where some bad value has another origin, or none.
    """
    if operand.bad is not None:
        return finding
    for number, positions in split(codes, chosen=True).items():
        leaf = leaves[number]
        shape = tuple(leaf.tensor.shape)
        values = leaf.tensor.detach().flatten()[positions.to(leaf.tensor.device)]
        offenders = locate(replace(operand, tensor=values))
        if not offenders.bad_count or set(offenders.values) != set(finding.bad_values):
            continue
        places = torch.unravel_index(positions[[place[0] for place in offenders.positions]], shape)
        bad_positions = tuple(zip(*(axis.tolist() for axis in places), strict=True))
        rows = dict.fromkeys(position[0] for position in bad_positions if position)
        return replace(
            finding,
            expression=path_text(leaf.path),
            shape=shape,
            dtype=dtype_name(leaf.tensor),
            bad_count=offenders.bad_count,
            bad_positions=bad_positions,
            bad_values=offenders.values,
            batch_rows=tuple(rows),
        )
    return finding


class _Functions(TorchFunctionMode):
    """Sees the functions that change their operand before any operation has it."""

    def __init__(self, note: Callable[[Operator, Any, Any], tuple[Any, Any]]) -> None:
        super().__init__()
        self._note = note
        self._operators = function_table()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operator = self._operators.get(func)
        if operator is not None:
            args, kwargs = self._note(operator, args, kwargs)
        return func(*args, **kwargs)


def _is_about_values(operand: Operand) -> bool:
    """Whether the operand's range can be told of single values of another batch.

    Orders, sums and ends cannot, and what counts elements is bounded by what the batch holds.
    """
    if operand.bad is not None or (operand.low is None and operand.high is None):
        return False
    return operand.role in ("index", "target", "probability") or operand.high is None


def _made_valid(operand: Operand) -> Tensor:
    """Return values that the operation accepts."""
    low = 0 if operand.low is None else max(operand.low, 0)
    high = operand.high
    if high is None or high < low:
        return operand.tensor
    return torch.nan_to_num(operand.tensor).clamp(low, high)


def _copy_batch(batch: Any, leaves: list[Leaf]) -> tuple[list[Tensor], Any]:
    """Return copies on the CPU of all tensors, and the batch with them in their places."""
    memo: dict[int, Any] = {}
    copies = []
    for leaf in leaves:
        made = memo.get(id(leaf.tensor))
        if made is None:
            try:
                made = _contiguous(leaf.tensor.detach().to("cpu", copy=True))
            except RuntimeError as error:  # a dead context, or a tensor without storage
                what = clean_line(str(error), 200)
                text = messages.BATCH_UNREADABLE.format(part=path_text(leaf.path), error=what)
                raise CudassertError(text) from error
            memo[id(leaf.tensor)] = made
        copies.append(made)
    try:
        return copies, copy.deepcopy(batch, memo)
    except Exception as error:  # any object may be part of a user's batch
        what = clean_line(f"{type(error).__name__}: {error}", 200)
        raise CudassertError(messages.MODEL_COPY_BATCH.format(error=what)) from error


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.contiguous() if tensor.layout is torch.strided else tensor


def _add_labels(
    plan: Plan,
    leaves: list[Leaf],
    labels: list[int],
    scores: Tensor | None,
    classes: int | None,
    ignore_index: int,
    recorder: _Recorder,
) -> None:
    """Check integers that the model was not given as labels, if they can be nothing else."""
    if len(labels) != 1:
        if classes is not None:
            raise CudassertError(messages.MODEL_CLASSES.format(count=len(labels)))
        return
    leaf = leaves[labels[0]]
    shapes = None
    if classes is None:
        if scores is None or not _are_labels(leaf.tensor, scores):
            return
        classes = scores.shape[1]
        shapes = None if recorder.is_fixed(classes) else recorder._shapes
    operator = lookup(torch.ops.aten.nll_loss_forward.default)
    name = "torch.nn.functional.cross_entropy"
    demand = Demand(
        Rule(0, classes - 1, ignore_index),
        operation=name if operator is None else operator.name,
        operand="target",
        role="target",
        requirement=messages.MODEL_LABELS.format(classes=classes),
        operator=operator,
    )
    plan.asked.append(Asked(demand, path=leaf.path, shapes=shapes))


def _are_labels(labels: Tensor, scores: Tensor) -> bool:
    if scores.dim() < 2 or scores.shape[1] < 2 or not scores.is_floating_point():
        return False
    return tuple(labels.shape) == (scores.shape[0], *scores.shape[2:])


def _is_index(leaf: Leaf) -> bool:
    kind = leaf.tensor.dtype
    return not (kind.is_floating_point or kind.is_complex or kind is torch.bool)


def _is_below(path: Any, fed: Any) -> bool:
    return any(path[: len(start)] == start for start in fed)
