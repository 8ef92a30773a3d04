"""The extension in an IPython shell in this process."""

from __future__ import annotations

import sys

import pytest

from cudassert_ipy import OperandError, last_diagnosis
from tests.shell.conftest import installed

SETUP = (
    "import torch\nemb = torch.nn.Embedding(10, 2).cuda()\n"
    "ids = torch.tensor([[1, 2], [3, 10]])\ndev = ids.cuda()"
)
FAILING = "rows = emb(dev)\nrows.sum().item()"


def test_loading_twice_installs_once(shell):
    """A second load replaces the first."""
    before = installed(shell)
    shell.run_line_magic("reload_ext", "cudassert_ipy")
    assert installed(shell) == before


def test_a_cell_under_the_magic_is_complete_at_its_blank_line(shell):
    """In a terminal `%%cuda_debug` waits for the cell's body, like every cell magic."""
    check = shell.input_transformer_manager.check_complete
    assert check("%%cuda_debug\n")[0] == check("%%time\n")[0] == "incomplete"
    assert check("%%cuda_debug\nx = 1\n\n")[0] == check("%%time\nx = 1\n\n")[0]


def test_a_wrapper_around_ours_survives_unloading(bare_shell, capsys):
    """Who wrapped `_showtraceback` after us is still called when we are gone, and we are not."""
    bare_shell.run_line_magic("load_ext", "cudassert_ipy")
    ours = bare_shell._showtraceback
    seen = []

    def theirs(etype, evalue, stb):
        seen.append(etype)
        return ours(etype, evalue, stb)

    bare_shell._showtraceback = theirs
    bare_shell.run_line_magic("unload_ext", "cudassert_ipy")
    bare_shell.run_cell("1 / 0")
    assert seen == [ZeroDivisionError]
    assert bare_shell._showtraceback is theirs
    bare_shell.run_cell(f"{SETUP.replace('.cuda()', '')}\nimport cudassert_ipy")
    capsys.readouterr()
    bare_shell.run_cell("with cudassert_ipy.guard(): emb(ids)")
    assert seen[-1] is OperandError
    assert "cudassert_ipy:" not in capsys.readouterr().out
    del bare_shell._showtraceback


def test_the_manual(shell, capsys):
    """`%cuda_debug?` and `%%cuda_debug?` list commands and options."""
    for magic, word in (("%cuda_debug", "simulator on|off"), ("%%cuda_debug", "--no-checkpoint")):
        shell.run_line_magic("pinfo", magic)
        assert word in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("nonsense", "status"),
        ("guard", "on | off"),
        ("simulator maybe", "on | off"),
        ("off x", "off"),
    ],
)
def test_a_wrong_command_gets_the_usage(shell, capsys, line, accepted):
    """Whatever is wrong, the answer lists what is accepted."""
    shell.run_cell(f"%cuda_debug {line}")
    shown = "".join(capsys.readouterr())
    assert accepted in shown
    assert "usage: %cuda_debug" in shown


def test_failure_and_replay(simulated, capsys):
    """The panel's text follows the error, and the replay names the value."""
    assert simulated.run_cell(SETUP, store_history=True).success
    result = simulated.run_cell(FAILING, store_history=True)
    assert type(result.error_in_exec).__name__ == "AcceleratorError"
    shown = capsys.readouterr().out
    assert "Must hold" in shown
    simulated.run_line_magic("cuda_debug", "replay")
    assert last_diagnosis().finding.bad_positions == ((1, 1),)
    assert "10 at [1, 1]" in capsys.readouterr().out


def test_odd_tensors_in_the_kernel_do_not_spoil_the_panel(simulated, capsys):
    """Tensors that raise when they are asked anything are left alone."""
    simulated.run_cell(
        "import torch\nlazy = torch.nn.LazyLinear(3)\n"
        "class Odd(torch.Tensor):\n"
        "    @property\n"
        "    def is_cuda(self): raise OSError('odd')\n"
        "odd = torch.zeros(2).as_subclass(Odd)"
    )
    simulated.run_cell(SETUP, store_history=True)
    simulated.run_cell(FAILING, store_history=True)
    assert "Must hold" in capsys.readouterr().out
    simulated.run_line_magic("cuda_debug", "replay")
    assert last_diagnosis().finding.bad_positions == ((1, 1),)


def test_nested_cells_are_not_cells_of_the_session(simulated):
    """A cell that runs other cells is one cell."""
    simulated.run_cell("get_ipython().run_cell('a = 1')\nb = 2", store_history=True)
    session = sys.modules["cudassert_ipy.notebook.extension"].session_of(simulated)
    assert [cell.source for cell in session.recorder.cells][-1].endswith("b = 2")
    assert len(session.recorder.cells) == 1


def test_cells_from_before_a_late_load_are_known(bare_shell):
    """The history becomes part of the restart's plan, its outcome unknown."""
    bare_shell.run_cell("before = 1", store_history=True)
    bare_shell.run_line_magic("load_ext", "cudassert_ipy")
    session = sys.modules["cudassert_ipy.notebook.extension"].session_of(bare_shell)
    assert [step.source for step in session.restarting.plan().steps] == ["before = 1"]
    bare_shell.run_line_magic("unload_ext", "cudassert_ipy")


def test_an_error_outside_any_cell_is_explained_at_once(simulated, capsys):
    """A callback's error gets its panel although no cell ends."""
    simulated.run_cell(SETUP, store_history=True)
    simulated.run_cell("def callback():\n    emb(dev).sum().item()", store_history=True)
    capsys.readouterr()
    try:
        simulated.user_ns["callback"]()
    except RuntimeError:
        simulated.showtraceback()
    assert "What happened" in capsys.readouterr().out


def test_the_guard_in_python_code(simulated):
    """`cudassert_ipy.guard()` raises with the finding; the context lives."""
    simulated.run_cell(SETUP)
    result = simulated.run_cell("import cudassert_ipy\nwith cudassert_ipy.guard():\n    emb(dev)")
    assert isinstance(result.error_in_exec, OperandError)
    assert result.error_in_exec.finding.expression == "dev"
    assert simulated.run_cell("dev.max().item()").result == 10


def test_turning_off_leaves_the_shell_alone(shell, capsys):
    """After `%cuda_debug off` no hook of ours runs; reloading brings them back."""
    shell.run_line_magic("cuda_debug", "off")
    assert shell.events.callbacks["post_run_cell"] == []
    assert "_showtraceback" not in vars(shell)
    shell.run_line_magic("reload_ext", "cudassert_ipy")
    assert "_showtraceback" in vars(shell)


def test_run_cell_magic_from_code(simulated):
    """`run_cell_magic` guards its body like the magic on top of a cell."""
    simulated.run_cell(SETUP)
    with pytest.raises(OperandError):
        simulated.run_cell_magic("cuda_debug", "", "emb(dev)")


CUBLAS = (
    "raise RuntimeError('CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
    "`cublasCreate(handle)`')"
)
WORKER = (
    "raise RuntimeError('Caught RuntimeError in DataLoader worker process 0.\\n"
    "Original Traceback (most recent call last):\\n"
    "RuntimeError: CUDA error: device-side assert triggered')"
)


def test_library_error_on_a_live_device_is_decided_by_the_probe(simulated, capsys):
    """The text alone does not tell; the device answers, so nothing is dead."""
    simulated.run_cell(SETUP)
    simulated.run_cell(CUBLAS)

    shown = capsys.readouterr().out
    assert "error from a CUDA library" in shown
    assert "The CUDA context is alive" in shown
    assert "dead" not in shown
    simulated.run_cell("back = dev.cpu()")
    assert simulated.user_ns["back"].tolist() == [[1, 2], [3, 10]]


def test_library_error_after_an_assert_is_decided_by_the_probe(simulated, capsys):
    """The same text where the device had asserted: its own words are found, and it is dead."""
    simulated.run_cell(SETUP)
    simulated.run_cell(f"rows = emb(dev)\n{CUBLAS}")

    diagnosis = last_diagnosis()
    assert (diagnosis.failure.kind, diagnosis.context) == ("device_assert", "dead")
    assert diagnosis.failure.assertions[0].known
    capsys.readouterr()


def test_error_of_a_worker_process_leaves_this_kernel_alive(simulated, capsys):
    """A DataLoader worker has a context of its own; the line says so."""
    simulated.run_cell(SETUP)
    simulated.run_cell(WORKER)

    shown = capsys.readouterr().out
    assert "child process" in shown
    assert "CUDA context is dead" not in shown
    simulated.run_cell("back = dev.cpu()")
    assert simulated.user_ns["back"].tolist() == [[1, 2], [3, 10]]
