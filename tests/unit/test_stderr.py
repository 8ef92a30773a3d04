from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from cudassert_ipy.notebook.stderr import FdCapture, FloodFilter

LINE = b"/pytorch/a.cu:1: f: block: [%d,0,0], thread: [%d,0,0] Assertion `i < n` failed."


def flood(count: int) -> bytes:
    return b"".join(LINE % (i, i) + b"\n" for i in range(count))


def test_flood_is_shown_as_three_lines_and_a_count():
    """A flood of one assertion is three lines and the number of the others."""
    f = FloodFilter()
    shown = f.feed(flood(100)) + f.feed(b"after\n")
    assert shown.count(b"Assertion") == 3
    assert b"97" in shown
    assert shown.endswith(b"after\n")


@pytest.mark.parametrize("step", [1, 7, 64, 1000])
def test_chunking_does_not_change_what_is_shown(step):
    """The same bytes in other chunks show the same text."""
    data = b"bar 10%\rbar 20%" + b"\n" + flood(20) + b"x\n" + flood(2) + b"end without newline"
    f = FloodFilter()
    out = b"".join(f.feed(data[i : i + step]) for i in range(0, len(data), step)) + f.flush()
    whole = FloodFilter()
    assert out == whole.feed(data) + whole.flush()


def test_progress_bar_is_passed_on_at_once():
    """A partial line that is no assertion is not held back."""
    assert FloodFilter().feed(b"\r 10%|##") == b"\r 10%|##"


def run(code: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, timeout=60, check=False
    )


def test_capture_keeps_forwards_and_gives_back():
    """Text on fd 2 is kept and forwarded; after stop the descriptor and the disk are as before."""
    done = run("""
        import os, sys
        from cudassert_ipy.notebook.stderr import FdCapture
        before = os.fstat(2).st_ino, sorted(os.listdir("/proc/self/fd"))
        c = FdCapture(2); c.start(); path = c.path
        assert os.stat(path).st_mode & 0o777 == 0o600
        os.write(2, b"one\\n"); c.begin_cell(); os.write(2, b"two\\n")
        assert c.cell_text() == b"two\\n", c.cell_text()
        c.stop()
        os.write(2, b"three\\n")
        assert not os.path.exists(path)
        assert before == (os.fstat(2).st_ino, sorted(os.listdir("/proc/self/fd")))
    """)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"one\ntwo\nthree\n"


def test_a_flood_with_the_gil_held_does_not_hang():
    """40 MB written by C code that holds the GIL pass, and no byte of other text is lost."""
    done = run("""
        import ctypes, os
        from cudassert_ipy.notebook.stderr import Captures
        libc = ctypes.PyDLL(None)   # PyDLL: the GIL stays held
        c = Captures((2,)); c.start(); c.begin_cell()
        line = b"/a.cu:1: f: block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed.\\n"
        data = line * (1 << 16)
        for _ in range(8):
            assert libc.write(2, data, len(data)) == len(data)
        os.write(2, b"end\\n")
        c.stop()
    """)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"Assertion") == 3
    assert done.stderr.endswith(b"end\n")


def test_between_cells_a_large_file_is_emptied():
    """The file does not grow with the session."""
    done = run("""
        import os
        from cudassert_ipy.notebook.stderr import FdCapture, TRUNCATE_ABOVE
        c = FdCapture(2); c.start()
        os.write(2, b"x" * (TRUNCATE_ABOVE + 1) + b"\\n"); c.begin_cell()
        assert os.stat(c.path).st_size == 0
        os.write(2, b"y\\n"); assert c.cell_text() == b"y\\n"
        c.stop()
    """)
    assert done.returncode == 0, done.stderr


def test_start_twice_is_harmless():
    """Starting an active capture does nothing."""
    c = FdCapture(2)
    c.start()
    try:
        file = c.path
        c.start()
        assert c.path == file
    finally:
        c.stop()
    assert os.get_inheritable(2)


def test_a_descriptor_that_the_user_redirected_stays_theirs(tmp_path):
    """Stopping gives back only a descriptor that still is ours."""
    target = tmp_path / "theirs.txt"
    done = run(f"""
        import os
        from cudassert_ipy.notebook.stderr import FdCapture
        c = FdCapture(2); c.start()
        os.write(2, b"before\\n")
        os.dup2(os.open({str(target)!r}, os.O_WRONLY | os.O_CREAT), 2)
        c.stop()
        os.write(2, b"after\\n")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"before\n"
    assert target.read_bytes() == b"after\n"


def test_space_is_reserved_for_what_cuda_prints():
    """The file owns disk blocks before anything is written, so that a full disk loses nothing."""
    done = run("""
        import os
        from cudassert_ipy.notebook.stderr import RESERVED, FdCapture
        c = FdCapture(2); c.start(); c.reserve()
        status = os.stat(c.path)
        print(status.st_size, status.st_blocks * 512 >= RESERVED)
        c.stop()
    """)
    size, reserved = done.stdout.split()
    assert size == b"0"
    if reserved != b"True":
        pytest.skip("this file system cannot reserve space")
