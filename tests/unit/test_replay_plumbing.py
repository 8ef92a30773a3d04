"""What keeps parent and child apart: descriptors, shared memory, random states, memory limits."""

import os
import random
import subprocess
import sys
import textwrap

import pytest

from cudassert_ipy.replay import memory
from cudassert_ipy.replay.rng import RandomState


def in_child(body, tmp_path):
    """Run ``body`` as a script of its own and return what it printed."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(body), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_reading_in_the_child_does_not_move_the_parents_file(tmp_path):
    """A file open for reading goes on at its own place in both, also after its name is gone."""
    (tmp_path / "data").write_text("0123456789")
    assert in_child(
        """
        import os
        from cudassert_ipy.replay import descriptors
        fd = os.open("data", os.O_RDONLY)
        os.unlink("data")
        os.read(fd, 3)
        r, w = os.pipe()
        if os.fork() == 0:
            descriptors.isolate({w})
            os.write(w, os.read(fd, 4))
            os._exit(0)
        os.wait()
        print(os.read(r, 10).decode(), os.read(fd, 2).decode())
        """,
        tmp_path,
    ) == ["3456", "34"]


def test_writing_in_the_child_does_not_reach_the_file(tmp_path):
    """What a replay writes to a file that was open goes nowhere."""
    assert in_child(
        """
        import os
        from pathlib import Path
        from cudassert_ipy.replay import descriptors
        log, both = open("log", "a"), open("both", "w+")
        both.write("kept"); both.flush(); both.seek(0)
        r, w = os.pipe()
        if os.fork() == 0:
            descriptors.isolate({w})
            log.write("no"); log.flush()
            read = both.read()
            try:
                both.write("no"); both.flush()
            except OSError as error:
                read += error.strerror[:3]
            os.write(w, read.encode())
            os._exit(0)
        os.wait()
        sizes = Path("log").stat().st_size, Path("both").read_text()
        print(os.read(r, 9).decode(), *sizes, both.tell())
        """,
        tmp_path,
    ) == ["keptBad", "0", "kept", "0"]


def test_pipes_and_sockets_are_out_of_reach_and_keep_their_number(tmp_path):
    """Using an inherited pipe or socket fails with EBADF and a new file never takes its number."""
    assert in_child(
        """
        import os, socket
        from cudassert_ipy.replay import descriptors
        a, b = socket.socketpair()
        r, w = os.pipe()
        os.write(w, b"theirs")
        result_r, result_w = os.pipe()
        if os.fork() == 0:
            descriptors.isolate({result_w})
            said = []
            for use in (lambda: a.send(b"x"), lambda: os.read(r, 1), lambda: os.write(w, b"x")):
                try:
                    use(); said.append("worked")
                except OSError as error:
                    said.append(str(error.errno))
            taken = (a.fileno(), b.fileno(), r, w)
            said.append(str(os.open("/dev/null", os.O_RDONLY) not in taken))
            os.write(result_w, " ".join(said).encode())
            os._exit(0)
        os.wait()
        b.setblocking(False)
        try:
            b.recv(1); print("leaked")
        except BlockingIOError:
            pass
        print(os.read(result_r, 99).decode(), os.read(r, 9).decode())
        """,
        tmp_path,
    ) == ["9", "9", "9", "True", "theirs"]


def test_shared_memory_is_private_in_the_child(tmp_path):
    """Writes of the child to a memmap, a shared tensor or a multiprocessing value stay in it."""
    assert in_child(
        """
        import mmap, multiprocessing, os
        import numpy as np, torch
        from cudassert_ipy.replay import sharing
        memmap = np.memmap("array", dtype="int64", mode="w+", shape=(1000,)); memmap[:] = 7
        tensor = torch.arange(5000).share_memory_()
        value = multiprocessing.Value("i", 5)
        anonymous = mmap.mmap(-1, 4096)
        r, w = os.pipe()
        if os.fork() == 0:
            size = sharing.make_private(1 << 30)
            same = memmap[3] == 7 and tensor[4999] == 4999 and value.value == 5
            memmap[:] = 0; tensor.zero_(); value.value = 0; anonymous[:3] = b"no!"
            os.write(w, f"{bool(same)} {size >= 48000}".encode())
            os._exit(0)
        os.wait()
        print(os.read(r, 99).decode(), memmap.min(), tensor.sum().item(), value.value, anonymous[0])
        """,
        tmp_path,
    ) == ["True", "True", "7", "12497500", "5", "0"]


def test_too_much_shared_memory_is_refused(tmp_path):
    """Shared memory without a name is not copied beyond the limit."""
    assert in_child(
        """
        import mmap
        from cudassert_ipy.replay import sharing
        keep = mmap.mmap(-1, 1 << 20)
        try:
            sharing.make_private(1 << 19)
        except sharing.TooMuchSharedMemoryError as error:
            print(error)
        """,
        tmp_path,
    ) == ["1048576", "bytes"]


def test_memory_limit_stops_the_cell_and_not_the_machine(tmp_path):
    """An allocation beyond the limit raises, one within it works, and the child would die first."""
    assert in_child(
        """
        import torch
        from cudassert_ipy.replay import memory
        memory.limit_child(1 << 28)
        torch.zeros(1 << 26, dtype=torch.uint8)
        try:
            torch.zeros(1 << 29, dtype=torch.uint8); print("no limit")
        except RuntimeError as error:
            print("allocate" in str(error), open("/proc/self/oom_score_adj").read())
        """,
        tmp_path,
    ) == ["True", "1000"]


def test_random_state_comes_back_through_json():
    """Python, NumPy and torch draw the same numbers again after a restore from JSON data."""
    import json

    import numpy as np
    import torch

    def draw():
        return (
            random.random(),
            random.gauss(0, 1),
            np.random.randn(3).tolist(),
            torch.rand(3).tolist(),
        )

    random.gauss(0, 1), np.random.randn()  # leave half a pair behind in both
    state = RandomState.take()
    first = draw()
    RandomState.from_dict(json.loads(json.dumps(state.to_dict()))).restore()
    assert draw() == first
    assert draw() != first


@pytest.mark.parametrize(
    "data", [{}, {"python": 3}, {"python": [1, 2]}, {"python": [3, [], None], "numpy": 1}]
)
def test_a_broken_random_state_is_refused(data):
    """Data that is no random state raises ValueError."""
    with pytest.raises(ValueError):
        RandomState.from_dict(data)


def test_memory_is_refused_only_when_short():
    """A checkpoint is refused with both numbers when the copies do not fit, and else not."""
    assert memory.refusal() is None
    needed, free = memory.refusal(1 << 60)
    assert needed > 1 << 60 > free > 0
    assert memory.resident() > 10 * 2**20


def test_the_tightest_memory_cgroup_counts(tmp_path):
    """Head-room is the cgroup's limit less its use, without file pages to give back."""
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    args = (tmp_path / "memory.max", tmp_path / "memory.current", tmp_path / "memory.stat")
    assert memory._headroom(*args) == 400
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._headroom(*args) > 1 << 60
