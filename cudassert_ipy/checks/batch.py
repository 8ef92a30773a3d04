"""Check one batch against rules, or against what a model demands of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.checks.location import locate_call
from cudassert_ipy.checks.plan import Plan, check_plan, plan_from_rules
from cudassert_ipy.checks.rules import Rule
from cudassert_ipy.checks.wording import describe
from cudassert_ipy.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cudassert_ipy.checks.plan import Bad
    from cudassert_ipy.model import Finding

__all__ = ["BatchReport", "Rule", "check_batch"]

_MAX_DESCRIBED = 5


@dataclass(frozen=True, slots=True, repr=False)
class BatchReport:
    """What :func:`check_batch` found: a sequence of findings, true where there is one."""

    findings: tuple[Finding, ...] = ()
    checked: int = 0
    """How many tensors (or parts of one) were compared with a rule."""
    unchecked: tuple[str, ...] = ()
    """Tensors that have a rule which could not be applied, or for which none could be derived."""

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, position: int) -> Finding:
        return self.findings[position]

    def __repr__(self) -> str:
        lines = [describe(finding) for finding in self.findings[:_MAX_DESCRIBED]]
        more = len(self.findings) - len(lines)
        if more:
            lines.append(messages.BATCH_MORE.format(count=more))
        if not lines:
            tensors = "tensor" if self.checked == 1 else "tensors"
            lines = [messages.BATCH_GOOD.format(count=self.checked, tensors=tensors)]
            if not self.checked:
                lines = [messages.BATCH_NOTHING]
        if self.unchecked:
            names = ", ".join(self.unchecked[:10]) + (", …" if len(self.unchecked) > 10 else "")
            lines.append(messages.BATCH_UNCHECKED.format(names=names))
        return "\n".join(lines)

    def raise_if_bad(self) -> None:
        """Raise :class:`~cudassert_ipy.OperandError` where something is bad.

        Its text describes all findings, its ``finding`` is the first.
        """
        if self.findings:
            raise OperandError(repr(self), self.findings[0])


def check_batch(
    batch: Any,
    rules_or_model: Any,
    *,
    call: Callable[[Any, Any], Any] | None = None,
    classes: int | None = None,
    ignore_index: int = -100,
    raise_error: bool = True,
) -> BatchReport:
    """Check the tensors of a batch, on the CPU or on a GPU, before a kernel asserts on them.

    ``batch`` is any nesting of tensors, numpy arrays, lists, tuples, named tuples, dicts,
    dataclasses, transformers' ``BatchEncoding`` or objects with attributes, such as
    ``torch_geometric.data.Data``.

    Rules go from a key path to what is valid there. A path is a key, a position, or a nesting of
    them: ``"inputs.ids"``, ``"targets[*].labels"``, ``'["a"][0]'``. A rule is ``range(10)`` or
    ``10`` (0 to 9), ``(low, high)`` with both ends included, a :class:`~cudassert_ipy.Rule`, or a
    function that is given the batch and returns one of these. One rule without a dict is for the
    whole batch.

    >>> import torch
    >>> batch = {"ids": torch.tensor([[1, 7], [3, 2]]), "labels": torch.tensor([0, -100])}
    >>> check_batch(batch, {"ids": range(10), "labels": Rule(0, 1, ignore=-100)})
    No bad values: 2 tensors checked.
    >>> check_batch(batch, {"ids": lambda batch: 10, "labels": (-100, 1)})
    No bad values: 2 tensors checked.
    >>> report = check_batch(batch, {"ids": 7}, raise_error=False)
    >>> report[0].bad_values, report[0].bad_positions, report[0].batch_rows
    ((7,), ((0, 1),), (0,))

    **A model** instead of rules: it runs once on a copy of the batch, on the CPU, in evaluation
    mode and without gradients, and each tensor of the batch is checked for the operations that it
    reaches. Followed are views, copies, concatenation, padding and selection; a tensor that the
    model changes by arithmetic before it uses it is listed as unchecked, and a bad result of that
    arithmetic is reported with the model's line. The model, its
    buffers and the state of the random generators stay as they are; the copy needs room for the
    buffers, and for the parameters too where they are on a GPU. A dict becomes
    ``model(**batch)`` as far as the signature takes it, ``(x, y)`` becomes ``model(x)``;
    ``call=lambda model, batch: ...`` says it otherwise. If exactly one integer tensor is left
    over, and its shape is that of class labels for the model's output, it is checked against the
    number of classes; ``classes=10`` says that number.

    One pass over the values and one wait for the device per tensor, where all is well.

    Raises:
        OperandError: something is bad; its text has all findings, ``.finding`` is the first. It
            is raised rather than returned because the call usually stands alone in front of the
            step, where a report that nobody reads would let the bad batch through.
            ``raise_error=False`` returns the report instead.
        CudassertError: a rule or path that means nothing for this batch, or a model that cannot
            run on it.

    """
    plan, traced = make_plan(batch, rules_or_model, call, classes, ignore_index)
    result = check_plan(batch, plan)
    findings = tuple(located(bad) for bad in result.bad) + traced
    unknown = [name for name in plan.without_rule if name not in plan.met]
    unchecked = dict.fromkeys([*result.unchecked, *unknown])
    report = BatchReport(findings, result.checked, tuple(unchecked))
    if raise_error:
        report.raise_if_bad()
    return report


def make_plan(
    batch: Any,
    rules_or_model: Any,
    call: Callable[[Any, Any], Any] | None,
    classes: int | None,
    ignore_index: int,
) -> tuple[Plan, tuple[Finding, ...]]:
    """Return what to check, and bad operands of a traced model that no rule accounts for."""
    import torch

    if isinstance(rules_or_model, torch.nn.Module):
        from cudassert_ipy.checks.rules_from_model import plan_from_model

        return plan_from_model(rules_or_model, batch, call, classes, ignore_index)
    return plan_from_rules(rules_or_model), ()


def located(bad: Bad) -> Finding:
    """Return the finding with the model's line that demands it, else that of the user's call."""
    here = bad.demand.location or locate_call()
    return replace(
        bad.finding,
        line=here.line,
        column=here.column,
        end_column=here.end_column,
        source=here.source,
        frames=here.frames,
    )
