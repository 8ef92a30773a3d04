"""What ``python -m cudassert_ipy explain`` does when it cannot write, or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.unit.test_explain_cli import LOG

FULL = "/dev/full"
needs_full_device = pytest.mark.skipif(not os.path.exists(FULL), reason="no /dev/full")  # noqa: PTH110


def shell(command, cwd):
    """Run ``command`` in a shell, in which ``explain`` is this tool, and without a buffer as well.

    Only without one does a write fail at once.
    """
    results = [
        subprocess.run(
            f'explain() {{ "{sys.executable}" -m cudassert_ipy explain "$@"; }}; {command}',
            shell=True,
            executable="bash",
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
            timeout=60,
        )
        for unbuffered in ("", "1")
    ]
    assert results[0].returncode == results[1].returncode
    return results[0]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "a.log").write_bytes(LOG)
    return tmp_path


@needs_full_device
@pytest.mark.parametrize("form", ["", "--json", "--markdown", "a.log", "a.log --json"])
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space"), (">&-", "no standard out")])
def test_result_that_cannot_be_written_is_status_2(directory, where, why, form):
    """A script must not take a full disk for "no CUDA error found"; one line says what it was."""
    result = shell(f"explain a.log {form} {where}", directory)

    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert why in result.stderr


@needs_full_device
@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", ">&- 2>&-", "2> >(true)"])
@pytest.mark.parametrize("arguments", ["missing.log", "--unknown"])
def test_complaint_that_nobody_hears_does_not_change_the_status(directory, where, arguments):
    """stderr may be closed, full or a pipe that nobody reads."""
    result = shell(f"explain {arguments} {where}", directory)

    assert (result.returncode, result.stderr) == (2, "")


@needs_full_device
def test_note_that_nobody_hears_does_not_change_the_status(directory):
    """That a file is empty is only a note."""
    assert shell("explain /dev/null 2>/dev/full", directory).returncode == 1


@needs_full_device
def test_help_that_cannot_be_written_is_status_2(directory):
    """argparse itself would not notice."""
    result = subprocess.run(
        f'"{sys.executable}" -m cudassert_ipy explain --help >/dev/full',
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )

    assert (result.returncode, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("module", ["argparse", "json"])
def test_interrupt_during_an_import_leaves_no_traceback(directory, module):
    """Ctrl-C in the first moment, as later: status 130 and silence."""
    (directory / f"{module}.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "cudassert_ipy", "explain", "a.log"],
        capture_output=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{directory}:{os.getcwd()}"},  # noqa: PTH109
        timeout=60,
        # The tests themselves may run as a job in the background, which ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )

    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


def test_interrupt_that_is_ignored_stays_ignored(directory):
    """A shell starts background jobs so, and nohup."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "cudassert_ipy", "explain", "--json"],
        stdin=read,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    os.close(read)
    os.write(write, LOG)
    process.send_signal(signal.SIGINT)
    os.close(write)

    assert b"device_assert" in process.communicate(timeout=60)[0]
    assert process.returncode == 0
