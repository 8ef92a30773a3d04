"""Healthy cells are as without the extension."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

CELLS = [
    "1 + 1",
    "",
    "x = (",
    "print('y' * 1_000_000)",
    "import asyncio\nawait asyncio.sleep(0)\n42",
    "import os\nos.write(2, b'to fd 2\\n'); os.write(1, b'to fd 1\\n'); None",
    "import sys\nprint('out'); print('err', file=sys.stderr)",
    "1 / 0",
    "raise SystemExit(3)",
    "%time 1",
    "!echo from the shell",
    "\n\n1 / 0",
    "get_ipython().run_cell('3')\nNone",
]


def shown(outcome):
    """What a user sees, timings and memory addresses left out."""
    parts = [outcome.status, outcome.reply.get("ename"), outcome.reply["execution_count"]]
    for message in outcome.messages:
        content = message["content"]
        if message["msg_type"] in ("display_data", "execute_result"):
            parts.append(content["data"])
        elif message["msg_type"] == "error":
            parts.append(content["ename"])
            parts.append(len(content["traceback"]))
    streams = (outcome.stdout, outcome.stderr)
    return parts, [s for s in streams if "Wall time" not in s and "CPU times" not in s]


def test_the_same_cells_show_the_same(start_kernel):
    """Cells that do not compile, are empty, await, print a megabyte … behave as ever."""
    ours = start_kernel(simulator=False)
    bare = start_kernel(simulator=False, load=False)
    bare.run("pass")
    for code in CELLS:
        assert shown(ours.run(code)) == shown(bare.run(code)), code


def test_exit_ends_the_kernel(start_kernel):
    """`exit()` ends the kernel as ever."""
    kernel = start_kernel(simulator=False)
    kernel.run("exit()")
    kernel.wait_until(lambda: not kernel.manager.is_alive(), timeout=20)


def test_loading_imports_nothing_heavy(start_kernel):
    """Loading leaves torch, numpy, ipywidgets, jinja2, rich and our model unloaded."""
    kernel = start_kernel(simulator=False)
    heavy = kernel.evaluate(
        "sorted({'torch', 'numpy', 'ipywidgets', 'jinja2', 'rich', 'cudassert_ipy.model'}"
        " & set(__import__('sys').modules))"
    )
    assert heavy == []


def test_unload_gives_everything_back(start_kernel):
    """Load, use, reload and unload leave no hook, magic, thread, descriptor or variable."""
    kernel = start_kernel(simulator=False, load=False)
    state = (
        # IPython opens its history by itself, whenever it likes.
        "[sorted(t for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')"
        " if 'history.sqlite' not in (t := os.readlink(f'/proc/self/fd/{n}'))"
        " and '/proc' not in t),"
        " os.readlink('/proc/self/fd/2'),"
        " sorted(t.name for t in threading.enumerate()), sorted(os.environ),"
        " sorted(ip.magics_manager.magics['line']), sorted(ip.magics_manager.magics['cell']),"
        " {k: len(v) for k, v in ip.events.callbacks.items()}, sorted(vars(ip)),"
        " len(ip.input_transformer_manager.cleanup_transforms), len(ip.configurables),"
        " [n for n in os.listdir(tempfile.gettempdir())"
        " if n.startswith(f'cudassert-fd-{os.getpid()}-')]]"
    )
    kernel.run("import os, threading, tempfile, torch\nip = get_ipython()")
    kernel.run("%load_ext cudassert_ipy\n%unload_ext cudassert_ipy")
    before = kernel.evaluate(state)
    for line in (
        "%load_ext cudassert_ipy",
        "%reload_ext cudassert_ipy",
        "%cuda_debug simulator on",
        "torch.ones(2).cuda().sum().item()",
        "%%cuda_debug\ntorch.ones(2).cuda().sum().item()",
        "%cuda_debug guard on",
        "1",
        "%unload_ext cudassert_ipy",
    ):
        assert kernel.run(line).status == "ok", line
    assert kernel.evaluate(state) == before
    assert kernel.evaluate("torch.cuda.is_available()") is False


def test_a_fault_in_a_hook_never_masks_the_users_error(start_kernel):
    """With a broken hook the user's own error and status come through, with one line of ours."""
    kernel = start_kernel()
    kernel.run("import torch, cudassert_ipy.decode.failure as f\ndel f.is_suspect")
    cell = kernel.run("1 / 0")
    assert cell.reply["ename"] == "ZeroDivisionError"
    assert "your cell is not affected" in cell.stdout


def test_the_capture_can_be_turned_off(start_kernel):
    """`CudaDebug.capture` gives the descriptors back at once, and takes them again."""
    kernel = start_kernel(simulator=False)
    target = "__import__('os').readlink('/proc/self/fd/2')"
    assert "cudassert-fd" in kernel.evaluate(target)
    kernel.run("%config CudaDebug.capture = False")
    assert kernel.evaluate(target).startswith("pipe:")
    kernel.run("%config CudaDebug.capture = True")
    assert "cudassert-fd" in kernel.evaluate(target)


def test_captured_text_goes_with_the_process(start_kernel):
    """A kernel that ends leaves no file of ours behind."""
    kernel = start_kernel(simulator=False)
    path = Path(kernel.evaluate("__import__('os').readlink('/proc/self/fd/2')"))
    assert path.exists()
    kernel.client.shutdown()
    kernel.wait_until(lambda: not kernel.manager.is_alive(), timeout=20)
    assert not path.exists()


def test_disabled_by_the_environment(start_kernel):
    """`CUDASSERT_DISABLE=1` turns everything off, and notebooks that use the magics still run."""
    kernel = start_kernel(simulator=False, CUDASSERT_DISABLE="1")
    assert "off" in kernel.run("%cuda_debug guard on").stdout
    kernel.run("import torch, cudassert_ipy\nemb = torch.nn.Embedding(10, 2)")
    assert kernel.run("%%cuda_debug\nx = 3").status == "ok"
    assert kernel.evaluate("x") == 3
    cell = kernel.run("with cudassert_ipy.guard():\n    emb(torch.tensor([10]))")
    assert cell.reply["ename"] == "IndexError"


def test_without_torch_the_magic_says_so(start_kernel, tmp_path):
    """Where torch cannot be imported the extension loads, and the magic gives the reason."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    kernel = start_kernel(simulator=False, PYTHONPATH=str(tmp_path))
    cell = kernel.run("%%cuda_debug\n1 + 1")
    assert cell.status == "ok"
    assert "torch cannot be imported" in cell.stdout
    assert kernel.run("%cuda_debug simulator on").status == "error"
