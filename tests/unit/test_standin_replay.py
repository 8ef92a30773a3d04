"""The replay policy: findings at the operation, and marks on values that are not the real ones."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cudassert_ipy.errors import OperandError
from cudassert_ipy.standin.device import StandinDevice, is_device_tensor
from cudassert_ipy.standin.replay_policy import MAX_FINDINGS, Collector, ReplayPolicy
from cudassert_ipy.standin.tags import Tag, tag, tag_of


@pytest.fixture
def collector():
    collector = Collector()
    with StandinDevice(ReplayPolicy(collector)):
        yield collector


def lost(*shape, dtype=torch.int64):
    """Return zeros in place of a device tensor whose values are lost."""
    tensor = torch.zeros(*shape, dtype=dtype)
    tag(tensor, Tag(0, substitute=True))
    return tensor


def is_substitute(tensor):
    found = tag_of(tensor)
    return found is not None and found.substitute


def test_a_bad_operand_raises_at_its_operation(collector):
    """The finding is raised where the operation is, and is exact for real values."""
    emb = nn.Embedding(10, 4).cuda()
    ids = torch.tensor([1, 10]).cuda()
    with pytest.raises(OperandError) as caught:
        emb(ids)
    assert collector.findings == [caught.value.finding]
    assert caught.value.finding.certainty == "exact"
    assert caught.value.finding.expression == "ids"
    assert collector.rows[0].bad_count == 1
    assert not collector.substitute_index_passed


def test_labels_of_a_sequence_keep_their_shape(collector):
    """Torch reshapes the target for its kernel; the finding is about the labels as written."""
    labels = torch.zeros(4, 6, dtype=torch.int64).cuda()
    labels[2, 3] = 7
    with pytest.raises(OperandError) as caught:
        F.cross_entropy(torch.zeros(4, 5, 6).cuda(), labels)
    finding = caught.value.finding
    assert (finding.expression, finding.shape) == ("labels", (4, 6))
    assert (finding.bad_positions, finding.batch_rows) == (((2, 3),), (2,))
    assert collector.rows[-1].shape == (4, 6)
    assert not collector.substitute_integer_read


def test_a_temporary_handed_to_a_module_is_named(collector):
    """``net(ids.cuda())`` names its argument."""
    ids = torch.tensor([1, 10])
    net = nn.Sequential(nn.Embedding(10, 4)).cuda()
    with pytest.raises(OperandError) as caught:
        net(ids.cuda())
    assert caught.value.finding.expression == "ids.cuda()"


def test_findings_survive_the_users_except(collector):
    """What the user's code swallows is recorded all the same, up to a limit."""
    emb = nn.Embedding(10, 4).cuda()
    for _ in range(MAX_FINDINGS + 5):
        try:
            emb(torch.tensor([10]).cuda())
        except IndexError:
            continue
    assert len(collector.findings) == MAX_FINDINGS


def test_cpu_operations_are_left_alone(collector):
    """An index error of a CPU tensor is the user's ordinary error."""
    with pytest.raises(IndexError) as caught:
        torch.zeros(3)[torch.tensor([3])]
    assert not isinstance(caught.value, OperandError)
    assert collector.findings == []


def test_a_substitute_that_passes_proves_nothing(collector):
    """An index made of substitutes is noted when it passes its check."""
    emb = nn.Embedding(10, 4).cuda()
    emb(torch.tensor([1]).cuda())
    assert not collector.substitute_index_passed
    emb(lost(2))
    assert collector.substitute_index_passed
    assert [row.substitute for row in collector.rows] == [False, True]


def test_a_substitute_that_fails_says_so(collector):
    """A finding made of substitutes depends on them."""
    with pytest.raises(OperandError, match="substitutes") as caught:
        nn.Embedding(10, 4).cuda()(lost(2) + 10)
    assert caught.value.finding.certainty == "depends_on_substitutes"


SPREADS = {
    "arithmetic": lambda x: x + 1,
    "view": lambda x: x.view(2, 2),
    "slice": lambda x: x[1:],
    "clone": lambda x: x.clone(),
    "cat": lambda x: torch.cat([torch.zeros(2, dtype=torch.int64).cuda(), x]),
    "argmax of floats": lambda x: x.float().view(2, 2).argmax(1),
    "sort": lambda x: x.sort()[1],
    "in place": lambda x: torch.ones(4, dtype=torch.int64).cuda().add_(x),
    "assigned part": lambda x: _assigned(x),
    "to the CPU and back": lambda x: x.cpu().add(1).cuda(),
    "copy_": lambda x: torch.zeros(4, dtype=torch.int64).cuda().copy_(x),
    "stack": lambda x: torch.stack([x, x]),
    "where": lambda x: torch.where(x > 0, x, 1),
}


def _assigned(x):
    out = torch.zeros(4, dtype=torch.int64).cuda()
    out[0] = x[0]
    return out


@pytest.mark.parametrize("case", SPREADS)
def test_substitutes_spread(collector, case):
    """Everything computed from substitutes is a substitute, on either side of a copy."""
    assert is_substitute(SPREADS[case](lost(4)))


def test_optimizers_spread_them(collector):
    """A step with gradients of substitutes makes the parameters substitutes."""
    for optimizer in (torch.optim.Adam, torch.optim.SGD):
        for options in ({}, {"foreach": False}, {"fused": True}):
            weight = torch.ones(3, device="cuda", requires_grad=True)
            (weight * lost(3, dtype=torch.float32)).sum().backward()
            assert not is_substitute(weight)
            optimizer([weight], lr=0.1, **options).step()
            assert is_substitute(weight), (optimizer, options)


def test_a_view_changed_in_place_marks_its_base(collector):
    """The mark belongs to the storage: aliases share it."""
    base = torch.zeros(4, dtype=torch.int64).cuda()
    base[2:].add_(lost(2))
    assert is_substitute(base)
    assert is_substitute(base[:2])


def test_the_mark_goes_when_all_is_overwritten(collector):
    """A buffer that gets real values is real again; a part of it is not enough."""
    buffer = lost(4)
    buffer[:2].copy_(torch.ones(2, dtype=torch.int64))
    assert is_substitute(buffer)
    buffer.copy_(torch.ones(4, dtype=torch.int64))
    assert not is_substitute(buffer)
    again = lost(4)
    again.zero_()
    assert not is_substitute(again)


def test_a_cpu_copy_of_substitutes_is_a_cpu_tensor(collector):
    """The mark does not make it a device tensor; reading integers out of it is noted."""
    values = lost(2).cpu()
    assert is_substitute(values)
    assert not values.is_cuda
    assert not is_device_tensor(values)
    assert values.numpy().tolist() == [0, 0]
    assert collector.substitute_integer_read


def test_reading_floats_is_not_noted(collector):
    """Printing a loss says nothing about indices."""
    lost(1, dtype=torch.float32).item()
    assert not collector.substitute_integer_read
    lost(1).item()
    assert collector.substitute_integer_read


DRAWS = {
    "randint": lambda: torch.randint(0, 5, (3,), device="cuda"),
    "randperm": lambda: torch.randperm(3, device="cuda"),
    "rand_like": lambda: torch.rand_like(torch.zeros(3).cuda()),
    "uniform_": lambda: torch.zeros(3).cuda().uniform_(),
    "multinomial": lambda: torch.multinomial(torch.ones(3).cuda(), 2),
    "dropout": lambda: F.dropout(torch.ones(3).cuda()),
    "bernoulli": lambda: torch.bernoulli(torch.full((3,), 0.5).cuda()),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_of_the_device_are_substitutes(collector, draw):
    """Another generator draws other values; draws of the CPU are repeated exactly."""
    assert is_substitute(DRAWS[draw]())
    assert not is_substitute(torch.randint(0, 5, (3,)).cuda())


def test_the_replay_has_the_devices_it_is_told(collector):
    """Tags of other devices are followed."""
    with pytest.raises(RuntimeError, match="installed already"):
        StandinDevice(ReplayPolicy(Collector())).install()


def test_several_devices():
    """A replay of a machine with two devices keeps them apart."""
    with StandinDevice(ReplayPolicy(Collector(), device_count=2)):
        assert torch.cuda.device_count() == 2
        x = torch.zeros(2, device="cuda:1")
        assert str((x + 1).device) == "cuda:1"
        assert str(x.to("cuda:0").device) == "cuda:0"
        with torch.cuda.device(1):
            assert str(torch.zeros(1, device="cuda").device) == "cuda:1"
        assert str(torch.zeros(1, device="cuda").device) == "cuda:0"


def test_a_whole_step_is_clean(collector):
    """A healthy step of training finds nothing, and lists its operands."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    ids = torch.tensor([[1, 2], [3, 4]]).cuda()
    labels = torch.tensor([0, 2]).cuda()
    loss = F.cross_entropy(model(ids), labels)
    loss.backward()
    optimizer.step()
    assert collector.findings == []
    assert [(row.name, row.role) for row in collector.rows] == [
        ("ids", "index"),
        ("labels", "target"),
    ]
    assert not collector.substitute_index_passed
