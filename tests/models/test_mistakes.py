"""One wrong value in a cell with a library's model: the finding names it as the user knows it."""

import contextlib
import linecache

import pytest
import torch

from cudassert_ipy.standin import simulator
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy
from tests.models.mistakes import MISTAKES


def run(mistake, filename="<ipython-input-2-models>"):
    names = {}
    exec(compile(mistake.setup, "<setup>", "exec"), names)
    source = mistake.cell
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), names)


def check(finding, mistake):
    """Compare everything that a user reads."""
    assert finding.operation.rpartition(".")[2] == mistake.operation
    values = {"nan" if value != value else value for value in finding.bad_values}
    assert values == set(mistake.values)
    assert (finding.valid_minimum, finding.valid_maximum) == mistake.allowed
    holder = finding.holder
    named = finding.expression if holder is None else holder.expression
    assert named == mistake.yours
    if mistake.yours is not None:
        places = finding.bad_positions if holder is None else holder.positions
        assert places == mistake.places
    outer = [frame for frame in finding.frames if frame.file == "<ipython-input-2-models>"]
    assert outer[0].line == mistake.line
    assert "# <-" in outer[0].source
    library = finding.library.source if finding.library is not None else ""
    assert mistake.library in library
    assert mistake.hint in finding.hint


@pytest.mark.parametrize("name", MISTAKES)
def test_replay(name):
    """A replay finds the operation, the values, the range, and the user's own tensor."""
    mistake = MISTAKES[name]
    collector = Collector()
    # Libraries turn an IndexError into their own error, as they would that of the CPU.
    device = StandinDevice(ReplayPolicy(collector))
    with device, contextlib.suppress(IndexError, ValueError):
        run(mistake)
    check(collector.findings[0], mistake)
    assert collector.findings[0].certainty == "exact" or "NaN" in name
    others = [row for row in collector.rows if row.bad_count]
    assert len(others) == 1, others


@pytest.mark.parametrize("name", MISTAKES)
def test_simulator(name, capfd):
    """The simulated context dies of it, with the text that CUDA prints."""
    simulator.on()
    try:
        with pytest.raises(torch.AcceleratorError, match="device-side assert"):  # noqa: PT012
            run(MISTAKES[name])
            torch.cuda.synchronize()  # which of the two notices it, is no matter
        assert simulator.context() == "dead"
    finally:
        simulator.off()
    printed = capfd.readouterr().err
    assert "Assertion `" in printed
    assert MISTAKES[name].assertion in printed
