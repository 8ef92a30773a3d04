"""Every operation of the table on the stand-in device: in a replay, and on the simulated GPU."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.errors import OperandError
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from cudassert_ipy.standin.simulate import SimulatePolicy, _is_in_this_torch
from tests.unit import operand_cases, test_checks_operand_rules
from tests.unit.operand_cases import CASES
from tests.unit.test_checks_operand_rules import BROKEN

CONSTANTS = [name for name, value in vars(operand_cases).items() if isinstance(value, torch.Tensor)]


@pytest.fixture
def on_device(monkeypatch):
    """Return a function that moves the operands of all cases to the device that is installed."""

    def move():
        for name in CONSTANTS:
            monkeypatch.setattr(operand_cases, name, getattr(operand_cases, name).cuda())

    return move


def call(case, operand):
    """Run a case with everything that it makes on the device."""
    # Lengths of sequences are on the CPU for torch; everything else goes where the operand is.
    stays = "length" in case.operand or "pack" in case.operation
    with torch.device("cpu" if case.operation.endswith(("ctc_loss", "sequence")) else "cuda"):
        return case.call(operand if stays and "segment" not in case.operation else operand.cuda())


BAD = [(name, case.bad_values[0]) for name, case in CASES.items()]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_replay_finds_it(name, value, on_device):
    """The replay raises at the operation with the same finding as the guard."""
    case, collector = CASES[name], Collector()
    with StandinDevice(ReplayPolicy(collector)):
        on_device()
        with pytest.raises(OperandError) as caught:
            call(case, case.with_bad(value))
    assert collector.findings[0] == caught.value.finding
    finding = caught.value.finding
    assert (finding.operation, finding.operand) == (case.operation, case.operand)
    assert finding.certainty == "exact"


@pytest.mark.parametrize("name", BROKEN)
def test_a_replay_finds_a_broken_rule(name, monkeypatch):
    """Order, sums and counts are asked of tensors on the stand-in device as well."""
    run, (operation, operand, positions, values) = BROKEN[name]
    collector = Collector()
    with StandinDevice(ReplayPolicy(collector)):
        for constant in ("WEIGHT", "IDS", "LOG_P", "SCORES", "SQUARE"):
            moved = getattr(test_checks_operand_rules, constant).cuda()
            monkeypatch.setattr(test_checks_operand_rules, constant, moved)
        with torch.device("cuda"), pytest.raises(OperandError):
            run()
    finding = collector.findings[0]
    assert (finding.operation, finding.operand) == (operation, operand)
    assert (finding.bad_positions, finding.bad_values) == (positions, values)


@pytest.mark.parametrize("name", CASES)
def test_a_replay_of_a_healthy_call_is_clean(name, on_device):
    """No finding, and no integer is taken for one that was read by the program."""
    case, collector = CASES[name], Collector()
    with StandinDevice(ReplayPolicy(collector)):
        on_device()
        call(case, case.good)
    assert collector.findings == []
    assert collector.rows


ASSERTING = [
    (name, case.bad_values[0])
    for name, case in CASES.items()
    if any(_is_in_this_torch(catalog().by_key(key)) for key in case.keys)
    and name != "one_hot open"  # it waits for the largest class, before the kernel
]


@pytest.mark.parametrize(("name", "value"), ASSERTING)
def test_the_simulator_prints_its_assertion(name, value, on_device, capfd):
    """The operation returns garbage of the right shape, and the error comes with its own text."""
    case = CASES[name]
    with StandinDevice(SimulatePolicy(blocking=False)):
        on_device()
        torch.manual_seed(0)
        expected = call(case, case.good)
        result = call(case, case.with_bad(value))
        shapes = [item.shape for item in _tensors(result)]
        assert name == "repeat_interleave" or shapes == [item.shape for item in _tensors(expected)]
        with pytest.raises(torch.AcceleratorError, match="device-side assert"):
            torch.cuda.synchronize()
    keys = [key for key in case.keys if _is_in_this_torch(catalog().by_key(key))]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) >= 1
    assert f"Assertion `{catalog().by_key(keys[0]).expression}` failed." in lines[0]


def _tensors(value):
    values = value if isinstance(value, tuple) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


LATER = {
    "embedding": lambda x, i: F.embedding(i, x),
    "empty table": lambda x, i: F.embedding(i, x[:0]),
    "multinomial": lambda x, i: torch.multinomial(x.abs() - 5, 1),
    "sum of nothing": lambda x, i: torch.multinomial(x * 0, 1),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i + 90),
    "bce": lambda x, i: F.binary_cross_entropy(x + 8, x + 8),
    "gather": lambda x, i: x.gather(1, i[:, None] + 90),
    "scatter": lambda x, i: x.scatter_(1, i[:, None] + 90, 1.0),
    "index": lambda x, i: x[i + 90],
    "index_put": lambda x, i: x.index_put_((i + 90,), x[:4]),
    "one_hot": lambda x, i: F.one_hot(i + 90, 3),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None] + 90, 1),
    "assert": lambda x, i: torch._assert_async(x.sum() * 0),
    "masked_scatter": lambda x, i: x.masked_scatter(x > -9, x[:1]),
    "inverse": lambda x, i: torch.linalg.inv_ex(x[:, :4] * 0)[0],
    "matmul": lambda x, i: x @ x.T,
    "out": lambda x, i: torch.gather(x, 1, i[:, None] + 90, out=torch.empty(0, device="cuda")),
    "sort": lambda x, i: x.sort(),
    "dropout": lambda x, i: F.dropout(x),
}


@pytest.mark.parametrize("name", LATER)
def test_after_a_pending_assertion_no_operation_raises_of_its_own(name):
    """Kernels that do not run refuse nothing; only the next wait tells of the failure."""
    with StandinDevice(SimulatePolicy(blocking=False)):
        x = torch.randn(4, 5).cuda()
        index = torch.tensor([0, 1, 2, 3]).cuda()
        x[index + 90]
        LATER[name](x, index)
        with pytest.raises(torch.AcceleratorError):
            torch.cuda.synchronize()


def test_out_gets_the_shape_of_the_result():
    """``out`` is what is returned, resized as a device would."""
    with StandinDevice(SimulatePolicy(blocking=False)):
        x = torch.randn(4, 5).cuda()
        index = torch.tensor([[0], [90]]).cuda()
        out = torch.empty(0).cuda()
        assert torch.gather(x, 1, index, out=out) is out
        assert out.shape == (2, 1)


def test_the_message_of_an_assertion_of_the_users_is_printed(capfd):
    """``torch._assert_async`` prints its own message in place of an expression."""
    with StandinDevice(SimulatePolicy(blocking=True)), pytest.raises(torch.AcceleratorError):
        torch._assert_async(torch.zeros(1).cuda(), "loss must be finite")
    assert "Assertion `loss must be finite` failed." in capfd.readouterr().err


def test_what_a_device_does_not_notice_is_not_noticed():
    """``take_along_dim`` wraps its index and ``ctc_loss`` reads on: no error on a device."""
    with StandinDevice(SimulatePolicy(blocking=True)):
        x = torch.randn(2, 3).cuda()
        torch.take_along_dim(x, torch.tensor([[7], [0]]).cuda(), 1)
        torch.cuda.synchronize()


def test_one_hot_does_not_wait_for_the_device(capfd):
    """With num_classes given, a bad class is a device assertion and no error of the host."""
    with StandinDevice(SimulatePolicy(blocking=False)):
        hot = F.one_hot(torch.tensor([[0, 9]]).cuda(), 3)
        assert hot.shape == (1, 2, 3)
        assert hot.is_cuda
        with pytest.raises(torch.AcceleratorError):
            hot.cpu()
    assert "scatter gather kernel index out of bounds" in capfd.readouterr().err


def test_nothing_is_written_when_nothing_failed(capfd):
    """Healthy operations print no line."""
    with StandinDevice(SimulatePolicy(blocking=True)):
        torch.zeros(3).cuda().gather(0, torch.tensor([1]).cuda())
    assert capfd.readouterr().err == ""
