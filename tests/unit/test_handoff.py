"""The handoff file: what is refused, and that nothing of a refused file is used."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from cudassert_ipy.restart import handoff as module
from cudassert_ipy.restart.handoff import (
    MAX_BYTES,
    MAX_SOURCE,
    Handoff,
    HandoffError,
    RecordedCell,
    read,
    read_pending,
    write,
    write_pending,
)

CELLS = (
    RecordedCell(source="x = 1\n", execution_count=3, seconds=0.5, cell_id="a"),
    RecordedCell(source="print('é\u2028')", execution_count=4),
)


@pytest.fixture
def directory(tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    return runtime


def refused(path, words):
    with pytest.raises(HandoffError) as caught:
        read(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def change(path, **values):
    """Rewrite a handoff with other values, all else valid."""
    content = json.loads(path.read_bytes())
    content.update(values)
    path.write_text(json.dumps(content))


def test_what_was_written_comes_back(directory):
    """A handoff survives the file whole, and the file is gone afterwards."""
    given = Handoff(
        cells=CELLS,
        failing=CELLS[0],
        diagnosis={"context": "dead"},
        parent={"header": {"msg_id": "m"}},
        idents=("00ff",),
        inputs=("", "x"),
        extra={"settings": [1]},
        replay=True,
    )
    path = write(given, directory)
    got = read(path)
    assert got == replace(given, pid=got.pid, start_time=got.start_time, created=got.created)
    assert got.pid == os.getpid()
    assert list(directory.iterdir()) == []


def test_file_is_private_and_its_name_random(directory):
    """Nobody else can read the file, whatever the umask, and its name cannot be guessed."""
    before = os.umask(0)
    try:
        paths = [write(Handoff(), directory) for _ in range(2)]
    finally:
        os.umask(before)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    assert paths[0].name != paths[1].name
    assert len(paths[0].stem) > 32


@pytest.mark.parametrize("kind", ["link", "file"])
def test_existing_file_is_never_written_into(directory, monkeypatch, kind):
    """A file or link that lies under the chosen name is not followed or overwritten."""
    monkeypatch.setattr(module.secrets, "token_hex", lambda _: "guessed")
    taken = directory / "cudassert-guessed.json"
    victim = directory / "victim" if kind == "link" else taken
    victim.write_text("kept")
    if kind == "link":
        taken.symlink_to(victim)
    with pytest.raises(HandoffError):
        write(Handoff(), directory)
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o777, 0o1777])
def test_directory_that_others_can_write_to(directory, mode):
    """A shared directory is refused for writing and for reading."""
    path = write(Handoff(), directory)
    directory.chmod(mode)
    with pytest.raises(HandoffError, match="other users can write"):
        write(Handoff(), directory)
    refused(path, "other users can write")


def test_directory_that_is_missing(directory):
    """A missing directory is said to be one."""
    with pytest.raises(HandoffError, match="cannot be opened"):
        write(Handoff(), directory / "none")


def test_missing_file(directory):
    """A missing file is said to be missing."""
    refused(directory / "cudassert-none.json", "missing")


def test_link_is_not_followed(directory, tmp_path):
    """A symbolic link is refused, and what it points to stays."""
    path = write(Handoff(), directory)
    real = tmp_path / "elsewhere.json"
    path.rename(real)
    path.symlink_to(real)
    refused(path, "cannot be read")
    assert real.exists()


def test_fifo_does_not_hang(directory):
    """A FIFO under the name is refused at once."""
    path = directory / "cudassert-fifo.json"
    os.mkfifo(path, 0o600)
    started = time.monotonic()
    refused(path, "not a regular file")
    assert time.monotonic() - started < 1


def test_directory_under_the_name(directory):
    """A directory under the name is refused."""
    path = directory / "cudassert-d.json"
    path.mkdir()
    refused(path, "not a regular file")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_file_that_others_can_touch(directory, mode):
    """A file that others can read or write is refused."""
    path = write(Handoff(), directory)
    path.chmod(mode)
    refused(path, "other users")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user(directory):
    """A file that belongs to another user is refused and not removed."""
    path = write(Handoff(), directory)
    os.chown(path, 12345, -1)
    refused(path, "other users own it")
    assert path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_directory_of_another_user(directory):
    """A directory that belongs to another user is refused."""
    path = write(Handoff(), directory)
    os.chown(directory, 12345, -1)
    refused(path, "other users can write")


def test_too_large(directory):
    """A file beyond the size limit is refused without being parsed."""
    path = write(Handoff(), directory)
    with path.open("ab") as file:
        file.write(b" " * MAX_BYTES)
    refused(path, "too large")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\x80\x04\x95cposix\nsystem\n",
        b"[" * 200_000,
        b'{"version": 1, "pid": "x"}',
        b'{"version": "1"}',
        b"\xff\xfe",
    ],
)
def test_damaged_content(directory, data):
    """Half-written, foreign or deeply nested content is refused with one line."""
    path = write(Handoff(), directory)
    path.write_bytes(data)
    refused(path, "damaged")
    assert not path.exists()


def test_other_version(directory):
    """A handoff of another layout is refused as such, even if it would not parse here."""
    path = write(Handoff(), directory)
    change(path, version=2, cells="something new")
    refused(path, "another version")


def test_other_process(directory):
    """A handoff of another pid is refused."""
    path = write(Handoff(), directory)
    change(path, pid=os.getpid() + 1)
    refused(path, "another process")


def test_earlier_process_with_this_pid(directory):
    """A handoff of a process that had our pid before us is refused by its start time."""
    path = write(Handoff(), directory)
    change(path, start_time=1)
    refused(path, "another process")


def test_handoff_really_written_by_another_process(directory):
    """A handoff that a child of ours wrote is refused."""
    code = (
        "from cudassert_ipy.restart.handoff import *; from pathlib import Path\n"
        f"print(write(Handoff(), Path({str(directory)!r})))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refused(directory / shown.stdout.strip().rpartition("/")[2], "another process")


@pytest.mark.parametrize("seconds", [-61, 61, float("1e12")])
def test_age(directory, seconds):
    """A handoff older than a minute, or from the future, is refused."""
    path = write(Handoff(), directory)
    change(path, created=time.time() + seconds)
    refused(path, "too old")


def test_used_once(directory):
    """The second reading finds nothing: the file is removed before it is used."""
    path = write(Handoff(), directory)
    read(path)
    refused(path, "missing")


def test_long_cell_is_refused_and_not_cut(directory):
    """A cell that the data model would cut is refused on both sides, never run in part."""
    long = RecordedCell(source="#" * (MAX_SOURCE + 1), execution_count=5)
    with pytest.raises(HandoffError, match=r"cell \[5\] is too long"):
        write(Handoff(cells=(long,)), directory)
    assert list(directory.iterdir()) == []
    path = write(Handoff(), directory)
    change(path, cells=[{"source": "#" * 1_000_000}])
    refused(path, "too long")


def test_exec_keeps_pid_and_start_time(directory):
    """A process that replaces itself may read what it wrote; that is what the checks rest on."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from cudassert_ipy.restart.handoff import *\n"
        "if len(sys.argv) > 2: print(read(Path(sys.argv[2])).cells[0].source)\n"
        "else:\n"
        "    path = write(Handoff(cells=(RecordedCell(source='it was me'),)), Path(sys.argv[1]))\n"
        "    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], str(path)])\n"
    )
    command = [sys.executable, "-c", code, str(directory)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == "it was me\n"


def test_pending_handoff_waits_for_its_kernel(directory):
    """A handoff for a restart by hand is found by the connection file, once, by any process."""
    assert read_pending(directory, "kernel-1.json") is None
    write_pending(Handoff(cells=CELLS[:1]), directory, "/run/kernel-1.json")
    path = write_pending(Handoff(cells=CELLS), directory, "/run/kernel-1.json")
    change(path, pid=1, start_time=1)
    assert read_pending(directory, "kernel-2.json") is None
    found = read_pending(directory, "kernel-1.json")
    assert found is not None
    assert found.cells == CELLS
    assert list(directory.iterdir()) == []


def test_pending_handoff_is_checked_too(directory):
    """One that was put under another kernel's name, is old or is a link is refused."""
    path = write_pending(Handoff(), directory, "kernel-1.json")
    path.rename(module.pending_path(directory, "kernel-2.json"))
    with pytest.raises(HandoffError, match="another process"):
        read_pending(directory, "kernel-2.json")
    path = write_pending(Handoff(), directory, "kernel-1.json")
    change(path, created=time.time() - 3600)
    with pytest.raises(HandoffError, match="too old"):
        read_pending(directory, "kernel-1.json")
    path.symlink_to(directory / "dangling")
    with pytest.raises(HandoffError, match="cannot be read"):
        read_pending(directory, "kernel-1.json")


def test_holds_no_environment_values(directory, monkeypatch):
    """No value of an environment variable reaches the file."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2-hunter2")
    path = write(Handoff(cells=CELLS, cwd="/tmp"), directory)
    assert b"hunter2" not in path.read_bytes()
