"""What a replay in a child says of operations that CPU torch checks, ignores, or crashes on."""

import pytest

from cudassert_ipy import messages
from cudassert_ipy.standin import simulator
from tests.unit.test_replay_outcomes import Notebook

SETUP = """
classes = torch.tensor([0, 3, 9]).cuda()
x = torch.zeros(2, 3).cuda()
log_p = torch.zeros(5, 1, 4).cuda()
labels = torch.tensor([[1, 4]]).cuda()
"""

CELLS = {
    "one_hot": (
        "hot = F.one_hot(classes, 9)",
        ("torch.nn.functional.one_hot", "classes", (9,)),
        "RuntimeError: Class values must be smaller than num_classes.",
        None,
    ),
    "take_along_dim": (
        "y = torch.take_along_dim(x, classes[None], 1)",
        ("torch.take_along_dim", "classes", (3, 9)),
        None,
        messages.REPLAY_CPU_SILENT,
    ),
    "ctc_loss": (
        "F.ctc_loss(log_p, labels, torch.tensor([5]), torch.tensor([2]))",
        ("torch.nn.functional.ctc_loss", "labels", (4,)),
        None,
        messages.REPLAY_CPU_NOT_ASKED,
    ),
}


@pytest.fixture
def notebook():
    simulator.on()
    yield Notebook()
    simulator.off()


@pytest.mark.parametrize("name", CELLS)
def test_the_finding_and_what_cpu_torch_says(notebook, name):
    """The table decides; CPU torch's own words stand beside it where it has some."""
    cell, (operation, expression, values), exception, note = CELLS[name]
    notebook.cell(SETUP)
    result = notebook.replay(cell)
    assert result.replay.outcome == "raised"
    finding = result.finding
    assert (finding.operation, finding.expression) == (operation, expression)
    assert finding.bad_values == values
    assert finding.frames[-1].source == cell
    assert result.replay.exception == exception
    assert note is None or note in result.replay.note
