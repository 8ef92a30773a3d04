"""``explain.vs_scan``: decoding a log over a plain Python loop that tests each line for a word.

The log has a million lines: a flood of one kernel, then one of eight ranks by turns, and among both
a progress bar every twenty lines. Both read the same file, by turns.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

GOAL = 6.0
LINES = 1_000_000
ROUNDS = 5
_CHUNK = 1 << 20
_EVERY = 20
_RANKS = 8
_BAR = " 45%|####5     | {number}/{lines} [02:23<01:48, 7.38it/s]\r"


def measure() -> float:
    """Return the ratio of the medians."""
    with TemporaryDirectory() as directory:
        log = Path(directory) / "train.log"
        _write(log)
        ours: list[float] = []
        plain: list[float] = []
        for turn in range(ROUNDS):
            pair = [(_explain, ours), (_scan, plain)]
            for run, seconds in pair if turn % 2 else reversed(pair):
                start = time.perf_counter()
                run(log)
                seconds.append(time.perf_counter() - start)
    return median(ours) / median(plain)


def _write(log: Path) -> None:
    from cudassert_ipy.decode.catalog import catalog

    row = catalog().by_key("embedding")
    with log.open("w", encoding="utf-8", newline="") as stream:
        for number in range(LINES):
            if number % _EVERY == 0:
                stream.write(_BAR.format(number=number, lines=LINES))
                continue
            line = row.render((number // 128, 0, 0), (number % 128, 0, 0))
            rank = "" if number < LINES // 2 else f"[rank{number % _RANKS}]: "
            stream.write(f"{rank}{line}\n")


def _explain(log: Path) -> None:
    from cudassert_ipy.decode.failure import TextDecoder

    decoder = TextDecoder()
    with log.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            decoder.feed(chunk)
    failure = decoder.close()
    if sum(item.count for item in failure.assertions) != LINES - LINES // _EVERY:
        msg = "lines were lost"
        raise RuntimeError(msg)


def _scan(log: Path) -> int:
    found = 0
    with log.open(encoding="utf-8") as stream:
        for line in stream:
            if "Assertion" in line:
                found += 1
    return found
