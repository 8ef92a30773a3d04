"""Check every batch of a loader, and name the samples of the dataset that are bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.checks.batch import located, make_plan
from cudassert_ipy.checks.plan import Bad, Plan, check_plan
from cudassert_ipy.checks.progress import Progress
from cudassert_ipy.checks.sampling import Sampling
from cudassert_ipy.checks.scan_report import BadTensor, ScanReport
from cudassert_ipy.errors import CudassertError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cudassert_ipy.model import Finding

__all__ = ["ScanReport", "scan"]

_MAX_PROBLEMS = 20
_MAX_NAMES = 100


def scan(
    loader: Iterable[Any],
    rules_or_model: Any,
    *,
    stop_at_first: bool = False,
    limit: int = 1_000,
    progress: bool = True,
    call: Callable[[Any, Any], Any] | None = None,
    classes: int | None = None,
    ignore_index: int = -100,
) -> ScanReport:
    """Check every batch of ``loader`` once and return all that is bad, with dataset indices.

    ``rules_or_model``, ``call``, ``classes`` and ``ignore_index`` are those of
    :func:`cudassert_ipy.check_batch`. A model runs on the first batch only; the rules learned from
    it are then compared with every batch. A tensor of which the model uses only what a mask or an
    index selects gives no rule, since another batch may be selected from otherwise. Where a limit
    of the model depends on the sizes of the batch, batches of other sizes are not checked against
    it, and the report says so.

    The loader is iterated as it is, with its own workers and its own order; the random generators
    are afterwards where an iteration leaves them. For a ``DataLoader`` the report names the
    samples: ``loader.dataset[4711]``. With a collate function that may change the order, the
    samples of a bad batch are read again from the dataset in this process, to see which have the
    bad value. Other iterables, and datasets without indices, give batch numbers and rows.

    Ctrl-C, or ``stop_at_first``, ends it early; the report has what was found until then. At most
    ``limit`` bad rows are listed, all are counted.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> labels = torch.tensor([0, 1, 2, 1, 3, 0])
    >>> loader = DataLoader(TensorDataset(torch.rand(6, 4), labels), batch_size=2)
    >>> report = scan(loader, {1: range(3)}, progress=False)
    >>> report
    1 bad value in 1 of 3 batches.
      batch  row  tensor    bad values  valid range  sample
      2      0    batch[1]  3           0 to 2       dataset[4]
    >>> report.dataset_indices
    (4,)

    Raises:
        CudassertError: rules or a model that do not fit the first batch. A later batch that they
            do not fit is listed in the report.

    """
    scanned = _Scan(rules_or_model, limit, (call, classes, ignore_index))
    sampling = Sampling(loader)
    report = scanned.report
    report.no_indices = sampling.reason
    shown = Progress(_length(loader), progress)
    sampling.begin()
    try:
        for batch in loader:
            sampling.end()  # the iteration has begun: the loader needs its own sampler again
            scanned.check(batch, sampling)
            shown.step(report.bad_values)
            if stop_at_first and report.bad_tensors:
                report.end = "stopped"
                break
    except KeyboardInterrupt:
        report.end = "interrupted"
    except CudassertError:
        raise
    except Exception as error:
        error.add_note(messages.SCAN_ERROR_IN.format(batch=report.batches))
        raise
    finally:
        sampling.end()
        shown.close(report.bad_values)
    return report


class _Scan:
    """The state of one scan."""

    def __init__(self, rules_or_model: Any, limit: int, options: tuple[Any, ...]) -> None:
        self._rules_or_model = rules_or_model
        self._options = options
        self._room = max(0, limit)
        self._plan: Plan | None = None
        self.report = ScanReport()

    def check(self, batch: Any, sampling: Sampling) -> None:
        """Check the next batch."""
        report = self.report
        group = sampling.next_group()
        traced: tuple[Finding, ...] = ()
        if self._plan is None:
            self._plan, traced = make_plan(batch, self._rules_or_model, *self._options)
            report.without_rule = tuple(self._plan.without_rule)
        is_first = report.batches == 0
        try:
            result = check_plan(batch, self._plan)
        except CudassertError as error:
            if is_first:
                raise
            if len(report.problems) < _MAX_PROBLEMS:
                text = messages.SCAN_PROBLEM.format(batch=report.batches, error=error)
                report.problems.append(text)
            report.batches += 1
            return
        for name in dict.fromkeys(result.unchecked):
            if name in report.unchecked or len(report.unchecked) < _MAX_NAMES:
                report.unchecked[name] = report.unchecked.get(name, 0) + 1
        for finding in traced:
            self._add(BadTensor(report.batches, finding, possible_indices=group or ()))
        for bad in result.bad:
            self._add(self._entry(bad, group, sampling))
        report.bad_batches += bool(result.bad or traced)
        report.batches += 1

    def _entry(self, bad: Bad, group: tuple[Any, ...] | None, sampling: Sampling) -> BadTensor:
        finding = bad.finding
        if self._room == 0:
            return BadTensor(self.report.batches, finding)
        finding = located(bad)
        rows = bad.rows(self._room)
        if group is None:
            return BadTensor(self.report.batches, finding, tuple(rows))
        samples, is_certain = sampling.samples_of(bad, rows, group)
        certain, possible = (samples, ()) if is_certain else ((), samples)
        return BadTensor(self.report.batches, finding, tuple(rows), certain, possible)

    def _add(self, entry: BadTensor) -> None:
        self.report.bad_tensors += 1
        self.report.bad_values += max(1, entry.finding.bad_count)
        if self._room > 0:
            self._room -= max(1, len(entry.rows))
            self._room = max(0, self._room)
            self.report.entries.append(entry)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None  # a generator, or a loader of an IterableDataset without a length
