"""What a replay in a forked child finds, and what it says when it cannot know."""

import asyncio
import linecache
import os
import random
import signal
import socket
import time

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from cudassert_ipy.replay.checkpoint import Checkpoint, CheckpointRefused, ReplayRequest
from cudassert_ipy.replay.protocol import Output, Progress
from cudassert_ipy.replay.rng import RandomState
from cudassert_ipy.replay.state import HostCopies
from cudassert_ipy.standin import simulator


class Notebook:
    """Cells that share a namespace, as in a kernel."""

    def __init__(self):
        self.names = {"torch": torch, "nn": nn, "F": F, "np": np, "random": random, "os": os}
        self.count = 0
        self.copies = HostCopies()
        self.children = []

    def execute(self, source):
        self.count += 1
        filename = f"<ipython-input-{self.count}-test>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        exec(compile(source, filename, "exec"), self.names)

    def cell(self, source):
        """Run a good cell and copy what the kernel would copy after it."""
        self.execute(source)
        self.copies.update(self.names, self.count)

    def fails(self, source):
        """Run a cell that kills the simulated context."""
        with pytest.raises(torch.AcceleratorError):
            self.execute(source + "\ntorch.cuda.synchronize()")
        assert simulator.context() == "dead"

    def checkpoint(self, **options):
        self.copies.take_all(self.names)
        return self.fork(**options)

    def fork(self, **options):
        checkpoint = Checkpoint.take(self.copies, execute=self.execute, **options)
        self.children.append(checkpoint.pid)
        return checkpoint

    def replay(self, source, *, on_event=None, memory_limit=None, **request):
        """Replay after a failure, from the state of now."""
        request.setdefault("state", "after_failure")
        checkpoint = self.fork(memory_limit=memory_limit)
        return checkpoint.start(ReplayRequest(source=source, **request)).wait(on_event)


@pytest.fixture
def notebook(capfd):
    simulator.on()
    notebook = Notebook()
    yield notebook
    simulator.off()
    assert not [pid for pid in notebook.children if psutil.pid_exists(pid)]


SLEEPER = "import subprocess; p = subprocess.Popen(['sleep', '97']); print(p.pid, flush=True)"
SETUP = """
emb = nn.Embedding(1000, 8).cuda()
ids = torch.tensor([[1, 2, 3], [4, 1000, 6]]).cuda()
"""


def test_embedding_is_found_from_the_automatic_copies(notebook):
    """After the context died, the finding names the operand, its values and its place."""
    notebook.cell(SETUP)
    cell = "scale = 2\nout = emb(ids) * scale\nprint(out.sum().item())"
    notebook.fails(cell)
    result = notebook.replay(cell)
    finding = result.finding
    assert result.replay.outcome == "raised"
    assert result.replay.exception == "IndexError: index out of range in self"
    assert (finding.expression, finding.line, finding.certainty) == ("ids", 2, "exact")
    assert finding.source[finding.column : finding.end_column] == "emb(ids)"
    assert (finding.minimum, finding.maximum) == (1, 1000)
    assert (finding.valid_minimum, finding.valid_maximum) == (0, 999)
    assert (finding.bad_count, finding.bad_positions, finding.batch_rows) == (1, ((1, 1),), (1,))
    assert finding.frames[-1].source == "out = emb(ids) * scale"
    assert result.replay.substituted >= 1
    assert f"cell [{notebook.count - 1}]" in result.replay.note
    assert [row.name for row in result.tensors if row.role == "index"] == ["ids"]


def test_without_the_copies_the_outcome_is_inconclusive(notebook):
    """Where the index values are lost, the replay neither finds anything nor calls it clean."""
    notebook.cell(SETUP)
    cell = "emb(ids).sum().item()"
    notebook.fails(cell)
    notebook.copies.clear()
    result = notebook.replay(cell)
    assert (result.replay.outcome, result.finding) == ("inconclusive", None)
    assert "substitute" in result.replay.note
    assert all(row.substitute for row in result.tensors if row.role == "index")


def test_the_parents_memory_is_not_read_after_death(notebook):
    """The simulated tensor's own memory still holds the bad index; a replay must not look."""
    notebook.cell("x = torch.arange(10.).cuda(); i = torch.tensor([3]).cuda()")
    notebook.fails("i += 70\ny = x[i]")
    result = notebook.replay("y = x[i]")
    assert result.replay.outcome == "clean"
    assert result.tensors[0].maximum == 3


def test_cross_entropy_and_ignore_index(notebook):
    """A label out of range is found, the ignored one is not counted as bad."""
    notebook.cell(
        "scores = torch.randn(4, 5).cuda()\nlabels = torch.tensor([0, -100, 5, 4]).cuda()\n"
    )
    cell = "loss = F.cross_entropy(scores, labels)\nloss.item()"
    notebook.fails(cell)
    result = notebook.replay(cell)
    assert result.finding.operation == "torch.nn.functional.cross_entropy"
    assert result.finding.bad_values == (5,)
    assert result.finding.special_values == (-100,)
    assert result.finding.batch_rows == (2,)
    assert "Target 5 is out of bounds" in result.replay.exception


def test_indexing_with_a_tensor(notebook):
    """``x[index]`` is found with the closed range that allows negative indices."""
    notebook.cell(
        "x = torch.arange(12.).reshape(4, 3).cuda()\nindex = torch.tensor([-4, 4]).cuda()"
    )
    cell = "y = x[index]\ny.sum().item()"
    notebook.fails(cell)
    finding = notebook.replay(cell).finding
    assert (finding.operation, finding.expression) == ("x[index]", "index")
    assert (finding.valid_minimum, finding.valid_maximum, finding.bad_values) == (-4, 3, (4,))


def test_a_finding_that_the_cell_swallows_is_still_the_outcome(notebook):
    """The cell's own ``except`` hides neither the finding nor the rest of the cell."""
    notebook.cell(SETUP)
    cell = "try:\n    emb(ids)\nexcept Exception:\n    print('went on')"
    notebook.fails(cell)
    result = notebook.replay(cell)
    assert (result.replay.outcome, result.finding.line) == ("raised", 2)
    assert result.output == "went on\n"


def test_substitutes_in_a_finding_are_told(notebook):
    """A bad index computed from lost values is a finding that depends on substitutes."""
    notebook.cell("emb = nn.Embedding(10, 4).cuda(); base = torch.zeros(3).cuda()")
    cell = "ids = base.long() + 10\nemb(ids)"
    notebook.fails(cell)
    result = notebook.replay(cell)
    assert result.replay.outcome == "raised"
    assert result.finding.certainty == "depends_on_substitutes"


def test_a_clean_cell_is_clean(notebook):
    """A cell whose every operand is known and valid comes out clean."""
    notebook.cell("emb = nn.Embedding(10, 4).cuda(); ids = torch.tensor([1]).cuda()")
    result = notebook.replay("loss = emb(ids).sum(); loss.backward(); print('done')")
    assert (result.replay.outcome, result.replay.exception) == ("clean", None)
    assert result.output == "done\n"


def test_checkpoint_replays_from_before_the_cell(notebook):
    """Iterators, counters and random states are those of before, floats are the real ones."""
    notebook.cell(
        "data = torch.tensor([3, 8, 10]); w = torch.full((5,), 2.).cuda(); n = 0\n"
        "emb = nn.Embedding(10, 4).cuda(); batches = iter(data)\nnext(batches)"
    )
    cell = (
        "draws = random.random(), np.random.rand(), torch.rand(1).item()\n"
        "n += 1\nw += 1\n"
        "for b in batches:\n    emb(b.cuda())\n    print(n, b.item(), w.sum().item(), draws)"
    )
    checkpoint = notebook.checkpoint()
    notebook.fails(cell)
    draws = notebook.names["draws"]
    result = checkpoint.start(ReplayRequest(source=cell)).wait()
    assert result.output == f"1 8 15.0 {draws}\n"
    assert (result.replay.outcome, result.replay.state) == ("raised", "checkpoint")
    assert result.finding.bad_values == (10,)
    assert result.replay.substituted == 0


def test_a_loader_loop_replays_from_its_first_batch(notebook):
    """``for batch in loader`` shuffles as it did, and the parent's own loader is not moved."""
    notebook.names["loader"] = DataLoader(TensorDataset(torch.arange(8)), 2, shuffle=True)
    notebook.cell("emb = nn.Embedding(8, 2).cuda()")
    cell = "seen = [b.tolist() for (b,) in loader]\nprint(seen)"
    checkpoint = notebook.checkpoint()
    notebook.execute(cell)
    result = checkpoint.start(ReplayRequest(source=cell)).wait()
    assert result.output == f"{notebook.names['seen']}\n"


def test_random_state_of_the_request_is_restored(notebook):
    """After a failure the generators can be put back to before the cell."""
    state = RandomState.take()
    cell = "print(random.random(), np.random.rand(), torch.rand(1).item())"
    notebook.execute("draws = random.random(), np.random.rand(), torch.rand(1).item()")
    result = notebook.replay(cell, rng=state.to_dict())
    assert result.output == "{} {} {}\n".format(*notebook.names["draws"])
    assert notebook.replay(cell).output != result.output


def test_objects_keep_their_identity(notebook):
    """Optimizers, views, ties, closures, grads and TorchScript see the replaced memory."""
    notebook.cell(
        "emb = nn.Embedding(20, 4).cuda(); head = nn.Linear(4, 20).cuda()\n"
        "head.weight = emb.weight\n"
        "lstm = nn.LSTM(4, 4).cuda()\n"
        "opt = torch.optim.Adam([*emb.parameters(), *lstm.parameters()])\n"
        "ids = torch.tensor([[1, 2], [3, 4]]).cuda(); row = ids[1]; t = ids.t()\n"
        "def step(x=ids, w=emb.weight):\n"
        "    opt.zero_grad(); out, _ = lstm(emb(x))\n"
        "    loss = F.cross_entropy(head(out).flatten(0, 1), x.flatten())\n"
        "    loss.backward(); opt.step(); return loss\n"
        "step()\n"
        "class Counter(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.register_buffer('steps', torch.tensor([2]))\n"
        "    def forward(self, x):\n"
        "        return x + self.steps\n"
        "script = torch.jit.script(Counter()).cuda()\n"
        "bits = torch.tensor([1 + 2j, 3j]).cuda(); conj = bits.conj()\n"
    )
    cell = (
        "assert all(p.is_cuda for g in opt.param_groups for p in g['params'])\n"
        "assert all(p.grad.is_cuda for p in lstm.parameters())\n"
        "assert row._base is ids and row.is_cuda and t.is_cuda\n"
        "before = emb.weight.clone()\n"
        "loss = step(); assert head.weight is emb.weight and not torch.equal(before, emb.weight)\n"
        "assert opt.state[emb.weight]['step'].item() == 2\n"
        "ids[1, 0] = 19; assert row[0] == 19 and t[0, 1] == 19\n"
        "assert script(torch.tensor([1]).cuda()).item() == 3\n"
        "assert torch.equal(conj.cpu(), torch.tensor([1 - 2j, -3j]))\n"
        "row[0] = 20; step()"
    )
    checkpoint = notebook.checkpoint()
    result = checkpoint.start(ReplayRequest(source=cell)).wait()
    assert result.replay.outcome == "raised", (result.replay, result.output)
    assert result.finding.bad_values == (20,)
    assert notebook.names["ids"].tolist() == [[1, 2], [3, 4]]


def test_a_graph_of_before_is_forward_only(notebook):
    """What an earlier cell's graph saved is out of reach: backward says so, also when swallowed."""
    notebook.cell(
        "w = torch.full((3,), 2., device='cuda', requires_grad=True)\nloss = (w * 2).pow(2).sum()"
    )
    result = notebook.checkpoint().start(ReplayRequest(source="loss.backward()")).wait()
    assert (result.replay.outcome, result.finding) == ("inconclusive", None)
    assert "graph of an earlier cell" in result.replay.note
    swallowed = "try:\n    loss.backward()\nexcept Exception:\n    print(w.grad)"
    result = notebook.replay(swallowed)
    assert result.replay.outcome == "inconclusive"
    assert result.output == "None\n"
    fresh = notebook.replay("(w + loss.detach()).sum().backward(); print(w.grad.tolist())")
    assert fresh.output == "[1.0, 1.0, 1.0]\n"
    assert fresh.replay.outcome == "clean"


def test_modes_of_the_user_stay_and_ours_go(notebook):
    """A torch mode that an earlier cell entered sees the replay's calls; the guard does not."""
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    notebook.names["Counting"] = Counting
    with Counting():
        cell = "before = Counting.calls; torch.ones(2) + 1; print(Counting.calls > before)"
        result = notebook.replay(cell)
    assert result.output == "True\n"
    assert result.replay.outcome == "clean"


def test_the_users_default_device_stays(notebook):
    """``torch.set_default_device("cuda")`` of an earlier cell holds in the replay."""
    notebook.cell("torch.set_default_device('cuda')")
    try:
        result = notebook.replay(
            "print(torch.zeros(2).device, torch.zeros(2, device='cpu').device)"
        )
    finally:
        torch.set_default_device(None)
    assert result.output == "cuda:0 cpu\n", result


def test_an_exception_without_a_finding_is_not_clean(notebook):
    """What the cell raised is told, and that the rest of it was not checked."""
    result = notebook.replay("1 / 0")
    assert (result.replay.outcome, result.finding) == ("inconclusive", None)
    assert result.replay.exception == "ZeroDivisionError: division by zero"
    assert "not checked" in result.replay.note


def test_an_exception_with_a_broken_text_is_told_too(notebook):
    """An exception whose ``__str__`` raises does not break the replay."""
    result = notebook.replay(
        "class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Odd"
    )
    assert result.replay.exception == "Odd: "


def test_exit_ends_the_cell_only(notebook):
    """``exit()`` in a replay is no crash."""
    result = notebook.replay("raise SystemExit")
    assert result.replay.outcome == "clean"
    assert "exit()" in result.replay.note


def test_files_stay_where_they_are(notebook, tmp_path):
    """Reading, seeking and writing in the replay leave the kernel's files as they were."""
    (tmp_path / "in").write_text("abcdef")
    notebook.names["source"] = (tmp_path / "in").open()
    notebook.names["log"] = (tmp_path / "log").open("w")
    notebook.execute("source.read(0); raw = os.open(source.name, os.O_RDONLY); os.read(raw, 2)")
    result = notebook.replay(
        "print(os.read(raw, 3)); log.write('x'); log.flush(); print(source.read())"
    )
    assert result.output == "b'cde'\nabcdef\n"
    assert os.read(notebook.names["raw"], 9) == b"cdef"
    assert (tmp_path / "log").read_text() == ""


def test_a_cell_that_needs_a_shared_descriptor_is_inconclusive(notebook):
    """A socket of the kernel is out of reach, and that is the reason given."""
    notebook.names["near"], notebook.names["far"] = socket.socketpair()
    result = notebook.replay("near.send(b'x')")
    assert result.replay.outcome == "inconclusive"
    assert "socket" in result.replay.note
    notebook.names["far"].setblocking(False)
    with pytest.raises(BlockingIOError):
        notebook.names["far"].recv(1)


def test_a_worker_iterator_of_before_is_inconclusive(notebook):
    """No batch is stolen from the parent's workers, also when the cell swallows the refusal."""
    loader = DataLoader(TensorDataset(torch.arange(6)), 2, num_workers=1, persistent_workers=True)
    notebook.names["loader"], notebook.names["batches"] = loader, iter(loader)
    next(notebook.names["batches"])
    for cell in ("next(batches)", "try:\n    next(batches)\nexcept Exception:\n    pass"):
        result = notebook.replay(cell, timeout=20)
        assert result.replay.outcome == "inconclusive"
        assert "num_workers=0" in result.replay.note
    fresh = notebook.replay("print([b.tolist() for (b,) in loader])", timeout=60)
    assert fresh.output.endswith("[[0, 1], [2, 3], [4, 5]]\n"), fresh
    assert fresh.replay.outcome == "clean"
    assert [b.tolist() for (b,) in notebook.names["batches"]] == [[2, 3], [4, 5]]
    loader._iterator._shutdown_workers()


def test_output_is_captured_and_bounded(notebook, capfd):
    """Prints of Python, of C and of child programs arrive; a flood is cut and does not hang."""
    result = notebook.replay(
        "import subprocess, sys\n"
        "print('one'); sys.stderr.write('two\\n'); os.write(1, b'three\\n')\n"
        "subprocess.run(['echo', 'four'])\nfor _ in range(3000): print('x' * 1000)",
    )
    assert result.output.startswith("one\ntwo\nthree\nfour\nxxx")
    assert len(result.output) < 70_000
    assert result.output.endswith("cut)")
    assert result.replay.outcome == "clean"
    assert "xxx" not in capfd.readouterr().out


def test_events_show_life(notebook):
    """Progress and output arrive while the cell runs."""
    events = []
    notebook.replay("import time\nprint('a')\ntime.sleep(0.8)", on_event=events.append)
    assert sum(isinstance(event, Progress) for event in events) >= 2
    assert Output(text="a\n") in events


@pytest.mark.parametrize(
    ("cell", "how"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os._exit(3)", "exit status 3"),
    ],
)
def test_a_crash_is_told_as_what_it_is(notebook, cell, how):
    """A child that dies is told with its signal; what it had found and printed is kept."""
    notebook.cell(SETUP)
    result = notebook.replay(f"print('before')\n{cell}")
    assert (result.replay.outcome, result.finding) == ("crashed", None)
    assert how in result.replay.note
    assert "before" in result.output
    swallowed = f"try:\n    emb(ids)\nexcept IndexError:\n    pass\n{cell}"
    result = notebook.replay(swallowed)
    assert (result.replay.outcome, result.finding.bad_values) == ("raised", (1000,))
    assert how in result.replay.note


@pytest.mark.parametrize("loop", ["while True: pass", "import time; time.sleep(99)"])
def test_time_out(notebook, loop):
    """A cell that hangs is ended, with everything it started."""
    cell = f"{SLEEPER}\n{loop}"
    started = time.monotonic()
    result = notebook.replay(cell, timeout=2.5)
    assert result.replay.outcome == "timed_out"
    assert "2.5" in result.replay.note
    assert time.monotonic() - started < 8
    _assert_gone(int(result.output))


def test_a_child_that_holds_the_gil_is_ended_by_its_parent(notebook):
    """Where the child cannot even tell the time-out, the parent ends it."""
    cell = "import ctypes; ctypes.PyDLL(None).sleep(60)"
    result = notebook.replay(cell, timeout=0.3)
    assert result.replay.outcome == "timed_out"


def test_cancel_ends_everything_at_once(notebook):
    """Cancelling kills the child and what it started, and can be repeated."""
    cell = f"{SLEEPER}\nwhile 1: pass"
    running = notebook.fork().start(ReplayRequest(source=cell))
    text = ""
    while "\n" not in text:
        text += "".join(e.text for e in running.read_events() if isinstance(e, Output))
    result = running.cancel()
    assert result.replay.outcome == "cancelled"
    assert running.cancel() is result is running.wait()
    _assert_gone(int(text))


def test_the_stop_button_cancels(notebook):
    """``KeyboardInterrupt`` in a blocking wait ends the child and returns."""
    running = notebook.fork().start(ReplayRequest(source="while True: pass"))
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        result = running.wait()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert result.replay.outcome == "cancelled"


def test_the_event_loop_goes_on_meanwhile(notebook):
    """Awaiting a replay blocks nothing; cancelling the task ends the child."""

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.02)
                ticks += 1

        ticking = asyncio.create_task(tick())
        events = []
        running = notebook.fork().start(ReplayRequest(source="import time; time.sleep(0.6)"))
        result = await running.result(events.append)
        assert result.replay.outcome == "clean"
        assert ticks > 10
        assert any(isinstance(event, Progress) for event in events)
        endless = notebook.fork().start(ReplayRequest(source="while True: pass"))
        task = asyncio.create_task(endless.result())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert endless.outcome.replay.outcome == "cancelled"
        ticking.cancel()

    asyncio.run(main())


def test_a_busy_kernel_does_not_time_a_replay_out(notebook):
    """A child that waited for its parent to read is heard out, whatever the time."""
    cell = "for _ in range(300): print('x' * 1000)\nprint('through')"
    running = notebook.fork().start(ReplayRequest(source=cell, timeout=60))
    running._timeout = 0.1
    time.sleep(2.5)
    result = running.wait()
    assert result.replay.outcome == "clean"


def test_top_level_await_can_run_in_the_child(notebook):
    """A fork inside a running event loop can run a loop of its own."""

    async def main():
        return notebook.replay("import asyncio\nprint(asyncio.run(asyncio.sleep(0, 'slept')))")

    assert asyncio.run(main()).output == "slept\n"


def test_a_cell_that_forks_tells_once(notebook):
    """A forked process of the cell that comes out of it says nothing to the kernel."""
    result = notebook.replay("pid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('x', pid > 0)")
    assert sorted(result.output.split("\n")) == ["", "x False", "x True"]
    assert result.replay.outcome == "clean"


def test_too_much_memory_is_inconclusive(notebook):
    """A cell that needs more memory than it may take says so and does not kill the machine."""
    result = notebook.replay("big = torch.ones(1 << 30)", memory_limit=1 << 28)
    assert result.replay.outcome == "inconclusive"
    assert "memory" in result.replay.note


def test_lost_tensors_of_any_size_cost_no_memory(notebook):
    """Substitutes for large tensors are pages that exist only when written."""
    notebook.cell("big = torch.empty(1 << 28, device='cuda')")
    result = notebook.replay("print(big.shape[0], big[12345].item())", memory_limit=1 << 27)
    assert result.output == "268435456 0.0\n", result


def test_a_checkpoint_starts_once(notebook):
    """A used, discarded or killed checkpoint says so."""
    used = notebook.fork()
    used.start(ReplayRequest(source="")).wait()
    discarded = notebook.fork()
    discarded.discard()
    discarded.discard()
    killed = notebook.fork()
    os.kill(killed.pid, signal.SIGKILL)
    time.sleep(0.2)
    for checkpoint in (used, discarded, killed):
        with pytest.raises(CheckpointRefused, match="Take a new one"):
            checkpoint.start(ReplayRequest(source=""))


def test_checkpoints_are_refused_where_memory_is_short(notebook, monkeypatch):
    """The refusal has the numbers."""
    from cudassert_ipy.replay import memory

    monkeypatch.setattr(memory, "HEADROOM", 1e9)
    with pytest.raises(CheckpointRefused, match="MB should be free"):
        notebook.fork()


def _assert_gone(pid):
    for _ in range(50):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie":
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} is still there")
