import functools
import linecache
import pickle
import traceback
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import cudassert_ipy
from cudassert_ipy.checks.inspect import MAX_RANGES, MAX_ROWS
from cudassert_ipy.checks.traceback import trim_traceback
from cudassert_ipy.errors import OperandError
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.simulate import SimulatePolicy


def test_a_bad_index_is_an_exception_on_the_cpu_too():
    """The guard raises OperandError, an IndexError and a ValueError, with the finding."""
    ids = torch.tensor([[1, 10], [2, 3]])
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        nn.Embedding(10, 4)(ids)
    error = caught.value
    assert isinstance(error, IndexError)
    assert isinstance(error, ValueError)
    finding = error.finding
    assert (finding.bad_values, finding.bad_positions, finding.batch_rows) == (
        (10,),
        ((0, 1),),
        (0,),
    )
    assert (finding.minimum, finding.maximum) == (1, 10)
    assert (finding.valid_minimum, finding.valid_maximum) == (0, 9)
    assert (finding.shape, finding.dtype, finding.certainty) == ((2, 2), "int64", "exact")
    assert finding.aten == "aten::embedding.default"


def test_the_message_tells_what_where_and_a_hint():
    """The text has operation, operand, values, positions, range, shape, line and hint."""
    batch = {"ids": torch.tensor([[1, 10], [2, 3]])}
    emb = nn.Embedding(10, 4)
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        emb(batch["ids"])
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        'torch.nn.functional.embedding: 1 of 4 values of `batch["ids"]` is outside 0 to 9.'
    )
    assert lines[1] == "  10 at [0, 1]"
    assert lines[2] == "  operand input: shape [2, 2], int64, values from 1 to 10"
    assert lines[3].endswith(': emb(batch["ids"])')
    assert "Off by one" in lines[4]


def compiled(name, source):
    """Return the code of a module or cell whose source Python can find."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec")


def message_of(module, cell):
    """Run a module and then a cell that fails, (file name, source) each; return the message."""
    names = {"emb": nn.Embedding(10, 4)}
    exec(compiled(*module), names)
    run = functools.partial(exec, compiled(*cell), names)
    shell = compile("run()", "/anywhere/IPython/core/interactiveshell.py", "exec")
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        exec(shell, {"run": run})
    return str(caught.value).splitlines()


NET = """
class Net:
    def forward(self, ids):
        return emb(ids)
"""
CALL = "import torch\nloss = Net().forward(torch.tensor([10, 1]))\n"


def test_the_message_names_the_function_and_the_line_that_called_it():
    """A number in another file is not taken for one in the cell."""
    lines = message_of(("/home/me/mymod.py", NET), ("/tmp/ipykernel_42/7.py", CALL))
    assert lines[3:5] == [
        "  where   line 4 of Net.forward in mymod.py: return emb(ids)",
        "          called from line 2: loss = Net().forward(torch.tensor([10, 1]))",
    ]


@pytest.mark.parametrize("cell", ["/tmp/ipykernel_42/8.py", "<ipython-input-1-abc>"])
def test_functions_of_cells_are_named_without_a_file(cell):
    """The name under which a cell is compiled says nothing to the user."""
    lines = message_of((cell, NET), ("/tmp/ipykernel_42/7.py", CALL))
    assert lines[3] == "  where   line 4 of Net.forward: return emb(ids)"


def test_the_caller_in_a_script_is_named_with_its_file():
    """Outside a notebook the outermost line is in a file too."""
    lines = message_of(("/home/me/mymod.py", NET), ("/home/me/train.py", CALL))
    assert lines[4].startswith("          called from line 2 in train.py: loss = ")


def test_a_lambda_in_its_own_line_is_named_once():
    """The same line is not told twice."""
    call = "import torch\n(lambda ids: emb(ids))(torch.tensor([10, 1]))\n"
    lines = message_of(("/home/me/mymod.py", NET), ("/tmp/ipykernel_42/7.py", call))
    assert lines[3].startswith("  where   line 2 of <lambda>: (lambda ids")
    assert "called from" not in lines[4]


def test_one_value_is_singular():
    """No "1 of 1 values"."""
    ids = torch.tensor([10])
    with cudassert_ipy.guard(), pytest.raises(OperandError, match="1 of 1 value of `ids` is"):
        nn.Embedding(10, 4)(ids)


def test_the_hint_of_an_embedding_is_true_of_any_table():
    """A table may be one of words, positions or categories."""
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        nn.Embedding(10, 4)(torch.tensor([12]))
    assert "10 rows; the largest id needs 13" in caught.value.finding.hint
    for word in ("vocabulary", "added tokens", "positions", "categories"):
        assert word in caught.value.finding.hint


def test_the_traceback_ends_at_the_users_line():
    """No frame of torch or of this package stands below or between the user's."""
    ids = torch.tensor([10])
    try:
        with cudassert_ipy.guard():
            nn.Sequential(nn.Embedding(10, 4))(ids)
    except OperandError as error:
        frames = traceback.extract_tb(error.__traceback__)
    assert [frame.filename for frame in frames] == [__file__]
    assert frames[0].line == "nn.Sequential(nn.Embedding(10, 4))(ids)"


def test_healthy_code_has_the_same_results():
    """Under the guard nothing changes but the time it takes."""

    def step():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Dropout(), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters())
        loss = F.cross_entropy(model(torch.tensor([[1, 2], [3, 9]])), torch.tensor([0, -100]))
        loss.backward()
        optimizer.step()
        return [loss, *model.parameters()]

    expected = step()
    with cudassert_ipy.guard():
        found = step()
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_negative_indices_are_legal_where_cuda_allows_them():
    """``x[-1]`` counts from the end; an embedding has no row -1."""
    last = torch.tensor([-1])
    with cudassert_ipy.guard():
        torch.zeros(3)[last]
        with pytest.raises(OperandError):
            torch.zeros(3)[last - 3]
        with pytest.raises(OperandError) as caught:
            F.embedding(last, torch.zeros(3, 2))
    assert "Negative ids" in caught.value.finding.hint


def test_ignore_index_is_respected():
    """Ignored labels are valid; -1 is not ignored unless asked for, and the hint says so."""
    scores = torch.zeros(2, 3)
    with cudassert_ipy.guard():
        F.cross_entropy(scores, torch.tensor([0, -100]))
        F.cross_entropy(scores, torch.tensor([0, -1]), ignore_index=-1)
        with pytest.raises(OperandError) as caught:
            F.cross_entropy(scores, torch.tensor([0, -1]))
    assert caught.value.finding.special_values == (-100,)
    assert "ignore_index is -100" in caught.value.finding.hint


def test_the_loss_is_called_by_the_users_name():
    """Both losses run one kernel; the finding names the one that was called."""
    scores, labels = torch.zeros(2, 3), torch.tensor([0, 3])
    for call in (F.cross_entropy, F.nll_loss):
        with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
            call(scores, labels)
        assert caught.value.finding.operation == f"torch.nn.functional.{call.__name__}"
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        nn.NLLLoss()(scores, labels)
    assert caught.value.finding.operation == "torch.nn.functional.nll_loss"
    assert caught.value.finding.expression == "labels"


def test_labels_from_one_are_recognized():
    """Labels 1..C get the hint to subtract 1."""
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        F.cross_entropy(torch.zeros(3, 3), torch.tensor([1, 2, 3]))
    assert "Subtract 1" in caught.value.finding.hint


def test_guards_nest():
    """Two guards raise once, and the outer one works on after the inner one ended."""
    bad = torch.tensor([3])
    with cudassert_ipy.guard():
        with cudassert_ipy.guard(), pytest.raises(OperandError):
            torch.zeros(3)[bad]
        with pytest.raises(OperandError):
            torch.zeros(3)[bad]


def test_the_guard_ends_with_its_block():
    """Outside the block CPU torch's own error is back."""
    with cudassert_ipy.guard():
        pass
    with pytest.raises(IndexError) as caught:
        torch.zeros(3)[torch.tensor([3])]
    assert not isinstance(caught.value, OperandError)


def test_the_error_can_be_pickled():
    """It crosses process borders with its finding."""
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        torch.zeros(3)[torch.tensor([3])]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.finding == caught.value.finding


def test_rows_of_a_loop_are_one():
    """A call in a loop is one row, with the range over all rounds."""
    emb = nn.Embedding(10, 4)
    with cudassert_ipy.guard() as guard:
        for number in range(2 * MAX_ROWS):
            ids = torch.tensor([number % 10])
            emb(ids)
    (row,) = guard.rows
    assert (row.name, row.role, row.minimum, row.maximum) == ("ids", "index", 0, 9)
    assert (row.valid_minimum, row.valid_maximum, row.device) == (0, 9, "cpu")


def test_one_line_that_looks_up_two_tables_has_a_row_for_each():
    """What fits a large table is not accused by the limits of a small one; rows stay bounded."""

    def look(table, ids):
        return table(ids)

    with cudassert_ipy.guard() as guard:
        look(nn.Embedding(100, 3), torch.tensor([50, 60]))
        with pytest.raises(OperandError):
            look(nn.Embedding(5, 3), torch.tensor([1, 7]))
        for size in range(200, 300):
            look(nn.Embedding(size, 3), torch.tensor([0]))
    first, second, *more = guard.rows
    assert (first.minimum, first.maximum, first.valid_maximum, first.bad_count) == (50, 60, 99, 0)
    assert (second.minimum, second.maximum, second.valid_maximum, second.bad_count) == (1, 7, 4, 1)
    assert len(more) == MAX_RANGES - 2


def test_the_table_of_rows_is_bounded():
    """Many different calls do not grow the table without end; a bad operand is always in it."""
    source = "\n".join(["x[i]"] * (MAX_ROWS + 50) + ["x[bad]"])
    names = {"x": torch.zeros(3), "i": torch.tensor([1]), "bad": torch.tensor([3])}
    with cudassert_ipy.guard() as guard, pytest.raises(OperandError):
        exec(compile(source, "/tmp/cell.py", "exec"), names)
    assert len(guard.rows) == MAX_ROWS + 1
    assert guard.rows[-1].bad_count == 1


def test_on_the_simulator_the_guard_comes_first():
    """The guard raises before the launch: nothing is printed, and the context lives."""
    policy = SimulatePolicy(blocking=False)
    with StandinDevice(policy):
        emb = nn.Embedding(10, 4).cuda()
        ids = torch.tensor([10], device="cuda")
        with cudassert_ipy.guard() as guard, pytest.raises(OperandError):
            emb(ids)
        assert guard.rows[0].device == "cuda:0"
        assert not policy.failed
        assert emb(ids - 1).cpu().shape == (1, 4)


def test_operations_inside_vmap_backward_and_checkpoint_are_seen():
    """The guard sees what runs inside transforms and when gradients are computed."""
    table = torch.zeros(3, 2, requires_grad=True)

    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient[torch.tensor([5])]

    with cudassert_ipy.guard():
        with pytest.raises(OperandError):
            torch.vmap(lambda i: F.embedding(i, table))(torch.tensor([[1], [3]]))
        with pytest.raises(OperandError):
            Lookup.apply(table).sum().backward()


def test_compiled_functions_run_eagerly_under_the_guard():
    """A compiled function does not hide its operands."""
    look_up = torch.compile(lambda x, i: x[i] * 2, backend="eager")
    with cudassert_ipy.guard(), pytest.raises(OperandError):
        look_up(torch.zeros(3), torch.tensor([3]))


def test_no_off_by_one_is_claimed_where_listed_values_are_not_all():
    """More offenders than are listed: the largest one decides whether it is off by one."""
    ids = torch.tensor([10] * 30 + [4000])
    with pytest.raises(OperandError) as caught, cudassert_ipy.guard():
        F.embedding(ids, torch.zeros(10, 2))
    assert "Off by one" not in caught.value.finding.hint


def test_the_guards_own_code_is_not_compiled():
    """Dynamo runs the user's function eagerly, and leaves the frames of the check alone."""
    from torch._dynamo.utils import counters

    look_up = torch.compile(lambda x, i: x[i] * 2, backend="eager")
    with cudassert_ipy.guard() as guard:
        torch.zeros(1)
        counters.clear()
        look_up(torch.zeros(3), torch.tensor([0, 1]))
    assert len(guard.rows) == 1
    assert counters["frames"]["total"] == 0


def test_arguments_by_keyword_are_seen_by_function_checks():
    """Operands that are given by name are checked as well."""
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        F.one_hot(input=torch.tensor([0, 3]), num_classes=3)
    assert caught.value.finding.bad_values == (3,)
    with cudassert_ipy.guard(), pytest.raises(OperandError):
        torch.take_along_dim(input=torch.zeros(3), indices=torch.tensor([3]), dim=0)


def test_frames_of_libraries_named_like_torch_are_not_torchs():
    """An error that a library caught keeps the library's frames, and loses torch's and ours."""
    file = str(Path(torch.__file__).parent) + "_friend/layers.py"
    names = {"table": torch.nn.Embedding(5, 2)}
    exec(compile("def look(ids):\n    return table(ids)", file, "exec"), names)
    with cudassert_ipy.guard():
        try:
            names["look"](torch.tensor([9]))
        except OperandError as caught:
            error = caught
    error.__traceback__ = error.__traceback__.tb_next  # as if a frame of the library caught it
    trim_traceback(error, was_caught=True)
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.filename for frame in frames] == [file]
