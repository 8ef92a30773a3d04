"""Replays of cells that fail in a loop, in a real kernel."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.kernel

DATA = """\
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
try:
    from tqdm import tqdm
except ImportError:
    def tqdm(iterable):
        for item in iterable:
            yield item
class Labels(Dataset):
    def __len__(self):
        return 1600
    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.tensor(7 if index == BAD else index % 5)
torch.manual_seed(0)
order = torch.randperm(1600).tolist()
BAD = order[8 * 37 + 3]
model = nn.Linear(4, 5).cuda()
seen = []"""


def one_line(text):
    """The text twin wraps; a search must not care."""
    return " ".join(text.split())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_of_a_loader_is_found_with_its_dataset_item(start_kernel, workers):
    """Of 200 batches the bad one is named, with the item, and the cell does not run again."""
    kernel = start_kernel()
    assert kernel.run(DATA).status == "ok"
    kernel.run(f"loader = DataLoader(Labels(), 8, sampler=order, num_workers={workers})")
    cell = kernel.run(
        "\nfor step, (x, y) in enumerate(tqdm(loader)):\n"
        "    seen.append(step)\n"
        "    x, y = x.cuda(), y.cuda()\n"
        "    loss = F.cross_entropy(model(x), y)\n"
        "    if step % 2:\n"
        "        print(loss.item())\n",
        timeout=120,
    )
    assert cell.status == "error"
    replayed = kernel.run("%cuda_debug replay")
    [diagnosis] = replayed.diagnoses
    finding = diagnosis["finding"]
    assert finding["operation"] == "torch.nn.functional.cross_entropy"
    assert finding["bad_values"] == [7]
    assert finding["line"] == 5
    assert finding["dataset_indices"] == kernel.evaluate("[BAD]")
    assert finding["certainty"] == "exact"
    assert "batch 37 " in diagnosis["replay"]["note"]
    bad = kernel.evaluate("BAD")
    assert f"dataset[{bad}]" in replayed.bundles[-1]["text/plain"]
    assert f"dataset[{bad}]" in replayed.bundles[-1]["text/html"]
    assert f"dataset[{bad}]" in kernel.run("%cuda_debug report").stdout


def test_a_training_function_of_an_earlier_cell(start_kernel):
    """The loop may stand in a function; frames lead from the cell to its line."""
    kernel = start_kernel()
    kernel.run(DATA)
    kernel.run("loader = DataLoader(Labels(), 8, sampler=order)")
    kernel.run(
        "\n"
        "def train_epoch(loader, model):\n"
        "    total = torch.zeros((), device='cuda')\n"
        "    with torch.no_grad():\n"
        "        for x, y in loader:\n"
        "            seen.append(len(seen))\n"
        "            total += F.cross_entropy(model(x.cuda()), y.cuda())\n"
        "            total.item()\n"
        "    return total.item()\n"
    )
    assert kernel.run("\n# go\ntrain_epoch(loader, model)").status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    finding = diagnosis["finding"]
    assert finding["bad_values"] == [7]
    assert [(f["function"], f["line"]) for f in finding["frames"]] == [
        ("<module>", 3),
        ("train_epoch", 6),
    ]
    assert finding["dataset_indices"] == kernel.evaluate("[BAD]")
    assert "batch 37 " in diagnosis["replay"]["note"]
    assert "for x, y in loader:" in diagnosis["replay"]["note"]
    assert kernel.evaluate("len(seen)") == 38


def test_a_plain_loop_runs_its_body_once(start_kernel):
    """A `for` over anything else: the body once, with the loop's variable named."""
    kernel = start_kernel()
    kernel.run(DATA + "\nids = torch.arange(100).reshape(50, 2); ids[37, 1] = 500")
    kernel.run("table = nn.Embedding(100, 4).cuda()")
    cell = kernel.run(
        "for i in range(50):\n"
        "    print('row', i)\n"
        "    rows = table(ids[i].cuda())\n"
        "    rows.sum().item()\n"
    )
    assert cell.status == "error"
    replayed = kernel.run("%cuda_debug replay")
    [diagnosis] = replayed.diagnoses
    assert diagnosis["finding"]["bad_values"] == [500]
    assert (diagnosis["finding"]["line"], diagnosis["finding"]["certainty"]) == (3, "exact")
    assert "i = 37" in diagnosis["replay"]["note"]
    assert kernel.run("%cuda_debug report --output").stdout == "row 37\n"


@pytest.mark.parametrize(
    "cell",
    [
        "losses = []\nfor c in chunks:\n    losses.append(emb(c.to(device)).sum().item())",
        "losses = []\nfor c in chunks:\n    losses.append(learn())",
        "total = 0.0\nfor c in chunks:\n    total += emb(c.to(device)).sum().item()",
    ],
)
def test_what_a_loop_only_collects_lowers_no_certainty(start_kernel, cell):
    """The index is CPU data: the list of losses of the rounds before does not reach it."""
    kernel = start_kernel()
    kernel.run(
        "import torch\nfrom torch import nn\ndevice = 'cuda'\n"
        "emb = nn.Embedding(10, 4).to(device)\n"
        "chunks = [torch.randint(0, 10, (3,)) for _ in range(6)]\nchunks[3][1] = 10\n"
        "def learn():\n    return emb(c.to(device)).sum().item()"
    )
    assert kernel.run(cell).status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    finding = diagnosis["finding"]
    assert (finding["bad_values"], finding["certainty"]) == ([10], "exact")
    assert "had changed" not in diagnosis["replay"]["note"]


def test_a_while_loop_runs_its_body_once(start_kernel):
    """A `while` that counts before it looks up has moved on, and the finding says so."""
    kernel = start_kernel()
    kernel.run(DATA + "\nids = torch.arange(100); ids[37:] = 500")
    kernel.run("table = nn.Embedding(100, 4).cuda()")
    cell = kernel.run(
        "i = -1\nwhile True:\n    i += 1\n    rows = table(ids[i].cuda())\n    rows.sum().item()\n"
    )
    assert cell.status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"]["bad_values"] == [500]
    assert diagnosis["finding"]["certainty"] == "depends_on_substitutes"
    assert "`while True:`" in diagnosis["replay"]["note"]
    assert "had changed i " in diagnosis["replay"]["note"]


def test_where_the_last_round_was_good_the_whole_cell_runs(start_kernel):
    """The device reports late: the round that notices may be clean, then the cell runs again."""
    kernel = start_kernel()
    kernel.run(DATA + "\nids = torch.arange(100).reshape(50, 2); ids[7, 1] = 500")
    kernel.run("table = nn.Embedding(100, 4).cuda()")
    cell = kernel.run(
        "for i in range(50):\n"
        "    rows = table(ids[i].cuda())\n"
        "    if i == 9:\n"
        "        rows.sum().item()\n"
    )
    assert cell.status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"]["bad_values"] == [500]
    note = diagnosis["replay"]["note"]
    assert "passed every check" in note
    assert "whole cell" in note


def test_a_comprehension_is_replayed_as_a_whole(start_kernel):
    """A comprehension has no body that could run alone; its items are named all the same."""
    kernel = start_kernel()
    kernel.run(DATA)
    kernel.run("loader = DataLoader(Labels(), 8, sampler=order)")
    cell = kernel.run(
        "losses = [F.cross_entropy(model(x.cuda()), y.cuda()).item() for x, y in loader]"
    )
    assert cell.status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"]["bad_values"] == [7]
    assert diagnosis["finding"]["dataset_indices"] == kernel.evaluate("[BAD]")
    assert diagnosis["replay"]["note"] is None


def test_a_long_cell_is_offered_not_run(start_kernel):
    """Where the body is clean and the cell takes too long, that is said and can be asked for."""
    kernel = start_kernel(buttons=True)
    kernel.run("%config CudaDebug.replay_seconds = 2.0")
    kernel.run(DATA + "\nimport time\nids = torch.arange(100).reshape(50, 2); ids[7, 1] = 500")
    kernel.run("table = nn.Embedding(100, 4).cuda()")
    cell = kernel.run(
        "for i in range(50):\n"
        "    rows = table(ids[i].cuda())\n"
        "    if i == 9:\n"
        "        rows.sum().item()\n"
        "    time.sleep(0.1)\n"
    )
    assert cell.status == "error"
    kernel.click(cell.panels[0], "Replay on CPU")

    def outcome():
        return kernel.report()["replay"]

    kernel.wait_until(lambda: "replay_whole" in kernel.report()["actions"])
    assert outcome()["outcome"] == "inconclusive"
    assert re.search(r"not replayed: it would take about \d s", outcome()["note"])
    kernel.click(cell.panels[0], "Replay the whole cell")
    kernel.wait_until(lambda: kernel.report()["finding"] is not None)
    assert kernel.report()["finding"]["bad_values"] == [500]


def test_the_kernel_is_busy_while_a_button_replays(start_kernel):
    """Busy and idle are published around it, and its output stands under a closed fold."""
    kernel = start_kernel(buttons=True)
    kernel.run(DATA + "\nids = torch.tensor([500])")
    kernel.run("table = nn.Embedding(100, 4).cuda()")
    cell = kernel.run("print('<b>bold</b>')\ntable(ids.cuda()).sum().item()")
    seen = len(kernel.log)
    kernel.click(cell.panels[0], "Replay on CPU")
    [root] = cell.panels

    def folded():
        texts = [str(state.get("value", "")) for state in kernel.visible(root).values()]
        return [text for text in texts if "Output of the replay" in text]

    kernel.wait_until(folded)
    assert "&lt;b&gt;bold&lt;/b&gt;" in folded()[0]
    assert "<details>" in folded()[0]
    cell_id = cell.messages[0]["parent_header"]["msg_id"]
    states = [
        m["content"]["execution_state"]
        for m in kernel.log[seen:]
        if m["msg_type"] == "status" and m["parent_header"].get("msg_id") == cell_id
    ]
    assert states == ["busy", "idle"]


def test_a_loader_with_its_loop_in_a_library(start_kernel, tmp_path):
    """A trainer's loop is not the user's: the cell runs again with the last batches only."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "trainer_library.py").write_text(
        "class Trainer:\n"
        "    def __init__(self, step, data):\n"
        "        self.step, self.data, self.steps = step, data, []\n"
        "    def train(self, order):\n"
        "        from torch.utils.data import DataLoader\n"
        "        for x, y in DataLoader(self.data, 8, sampler=order):\n"
        "            self.steps.append(self.step(x, y))\n"
        "        return self.steps\n"
    )
    kernel = start_kernel()
    kernel.run(DATA)
    kernel.run(
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site-packages')!r})\n"
        "from trainer_library import Trainer\n"
        "import time\n"
        "def step(x, y):\n"
        "    time.sleep(0.1)\n"
        "    return F.cross_entropy(model(x.cuda()), y.cuda()).item()\n"
        "trainer = Trainer(step, Labels())"
    )
    assert kernel.run("trainer.train(order)").status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"]["bad_values"] == [7]
    assert diagnosis["finding"]["dataset_indices"] == kernel.evaluate("[BAD]")
    assert "batch 37 " in diagnosis["replay"]["note"]


def test_a_death_that_nobody_noticed(start_kernel):
    """Without a traceback, the loop is the one that took the last batches."""
    kernel = start_kernel()
    kernel.run(DATA)
    kernel.run("loader = DataLoader(Labels(), 8, sampler=order[:38 * 8])")
    cell = kernel.run(
        "\nfor x, y in loader:\n    loss = F.cross_entropy(model(x.cuda()), y.cuda())\n"
    )
    assert cell.status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert diagnosis["finding"]["line"] == 3
    assert diagnosis["finding"]["dataset_indices"] == kernel.evaluate("[BAD]")
    assert "batch 37 " in diagnosis["replay"]["note"]


@pytest.mark.parametrize("options", ["", " --no-guard"])
def test_the_debug_cell_names_the_items_too(start_kernel, options):
    """The guard, and the replay from a checkpoint, know the items of the batch as well."""
    kernel = start_kernel()
    kernel.run(DATA)
    kernel.run("loader = DataLoader(Labels(), 8, sampler=order)")
    cell = kernel.run(
        f"%%cuda_debug{options}\n"
        "for x, y in loader:\n"
        "    F.cross_entropy(model(x.cuda()), y.cuda()).item()\n"
    )
    [diagnosis] = cell.diagnoses
    assert diagnosis["finding"]["bad_values"] == [7]
    assert diagnosis["finding"]["dataset_indices"] == kernel.evaluate("[BAD]")


def test_a_batch_that_the_cell_changes(start_kernel):
    """A batch whose parts the loop moves and edits in place is given again as it came."""
    kernel = start_kernel()
    kernel.run(
        DATA
        + """
class Batch(dict):
    def to(self, device):
        for key in self:
            self[key] = self[key].to(device)
        return self
def collate(items):
    x, y = zip(*items)
    return Batch(x=torch.stack(x), y=torch.stack(y))
loader = DataLoader(Labels(), 8, sampler=order, collate_fn=collate)"""
    )
    cell = kernel.run(
        "for batch in loader:\n"
        "    batch['y'] += 1; batch['y'] -= 1; batch['y'] *= 1\n"
        "    batch['y'][0] = 0\n"
        "    batch.to('cuda')\n"
        "    F.cross_entropy(model(batch['x']), batch['y']).item()\n"
    )
    assert cell.status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    finding = diagnosis["finding"]
    assert (finding["bad_values"], finding["line"]) == ([7], 5)
    assert finding["expression"] == "batch['y']"
    assert "batch 37 " in diagnosis["replay"]["note"]


def test_a_loop_over_an_iterator_that_is_used_up(start_kernel):
    """The iterator has moved on; the variable of the loop still has the value that was bad."""
    kernel = start_kernel()
    kernel.run(DATA + "\ntable = nn.Embedding(100, 4).cuda()")
    kernel.run("rows = iter([torch.tensor([1]), torch.tensor([500]), torch.tensor([2])])")
    assert kernel.run("for row in rows:\n    table(row.cuda()).sum().item()").status == "error"
    [diagnosis] = kernel.run("%cuda_debug replay").diagnoses
    assert (diagnosis["finding"]["bad_values"], diagnosis["finding"]["certainty"]) == (
        [500],
        "exact",
    )
