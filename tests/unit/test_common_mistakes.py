"""What people get wrong on a GPU, as cells: the guard and the replay name the same thing.

The mistakes are those of public reports; each cell is the smallest code that makes it.
"""

import linecache

import pytest
import torch

import cudassert_ipy
from cudassert_ipy.errors import OperandError
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.replay_policy import Collector, ReplayPolicy

IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"

MISTAKES = {
    "token that was added to the tokenizer only": (
        "words = nn.Embedding(300, 4, device=gpu)\nwords(torch.tensor([[7, 300]], device=gpu))",
        ("torch.nn.functional.embedding", 5, (300,), 0, 299),
    ),
    "sequence longer than the table of positions": (
        "table = nn.Embedding(64, 4).to(gpu)\nplaces = torch.arange(66).to(gpu)\ntable(places)",
        ("torch.nn.functional.embedding", 6, (64, 65), 0, 63),
    ),
    "padding of -1 in a bag": (
        "bag = nn.EmbeddingBag(5, 2).to(gpu)\nbag(torch.tensor([[1, -1]]).to(gpu))",
        ("torch.nn.functional.embedding_bag", 5, (-1,), 0, 4),
    ),
    "labels that start at 1": (
        (
            "scores = torch.zeros(3, 3, device=gpu)\n"
            "nn.CrossEntropyLoss()(scores, torch.tensor([1, 2, 3], device=gpu))"
        ),
        ("torch.nn.functional.cross_entropy", 5, (3,), 0, 2),
    ),
    "void class of a segmentation mask": (
        (
            "mask = torch.zeros(1, 2, 2, dtype=torch.int64, device=gpu)\nmask[0, 1, 0] = 255\n"
            "F.cross_entropy(torch.zeros(1, 4, 2, 2, device=gpu), mask)"
        ),
        ("torch.nn.functional.cross_entropy", 6, (255,), 0, 3),
    ),
    "byte labels": (
        (
            "target = torch.tensor([1, 8], dtype=torch.uint8, device=gpu)\n"
            "F.nll_loss(torch.zeros(2, 8, device=gpu), target)"
        ),
        ("torch.nn.functional.nll_loss", 5, (8,), 0, 7),
    ),
    "one-hot of one class too few": (
        "kinds = torch.tensor([2, 0, 5]).to(gpu)\nF.one_hot(kinds, num_classes=5)",
        ("torch.nn.functional.one_hot", 5, (5,), 0, 4),
    ),
    "one-hot by hand": (
        (
            "kinds = torch.tensor([2, 5]).to(gpu)\n"
            "torch.zeros(2, 5).to(gpu).scatter_(1, kinds.unsqueeze(1), 1)"
        ),
        ("torch.scatter", 5, (5,), 0, 4),
    ),
    "score of a class that is not there": (
        "scores = torch.rand(2, 6).to(gpu)\nscores.gather(1, torch.tensor([[0], [6]]).to(gpu))",
        ("torch.gather", 5, (6,), 0, 5),
    ),
    "node that the graph does not have": (
        (
            "nodes = torch.rand(4, 2).to(gpu)\nsource = torch.tensor([0, 4, 3]).to(gpu)\n"
            "nodes.index_select(0, source)"
        ),
        ("torch.index_select", 6, (4,), 0, 3),
    ),
    "messages to a node that is not there": (
        (
            "target = torch.tensor([0, 4]).to(gpu)\n"
            "torch.zeros(4, device=gpu).index_add_(0, target, torch.ones(2, device=gpu))"
        ),
        ("torch.Tensor.index_add_", 5, (4,), 0, 3),
    ),
    "two indices, one of them too large": (
        (
            "grid = torch.zeros(3, 8, device=gpu)\nkind = torch.tensor([1, 8], device=gpu)\n"
            "grid[torch.tensor([0, 1], device=gpu), kind] = 1.0"
        ),
        ("x[index] = value", 6, (8,), -8, 7),
    ),
    "softmax over an overflow": (
        (
            "big = torch.full((3,), 400.0, dtype=torch.float16, device=gpu)\n"
            "chances = torch.softmax(big * big - big * big, 0).float()\n"
            "torch.multinomial(chances, 1)"
        ),
        ("torch.multinomial", 6, "nan", 0, None),
    ),
    "nothing left to draw": (
        (
            "weights = torch.ones(2, 4, device=gpu)\nweights[1] = 0\n"
            "torch.multinomial(weights, 2, replacement=True)"
        ),
        ("torch.multinomial", 6, (0.0, 0.0, 0.0, 0.0), None, None),
    ),
    "loss for probabilities of logits": (
        (
            "logits = torch.tensor([0.5, 3.0], device=gpu)\n"
            "nn.BCELoss()(logits, torch.ones(2, device=gpu))"
        ),
        ("torch.nn.functional.binary_cross_entropy", 5, (3.0,), 0, 1),
    ),
    "letter outside the alphabet": (
        (
            "speech = torch.zeros(9, 1, 5, device=gpu)\n"
            "letters = torch.tensor([[1, 5]], device=gpu)\n"
            "F.ctc_loss(speech, letters, torch.tensor([9]), torch.tensor([2]))"
        ),
        ("torch.nn.functional.ctc_loss", 6, (5,), 0, 4),
    ),
    "log-probability of what cannot be drawn": (
        (
            "choice = torch.distributions.Categorical(torch.ones(2, 3, device=gpu), "
            "validate_args=True)\nchoice.log_prob(torch.tensor([0, 3], device=gpu))"
        ),
        # It is refused before any kernel. By default too, until torch._dynamo is used in the
        # process, which turns the default off (_dynamo/eval_frame.py).
        None,
    ),
    "the same, unvalidated": (
        (
            "choice = torch.distributions.Categorical(torch.ones(2, 3, device=gpu), "
            "validate_args=False)\nchoice.log_prob(torch.tensor([0, 3], device=gpu))"
        ),
        ("torch.gather", 5, (3,), 0, 2),
    ),
    "a swallowed failure": (
        (
            "try:\n    torch.zeros(2, device=gpu)[torch.tensor([5], device=gpu)].sum().item()\n"
            "except Exception:\n    pass\ntorch.ones(1, device=gpu)"
        ),
        ("x[index]", 5, (5,), -2, 1),
    ),
}


def run(source, name, gpu):
    """Run a cell under a file name of its own."""
    text = IMPORTS + source
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), {"gpu": gpu})


def check(finding, expected):
    operation, line, values, low, high = expected
    assert (finding.operation, finding.line) == (operation, line)
    assert (finding.valid_minimum, finding.valid_maximum) == (low, high)
    if values == "nan":
        assert finding.nan_count == finding.bad_count == 3
    else:
        assert finding.bad_values == values


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_replay_names_it(mistake):
    """The first finding of a replay has the operation, the line, the values and the range."""
    source, expected = MISTAKES[mistake]
    collector = Collector()
    try:
        with StandinDevice(ReplayPolicy(collector)):
            run(source, "<ipython-input-3-mistake>", "cuda")
    except (OperandError, ValueError):
        pass  # as in the replay: what counts is what was collected
    if expected is None:
        assert collector.findings == []
    else:
        check(collector.findings[0], expected)


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if "swallowed" not in name])
def test_the_guard_names_it_on_cpu_tensors(mistake):
    """The same cell on the CPU, under the guard."""
    source, expected = MISTAKES[mistake]
    kind = OperandError if expected else ValueError
    with cudassert_ipy.guard(), pytest.raises(kind) as caught:
        run(source, "<ipython-input-4-mistake>", torch.device("cpu"))
    if expected:
        check(caught.value.finding, expected)


TEMPORARIES = {
    "torch.gather(x, 1, y + 9)": "y + 9",
    "torch.scatter(x, dim=1, index=y + 9, value=1.0)": "y + 9",
    "torch.take(x, y + 9)": "y + 9",
    "torch.take_along_dim(x, y + 9, 1)": "y + 9",
    "torch.multinomial(x - 1, 1)": "x - 1",
    "torch.bernoulli(x + 2)": "x + 2",
    "F.one_hot(y + 9, 3)": "y + 9",
    "F.binary_cross_entropy(x, x + 2)": "x + 2",
    "loss(x, x - 2)": "x - 2",
    "bag(y + 9)": "y + 9",
    "torch.index_select(x, 1, (y + 9).view(-1))": "(y + 9).view(-1)",
}


@pytest.mark.parametrize("call", TEMPORARIES)
def test_a_temporary_is_named_by_its_argument(call):
    """An operand without a name is shown as the argument that it is."""
    cell = (
        "x, y = torch.zeros(1, 2), torch.tensor([[0, 1]])\n"
        f"loss, bag = nn.BCELoss(), nn.EmbeddingBag(4, 2)\n{call}"
    )
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        run(cell, "<ipython-input-5-mistake>", None)
    assert caught.value.finding.expression == TEMPORARIES[call]
