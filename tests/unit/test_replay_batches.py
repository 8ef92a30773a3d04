"""The last batches of DataLoader loops: what is kept, for how long, and which items they are."""

import gc
import weakref

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data import dataloader as torch_dataloader

from cudassert_ipy.model import Finding
from cudassert_ipy.replay import batches
from cudassert_ipy.replay.batch_rows import dataset_indices, holder
from cudassert_ipy.replay.batches import KEPT, BatchLog


class Numbers(Dataset):
    """Item ``i`` is ``10 * i``."""

    def __init__(self, size=100):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor([index, 10 * index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(100))


@pytest.fixture
def log():
    """A log that is taken out of torch again."""
    log = BatchLog()
    yield log
    log.remove()


def bad(values, rows, shape=None):
    """A finding of ``values`` (a tensor) with its offenders in ``rows`` of the flat tensor."""
    shape = tuple(values.shape) if shape is None else shape
    flat = values.reshape(-1)
    positions = tuple(
        tuple(int(i) for i in torch.unravel_index(torch.tensor(row), shape)) for row in rows
    )
    return Finding(
        operation="f",
        aten="aten.f",
        operand="input",
        shape=shape,
        minimum=flat.min().item(),
        maximum=flat.max().item(),
        bad_count=len(rows),
        bad_positions=positions,
        bad_values=tuple(flat[row].item() for row in rows),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_last_batches_and_their_indices_are_kept(log, workers):
    """The last four of each loader, oldest first, with what the sampler drew for each."""
    order = torch.randperm(100).tolist()
    log.begin()
    for number, _ in enumerate(DataLoader(Numbers(), 5, sampler=order, num_workers=workers)):
        if number == 12:
            break
    [loader] = log.end()
    assert [batch.number for batch in loader.batches] == [9, 10, 11, 12]
    assert len(loader.batches) == KEPT
    assert [batch.indices for batch in loader.batches] == [
        tuple(order[5 * n : 5 * n + 5]) for n in range(9, 13)
    ]
    assert (loader.total, loader.ended) == (13, False)
    for batch in loader.batches:
        assert batch.value[:, 0].tolist() == list(batch.indices)


def test_a_second_epoch_of_workers_that_stay_counts_from_zero(log):
    """``persistent_workers`` reuse the iterator; numbers and indices start again."""
    loader = DataLoader(Numbers(8), 2, num_workers=1, persistent_workers=True, shuffle=True)
    log.begin()
    for _ in range(2):
        for _ in loader:
            pass
    [kept] = log.end()
    assert [batch.number for batch in kept.batches] == [0, 1, 2, 3]
    for batch in kept.batches:
        assert batch.value[:, 0].tolist() == list(batch.indices)
    assert kept.ended


@pytest.mark.parametrize(
    ("loader", "known"),
    [
        (DataLoader(Numbers(), batch_sampler=BatchSampler(range(50, 60), 2, False)), True),
        (DataLoader(Numbers(), batch_size=None), False),
        (DataLoader(torch.arange(9), batch_size=None, sampler=[[0, 1], [2, 3]]), False),
        (DataLoader(Stream(), 4), False),
        (DataLoader(Numbers(), 5, num_workers=2, in_order=False), False),
    ],
)
def test_indices_are_none_where_nobody_can_know_them(log, loader, known):
    """Own batch samplers count; no batching, streams and workers out of order do not."""
    log.begin()
    for _ in loader:
        pass
    [kept] = log.end()
    assert all((batch.indices is not None) == known for batch in kept.batches)
    if known:
        assert kept.batches[-1].indices == (58, 59)


def test_a_sampler_that_draws_words_has_no_indices(log):
    """A dataset may be asked for anything; only whole numbers are indices."""

    class Words(Dataset):
        def __getitem__(self, key):
            return len(key)

    log.begin()
    for _ in DataLoader(Words(), 2, sampler=["a", "bb"]):
        pass
    [kept] = log.end()
    assert kept.batches[-1].indices is None


def test_nothing_is_kept_after_the_cell(log):
    """Older batches go while the cell runs, all of them when its record lets go."""
    log.begin()
    seen = []
    for batch in DataLoader(Numbers(), 5):
        seen.append(weakref.ref(batch))
        del batch
    gc.disable()
    try:
        assert sum(ref() is not None for ref in seen) == KEPT
        log.end()
        assert all(ref() is None for ref in seen)
    finally:
        gc.enable()


def test_between_cells_nothing_is_noted_and_removal_is_complete(log):
    """Without a running cell a loader is not watched; ``remove`` restores torch's own methods."""
    kind = torch_dataloader._BaseDataLoaderIter
    before = (kind.__next__, kind._next_index)
    log.begin()
    assert kind.__next__ is not before[0]
    log.end()
    list(DataLoader(Numbers(), 5))
    assert log.end() == ()
    log.remove()
    assert (kind.__next__, kind._next_index) == before


def test_a_torch_without_these_names_is_left_alone(log, monkeypatch):
    """Where the private class is another one, nothing is wrapped and nothing is kept."""
    monkeypatch.delattr(torch_dataloader._BaseDataLoaderIter, "_next_index")
    before = torch_dataloader._BaseDataLoaderIter.__next__
    log.begin()
    assert not log.active
    assert torch_dataloader._BaseDataLoaderIter.__next__ is before


def test_what_the_cell_does_to_a_batch_is_undone():
    """Containers get their content back, small integers their values."""
    log = BatchLog()
    log.begin()
    ids = torch.arange(6).reshape(3, 2)
    try:
        for batch in DataLoader([{"ids": row, "more": [row]} for row in ids], 3):
            kept = batch["ids"]
            kept -= 1
            batch["ids"] = None
            batch["more"].clear()
        [loader] = log.end()
    finally:
        log.remove()
    [found] = loader.batches
    assert found.intact
    found.restore()
    assert found.value["ids"] is kept
    assert kept.tolist() == ids.tolist()
    assert found.value["more"][0].tolist() == ids.tolist()


def test_a_float_batch_changed_in_place_is_not_intact(log):
    """Floats are not copied; what the cell wrote into them is known to be wrong."""
    log.begin()
    for batch in DataLoader(torch.zeros(4, 2), 4):
        batch += 1
    [loader] = log.end()
    assert not loader.batches[0].intact


def kept_batch(log, loader):
    log.begin()
    for _ in loader:
        pass
    [found] = log.end()
    return list(found.batches)


def test_items_of_the_bad_rows(log):
    """Rows of the batch become dataset indices; a flattened operand counts by rows too."""
    batches = kept_batch(log, DataLoader(Numbers(), 4, sampler=[9, 7, 5, 3, 40, 41, 42, 43]))
    values = batches[0].value
    assert dataset_indices(bad(values, [5, 7]), batches) == (5, 3)
    assert dataset_indices(bad(values.reshape(-1), [2]), batches) == (7,)
    assert holder(bad(values, [5]), batches)[0] is batches[0]


def test_an_operand_that_is_not_the_batch_has_no_items(log):
    """What was computed of a batch, or is of another one, is not called an item of it."""
    batches = kept_batch(log, DataLoader(Numbers(), 4, sampler=[9, 7, 5, 3]))
    values = batches[0].value
    assert dataset_indices(bad(values - 1, [2]), batches) == ()
    assert dataset_indices(bad(values.flip(0), [2]), batches) == ()
    assert dataset_indices(bad(values[:2], [2]), batches) == ()
    other = values.clone()
    other[3] = 777  # agrees with the batch where it is bad, and not elsewhere
    assert dataset_indices(bad(other, [2]), batches) == ()


def test_a_collate_function_that_sorts_is_asked_for(log):
    """With an own ``collate_fn`` row ``i`` need not be item ``i``: the dataset decides."""

    def sort(items):
        return default_collate(sorted(items, key=lambda item: int(item[0])))

    unsorted = kept_batch(
        log, DataLoader(Numbers(), 4, sampler=[9, 7, 5, 3], collate_fn=lambda i: default_collate(i))
    )
    finding = bad(unsorted[0].value, [3])
    assert dataset_indices(finding, unsorted) == ()
    assert dataset_indices(finding, unsorted, ask_dataset=True) == (7,)
    sorted_ = kept_batch(log, DataLoader(Numbers(), 4, sampler=[9, 7, 5, 3], collate_fn=sort))
    assert dataset_indices(bad(sorted_[0].value, [3]), sorted_, ask_dataset=True) == ()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_between_cells_gathers_nothing(log, workers):
    """A thread that trains while no cell runs does not pile up what its sampler drew."""
    log.begin()
    log.end()
    iterator = iter(DataLoader(Numbers(), 2, num_workers=workers))
    for _ in range(40):
        next(iterator)
    kept = len(vars(iterator)[batches._DRAWN])
    assert kept <= 2 * workers  # those that the workers are still making


def test_a_loop_that_goes_on_in_a_cell_is_noted_right(log):
    """What was drawn between cells is not taken for what the cell's batch is made of."""
    log.begin()
    log.end()
    iterator = iter(DataLoader(Numbers(), 5))
    next(iterator)
    log.begin()
    next(iterator)
    [loader] = log.end()
    assert [batch.indices for batch in loader.batches] == [tuple(range(5, 10))]
