"""What ``python -m cudassert_ipy explain`` may be given: pipes, packed, damaged and huge files."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cudassert_ipy import explain, messages
from cudassert_ipy.decode import document, gzip_file
from tests.unit.test_explain_cli import LINE, LOG, STREAM, notebook, run


def test_fifo_and_dev_stdin_are_read(tmp_path):
    """A process substitution and ``/dev/stdin`` are files like others."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(LOG,))
    writer.start()

    assert run(str(fifo)).returncode == 0
    writer.join()
    assert run("/dev/stdin", data=LOG).returncode == 0


def test_hostile_file_name_cannot_write_to_the_terminal(tmp_path):
    """Control characters and bytes that are no UTF-8 are not shown."""
    name = os.fsdecode(b"a\x1b[31m\xff.log")
    (tmp_path / name).write_bytes(LOG)

    for arguments in ([name, name], [name, "--json", name], ["--markdown", name, name]):
        result = run(*arguments, cwd=tmp_path)
        assert result.returncode == 0
        assert b"\x1b" not in result.stdout
        assert b"\\ud" not in result.stdout.lower()
    assert b"\x1b" not in run(name + "x", cwd=tmp_path).stderr


def test_packed_log_is_read(tmp_path):
    """gzip is unpacked on the way: several members, padding, a notebook or UTF-16 inside."""
    packed = gzip.compress(LOG[:50]) + gzip.compress(LOG[50:]) + bytes(512)

    for data in (
        packed,
        gzip.compress(notebook(STREAM)),
        gzip.compress(LOG.decode().encode("utf-16")),
    ):
        path = tmp_path / "a.gz"
        path.write_bytes(data)
        result = run(str(path))
        assert (result.returncode, result.stderr) == (0, b"")


def test_packed_log_that_ends_too_early_is_read_as_far_as_it_goes():
    """A killed job leaves such files; the reader is told."""
    filler = os.urandom(100_000).hex().encode()

    result = run(data=gzip.compress(LOG + filler)[:-9000])

    assert result.returncode == 0
    assert b"ends too early" in result.stderr


def test_damaged_packed_log_is_unusable():
    """What follows the damage cannot be known."""
    packed = bytearray(gzip.compress(LOG * 100))
    packed[40:60] = bytes(20)

    result = run(data=bytes(packed))

    assert result.returncode == 2
    assert b"damaged gzip" in result.stderr


@pytest.mark.parametrize("rest", [b"garbage", b"x", bytes(70_000) + b"\x1f\x00", b"\n" * 9])
def test_what_follows_a_packed_log_is_not_read(rest):
    """As ``gzip -d`` does it: the log is read, the rest is mentioned."""
    result = run(data=gzip.compress(LOG) + rest)

    assert (result.returncode, result.stderr.count(b"\n")) == (0, 1)
    assert b"gzip did not pack" in result.stderr


def test_notes_about_a_file_are_lines_of_their_own():
    """A packed file that ends in its header is also empty."""
    result = run(data=gzip.compress(b"")[:12])

    assert result.returncode == 1
    assert [line.partition(": ")[2] for line in result.stderr.decode().splitlines()] == [
        messages.CLI_CUT_OFF,
        messages.CLI_EMPTY,
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 1 << 20])
def test_packed_log_is_read_in_any_chunks(size):
    """Where a read ends does not matter: members, padding and what is no gzip are told apart."""
    packed = (
        gzip.compress(LOG) * 3 + bytes(9) + gzip.compress(b"") + gzip.compress(b"end") + b"\x1fy"
    )
    chunks = [packed[at : at + size] for at in range(0, len(packed), size)]
    notes = []

    assert b"".join(gzip_file.unpacked(chunks, notes)) == LOG * 3 + b"end"
    assert notes == [messages.CLI_NOT_PACKED_END]


def test_padding_takes_no_memory():
    """zlib would collect it; a tape may be padded with gigabytes."""
    member = gzip.compress(LOG)
    tracemalloc.start()
    try:
        found = gzip_file.unpacked([member, *([bytes(1 << 20)] * 50), member], [])
        assert b"".join(found) == LOG * 2
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_many_small_members_take_time_in_proportion():
    """100,000 files of one byte, packed and joined: zlib copies all that follows each."""
    packed = gzip.compress(b"x") * 100_000
    started = time.process_time()

    assert len(b"".join(gzip_file.unpacked([packed], []))) == 100_000
    assert time.process_time() - started < 5


def test_bomb_is_refused(monkeypatch, tmp_path, capsys):
    """What unpacks without end is not read without end."""
    from cudassert_ipy.__main__ import main

    monkeypatch.setattr(gzip_file, "MAX_UNPACKED", 200_000)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"a\n" * 1_000_000))

    assert main(["explain", str(path)]) == 2
    assert "unpacks to more" in capsys.readouterr().err


def test_terminal_as_input_is_said():
    """Somebody who gave no file learns why nothing happens; Ctrl-C leaves without a traceback."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cudassert_ipy", "explain"],
        stdin=theirs,
        stderr=subprocess.PIPE,
        # The tests themselves may run as a job in the background, which ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert b"Ctrl-D" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.stderr.close()
        os.close(ours)
        os.close(theirs)


def test_no_standard_input_is_unusable():
    """Under pythonw there is none."""
    program = (
        "import sys; sys.stdin = None;"
        "from cudassert_ipy.__main__ import main; sys.exit(main(['explain']))"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (result.returncode, result.stderr) == (
        2,
        "cannot explain standard input: there is no standard input\n",
    )


def test_pipe_that_does_not_block_is_waited_for():
    """Somebody else has set it so; a pause in the middle is not the end."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    with subprocess.Popen(
        [sys.executable, "-m", "cudassert_ipy", "explain", "--json"],
        stdin=read,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(read)
        for part in (b"", b"step 1\n", LOG[:99], LOG[99:]):
            os.write(write, part)
            time.sleep(0.3)
        os.close(write)
        assert json.loads(process.stdout.read())["kind"] == "device_assert"
        assert process.stderr.read() == b""


def test_file_without_a_name_is_called_so():
    """An empty shell variable in quotes."""
    result = run("")

    assert (result.returncode, result.stderr) == (2, b"cannot explain '': the name is empty\n")


def test_lack_of_memory_is_not_no_error_found(monkeypatch, capsys):
    """Status 1 would say that the log holds no CUDA error."""
    from cudassert_ipy.__main__ import main

    def read_document(*_, **__):
        raise MemoryError

    monkeypatch.setattr(document, "read_document", read_document)

    assert main(["explain", "/dev/null"]) == 2
    assert "not enough memory" in capsys.readouterr().err


@pytest.mark.parametrize("wrap", [lambda data: data, gzip.compress, lambda data: b"<html>" + data])
def test_memory_does_not_grow_with_the_log(tmp_path, wrap):
    """Logs, packed logs and pages are streamed: 60 MB take what 1 MB takes."""
    program = (
        "import pathlib, re, sys; from cudassert_ipy.__main__ import main; main(sys.argv[1:]);"
        "status = pathlib.Path('/proc/self/status').read_text();"  # ru_maxrss is that of pytest
        "sys.stderr.write(re.search(r'VmHWM:\\s*(\\d+)', status)[1])"
    )
    peaks = []
    for size in (1, 60):
        path = tmp_path / "a.log"
        path.write_bytes(wrap(f"{LINE}\n".encode() * (size * 1_000_000 // len(LINE))))
        result = subprocess.run(
            [sys.executable, "-c", program, "explain", str(path)], capture_output=True, text=True
        )
        assert "cross_entropy" in result.stdout
        peaks.append(int(result.stderr))

    assert peaks[1] - peaks[0] < 25_000  # kilobytes


BEGINNINGS = [
    b"",
    b"\x1f\x8b\x08",
    b"\xff\xfe",
    b"\x00\x00\xfe\xff",
    b'{"cells":',
    b"<html>",
    b"PK\x03\x04",
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(BEGINNINGS),
    st.binary(max_size=60) | st.just(LOG),
    st.sampled_from([bytes, gzip.compress]),
    st.sampled_from(["a", "a.ipynb", "a.html", "a.ipynb.gz"]),
)
@example(b"\xff\xfe", b"a", gzip.compress, "a")
def test_any_bytes_are_read_or_refused(beginning, data, wrap, name):
    """Whatever the file is, the only refusal is the one that says why."""
    try:
        failure = document.read_document(io.BytesIO(wrap(beginning + data)), name).failure
    except gzip_file.UnusableInput:
        return
    assert json.loads(json.dumps(failure.to_dict()))["version"] == 1


@pytest.mark.parametrize("other", [5, None, ["a"], RuntimeError("x"), io.StringIO("x")])
def test_what_is_no_text_is_a_type_error(other):
    """Python's own message would speak of something deep inside."""
    message = rf"explain\(\) takes str or bytes, not {type(other).__name__}$"

    with pytest.raises(TypeError, match=message):
        explain(other)
    assert explain(LOG) == explain(bytearray(LOG)) == explain(LOG.decode())
