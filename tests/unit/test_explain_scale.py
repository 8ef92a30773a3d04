"""A log of 150 MB with a million assertion lines: one pass, little memory."""

from __future__ import annotations

import subprocess
import sys
import threading

from cudassert_ipy.decode.catalog import catalog

LIMIT = 150 * 1024  # kilobytes
PEAK = "import resource, sys; sys.stderr.write(str(resource.getrusage(0).ru_maxrss))"
EXPLAIN = f"import cudassert_ipy.__main__ as m; m.main(['explain', '-']); {PEAK}"


def run(code, pieces=()):
    """Return what ``code`` prints, and the peak of its memory in kilobytes."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def write():
        for piece in pieces:
            process.stdin.write(piece)
        process.stdin.close()

    writer = threading.Thread(target=write)
    writer.start()
    printed, peak = process.stdout.read(), process.stderr.read()
    writer.join()
    process.wait()
    return printed.decode(), int(peak)


def test_a_million_lines_take_one_pass_and_little_memory():
    """The log is streamed: peak memory stays within 150 MB of an empty interpreter's."""
    row = catalog().by_key("embedding")
    lines = [row.render((number, 0, 0), (number % 128, 0, 0)) + "\n" for number in range(10_000)]
    piece = "".join(lines).encode()

    printed, peak = run(EXPLAIN, [piece] * 100)

    assert len(piece) * 100 > 150e6
    assert "1,000,000" in printed
    assert peak - run(PEAK)[1] < LIMIT


def test_different_lines_without_end_take_little_memory_too():
    """Lines that never repeat are not all remembered."""
    row = catalog().by_key("embedding")
    line = row.render((0, 0, 0), (0, 0, 0))

    pieces = (
        "".join(f"{part}x{number} {line}\n" for number in range(1_000)).encode()
        for part in range(40)
    )
    _printed, peak = run(EXPLAIN, pieces)

    assert peak - run(PEAK)[1] < LIMIT
