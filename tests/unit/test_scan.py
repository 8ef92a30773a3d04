"""scan: every batch of a loader, the samples that are bad, and a loader left as it was."""

import io
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from cudassert_ipy import CudassertError, ScanReport, scan
from cudassert_ipy.checks import progress as progress_module
from cudassert_ipy.checks.region import region_of
from cudassert_ipy.checks.scan_report import BadTensor
from cudassert_ipy.model import Finding


def dataset(size=20, bad=(7, 13)):
    labels = torch.arange(size) % 3
    for index in bad:
        labels[index] = 3
    return TensorDataset(torch.rand(size, 4), labels)


RULES = {1: range(3)}


def quiet(loader, rules=RULES, **options):
    return scan(loader, rules, progress=False, **options)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_the_loader_is_left_as_it_was(workers, persistent):
    """Its sampler, its workers and the next iterations are its own; twice in a row is the same."""
    loader = DataLoader(
        dataset(), batch_size=4, shuffle=True, num_workers=workers, persistent_workers=persistent
    )
    sampler = loader.batch_sampler
    for _ in range(2):
        assert set(quiet(loader).dataset_indices) == {7, 13}
        assert loader.batch_sampler is sampler
        if persistent:
            assert loader._iterator._index_sampler is sampler
    assert sum(len(batch[0]) for batch in loader) == 20
    assert len(loader) == 5


class OwnSampler(RandomSampler):
    """Draws its random numbers when the iterator is made, not when it is used."""

    def __iter__(self):
        return iter(torch.randperm(len(self.data_source)).tolist())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True])
def test_the_random_state_is_that_of_a_plain_iteration(workers, own):
    """After a scan, also one with a model, torch's generator is where a loop leaves it."""
    data = dataset(bad=())
    sampler = OwnSampler(data) if own else RandomSampler(data)
    model = nn.Sequential(nn.Dropout(), nn.Linear(4, 3))

    def state_after(use):
        loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=workers)
        torch.manual_seed(3)
        use(loader)
        return torch.get_rng_state()

    plain = state_after(list)
    assert torch.equal(plain, state_after(quiet))
    assert torch.equal(plain, state_after(lambda loader: quiet(loader, model)))


def test_batch_numbers_rows_and_values():
    """Each entry says which batch (from 0), which rows, which values, which samples."""
    report = quiet(DataLoader(dataset(), batch_size=4))
    first, second = report
    assert (first.batch, first.rows, first.dataset_indices) == (1, (3,), (7,))
    assert (second.batch, second.rows, second.dataset_indices) == (3, (1,), (13,))
    assert report.findings[0].bad_values == (3,)
    assert (report.batches, report.bad_batches, report.bad_values) == (5, 2, 2)
    assert repr(report).splitlines() == [
        "2 bad values in 2 of 5 batches.",
        "  batch  row  tensor    bad values  valid range  sample",
        "  1      3    batch[1]  3           0 to 2       dataset[7]",
        "  3      1    batch[1]  3           0 to 2       dataset[13]",
    ]


def test_the_example_of_the_readme_is_what_a_report_prints():
    """The table in the README is made of the tool's own words."""
    entries = [
        BadTensor(batch, finding_of((row,)), (row,), (index,))
        for batch, row, index in [(147, 3, 4711), (903, 31, 28927)]
    ]
    report = ScanReport(entries, batches=1250, bad_batches=2, bad_values=2, bad_tensors=2)
    assert repr(report) in (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def finding_of(position):
    return Finding(
        operation="check_batch",
        aten="",
        operand="values",
        expression='batch["labels"]',
        valid_minimum=0,
        valid_maximum=9,
        special_values=(-100,),
        bad_count=1,
        bad_values=(10,),
        bad_positions=(position,),
    )


def test_more_rows_than_a_finding_lists():
    """All bad rows of a batch are named, not only the twenty of a finding."""
    bad = range(5, 95)
    report = quiet(DataLoader(dataset(100, bad), batch_size=100))
    assert report.dataset_indices == tuple(bad)


def test_the_limit_bounds_the_list_and_not_the_count():
    """At most ``limit`` rows are listed; the counts stay true."""
    report = quiet(DataLoader(dataset(100, range(90)), batch_size=10), limit=25)
    assert report.dataset_indices == tuple(range(25))
    assert (report.bad_values, report.bad_batches) == (90, 9)
    assert "6 more tensors" in repr(report)


def test_stop_at_first():
    """The first bad batch ends the scan on request, and the report says so."""
    report = quiet(DataLoader(dataset(), batch_size=4), stop_at_first=True)
    assert (report.batches, report.end, report.dataset_indices) == (2, "stopped", (7,))
    assert "Stopped at the first bad batch" in repr(report)


def test_an_interrupt_returns_what_was_found():
    """Ctrl-C ends the scan with a report, and the loader has its own sampler."""

    class Interrupting(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            if index == 10:
                raise KeyboardInterrupt
            return torch.rand(4), torch.tensor(3 if index == 1 else 0)

    loader = DataLoader(Interrupting(), batch_size=4)
    report = quiet(loader)
    assert (report.end, report.batches, report.dataset_indices) == ("interrupted", 2, (1,))
    assert isinstance(loader.batch_sampler, BatchSampler)


def test_an_error_of_the_loader_is_the_users():
    """It passes with a note that says which batch, and the loader has its own sampler."""

    class Failing(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 5:
                msg = "no such file"
                raise OSError(msg)
            return torch.rand(4), 0

    loader = DataLoader(Failing(), batch_size=2)
    with pytest.raises(OSError, match="no such file") as caught:
        quiet(loader)
    assert "batch 2" in caught.value.__notes__[0]
    assert isinstance(loader.batch_sampler, BatchSampler)


def test_a_model_gives_the_rules_once():
    """It runs on the first batch only; the labels are held to its number of outputs."""

    class Counted(nn.Linear):
        calls = []  # noqa: RUF012 - shared by the copies on purpose

        def forward(self, x):
            self.calls.append(1)
            return super().forward(x)

    report = quiet(DataLoader(dataset(), batch_size=4), Counted(4, 3))
    assert report.dataset_indices == (7, 13)
    assert Counted.calls == [1]
    assert report.findings[0].operation.endswith("cross_entropy")


class Pointer(nn.Module):
    """Chooses a position of its input: the range of the labels is the length of the batch."""

    def forward(self, x):
        return x


def test_a_range_that_depends_on_the_batch_is_not_used_for_other_batches():
    """Scores per position: for a longer batch the shorter range would accuse good labels."""
    short = (torch.rand(2, 5), torch.tensor([0, 4]))
    long = (torch.rand(2, 9), torch.tensor([8, 7]))
    report = quiet([short, long, short], Pointer())
    assert not report
    assert report.unchecked == {"batch[1]": 1}
    assert "batch[1] in 1 batches" in repr(report)
    bad = (torch.rand(2, 5), torch.tensor([5, 0]))
    assert quiet([short, bad], Pointer()).bad_values == 1


def test_a_shifted_part_of_a_longer_batch():
    """What is left out at an end is left out for every length."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 2)

        def forward(self, ids):
            return self.table(ids[:, 1:])

    first = {"ids": torch.tensor([[99, 1, 2]])}
    good = {"ids": torch.tensor([[99, 1, 2, 3, 4]])}
    bad = {"ids": torch.tensor([[99, 1, 2, 3, 10]])}
    report = quiet([first, good, bad], Shifted())
    assert [(entry.batch, entry.finding.bad_positions) for entry in report] == [(2, ((0, 4),))]


@pytest.mark.parametrize(
    ("part", "longer", "shorter"),
    [
        (slice(0, 4), range(4), range(2)),
        (slice(1, 4), range(3, 6), range(1, 2)),  # from 1, or the last three?
        (slice(0, 3), range(3), range(1)),  # below 3, or without the last?
        (slice(3, 4), range(5, 6), range(3, 2)),  # at 3, or the last?
        (slice(1, 3), range(3, 3), range(1, 1)),
        (slice(0, 4, 2), None, None),
    ],
)
def test_a_part_means_only_what_both_readings_have(part, longer, shorter):
    """``x[1:]`` and ``x[-3:]`` are one for four columns; for other sizes both must agree."""
    positions = torch.arange(4)[part]
    (only,) = region_of(positions, (4,)).ranges
    assert only.for_size(4) in (part, slice(part.start, part.stop, 1), slice(0, 3, 2))
    for size, expected in [(6, longer), (2, shorter)]:
        if only.is_whole:
            expected = range(size)
        meant = only.for_size(size)
        found = None if meant is None else list(range(size))[meant]
        assert found == (None if expected is None else list(expected))


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: [(torch.rand(2, 4), torch.tensor([0, 3]))], "not a torch DataLoader"),
        (lambda: iter([(torch.rand(2, 4), torch.tensor([0, 3]))]), "not a torch DataLoader"),
        (lambda: DataLoader(Stream(), batch_size=2), "IterableDataset"),
        (lambda: Skipping(dataset(), batch_size=4), "Skipping has its own way"),
    ],
    ids=["list", "generator", "iterable dataset", "own iteration"],
)
def test_without_known_indices_rows_and_batches_are_told(loader, reason):
    """No index is made up; the report says why there is none."""
    report = quiet(loader())
    assert report.bad_values
    assert report.dataset_indices == ()
    assert all(entry.rows for entry in report)
    assert reason in repr(report)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.rand(4), 0), (torch.rand(4), 3)])


class Skipping(DataLoader):
    """Skips a batch, so that the sampler's order is not that of the batches."""

    def __iter__(self):
        batches = super().__iter__()
        next(batches)
        yield from batches


def test_a_subset_is_indexed_as_the_loader_sees_it():
    """The index is that of ``loader.dataset``, whatever that is."""
    loader = DataLoader(Subset(dataset(), range(5, 20)), batch_size=4)
    (index, _) = quiet(loader).dataset_indices
    assert index == 2
    assert loader.dataset[index][1] == 3


def test_a_loader_without_batches_and_one_with_groups():
    """``batch_size=None`` gives a sample, or what a list of indices gives."""
    data = dataset()
    assert quiet(DataLoader(data, batch_size=None)).dataset_indices == (7, 13)
    groups = BatchSampler(SequentialSampler(data), 4, drop_last=False)
    assert quiet(DataLoader(data, batch_size=None, sampler=groups)).dataset_indices == (7, 13)


def by_length(samples):
    """Sort by falling length, as for packed sequences: rows are not in the order of indices."""
    samples = sorted(samples, key=lambda sample: -len(sample["ids"]))
    ids = nn.utils.rnn.pad_sequence([sample["ids"] for sample in samples], batch_first=True)
    return {"ids": ids, "y": torch.tensor([sample["y"] for sample in samples])}


def joined(samples):
    """Join all ids, as graph libraries do: rows are no samples."""
    return {"ids": torch.cat([sample["ids"] for sample in samples])}


def moved(samples):
    """Change the values on the way: the dataset does not hold the bad value."""
    return {"ids": torch.stack([sample["ids"][:1] + 100 for sample in samples[::-1]])}


class Sequences(Dataset):
    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 12

    def __getitem__(self, index):
        ids = torch.full((1 + index % 4,), 1)
        ids[-1] = 50 if index in self.bad else 2
        return {"ids": ids, "y": index % 2}


@pytest.mark.parametrize("collate", [by_length, joined])
def test_a_collate_function_that_moves_samples_does_not_fool_it(collate):
    """The samples that hold the bad value are found in the dataset, not by their row."""
    loader = DataLoader(Sequences({5, 6}), batch_size=6, collate_fn=collate)
    report = quiet(loader, {"ids": range(50)})
    assert report.dataset_indices == (5, 6)


def test_samples_that_cannot_be_told_are_possible_ones():
    """Where the dataset does not hold the bad value, the whole batch may be it."""
    loader = DataLoader(Sequences({2}), batch_size=3, collate_fn=moved)
    report = quiet(loader, {"ids": range(102)})
    assert report.dataset_indices == ()
    assert report[0].possible_indices == (0, 1, 2)
    assert "one of dataset[0, 1, 2]" in repr(report)


def test_rules_that_fit_no_batch_and_rules_that_do_not_fit_one():
    """The first batch decides whether rules make sense; a later odd batch is a line."""
    with pytest.raises(CudassertError, match="no tensor 7"):
        quiet(DataLoader(dataset(), batch_size=4), {7: 3})
    report = quiet([{"y": torch.tensor([1])}, {"z": 1}, {"y": torch.tensor([9])}], {"y": 3})
    assert report.problems[0].startswith("batch 1: The batch has no tensor 'y'")
    assert (report.batches, report[0].batch) == (3, 2)


def test_the_html_is_escaped():
    """A key of the batch cannot become markup."""
    report = quiet([{"<script>": torch.tensor([9])}], {"<script>": 3})
    assert "<script>" not in report._repr_html_()
    assert "&lt;script&gt;" in report._repr_html_()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_progress_line(monkeypatch):
    """Without tqdm a line is written over itself; ``progress=False`` writes nothing."""
    monkeypatch.setattr(progress_module, "_bar", lambda total: None)
    monkeypatch.setattr(progress_module, "_EVERY_SECONDS", 0)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    scan(DataLoader(dataset(), batch_size=4), RULES)
    assert "\rscan: 5/5 batches, 2 bad values\n" in stream.getvalue()
    shown = len(stream.getvalue())
    quiet(DataLoader(dataset(), batch_size=4))
    assert len(stream.getvalue()) == shown


def test_a_tqdm_bar_is_used_where_there_is_one(monkeypatch):
    """It is told of every batch and closed."""
    calls = []

    class Bar:
        def __init__(self, **options):
            calls.append(options["total"])

        def update(self, step):
            calls.append(step)

        def set_postfix(self, **values):
            calls.append(values["bad"])

        def close(self):
            calls.append("closed")

    module = type(sys)("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    found = progress_module.importlib.util.find_spec
    monkeypatch.setattr(
        progress_module.importlib.util, "find_spec", lambda n: n == "tqdm" or found(n)
    )
    scan(DataLoader(dataset(bad=(1,)), batch_size=10), RULES)
    assert calls == [2, 1, 1, 1, 1, "closed"]


def test_every_batch_is_one_pass(monkeypatch):
    """A good tensor costs one aminmax."""
    count = []
    original = torch.aminmax
    monkeypatch.setattr(torch, "aminmax", lambda *a, **k: count.append(1) or original(*a, **k))
    quiet(DataLoader(dataset(bad=()), batch_size=4))
    assert len(count) == 5
