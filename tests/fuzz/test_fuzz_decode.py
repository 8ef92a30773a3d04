"""Mutated logs: nothing raises, the JSON is valid, and chunking changes nothing.

``CUDASSERT_FUZZ=1000000`` (``make fuzz``) sets how many; hypothesis chooses the seeds and reports
the one that fails. The samples of every wording are what is mutated.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudassert_ipy.decode.document import UnusableInput, read_document
from cudassert_ipy.decode.failure import TextDecoder, decode_exception, decode_text
from cudassert_ipy.model import Failure
from cudassert_ipy.report.text import render_failure

EXAMPLES = int(os.environ.get("CUDASSERT_FUZZ", "20000"))
SAMPLES = Path(__file__).parents[1] / "samples"
SEEDS = [path.read_bytes() for path in sorted(SAMPLES.rglob("*.txt"))]
TOKENS = [
    *(
        b"`",
        b"'",
        b'"',
        b"\\",
        b"\\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b"\0",
        b"\x1b[31m",
        b"\x1b]0;",
    ),
    *(b"block: [", b"thread: [0,0,0]", b"Assertion `", b"` failed.", b" failed", b"]: "),
    *(b".cu:1: ", b"CUDA error: ", b"device-side assert triggered", b"out of memory"),
    *(b"RuntimeError: ", b"Traceback (most recent call last):\n", b'  File "a.py", line 1\n'),
    *(b"GPU assertion failure", b"\xff\xfe", b"\xe2\x94\x82", "\u201c\u202e\u2028".encode()),
    *(b"&lt;", b"\\u003c", b"<pre>", b"{", b"999999999999", b"-1", b"[rank7]:", b"7: "),
    *(b"(" * 200, b"[" * 200, b"a" * 5000, b" " * 3000),
]


def mutated(seed: int) -> bytes:
    """One to three samples, cut, spliced, wrapped, repeated and spoiled."""
    chance = random.Random(seed)
    data = bytearray(b"\n".join(chance.choices(SEEDS, k=chance.choice((1, 1, 1, 2, 3)))))
    for _ in range(chance.randrange(6)):
        start = chance.randrange(len(data) + 1)
        stop = min(len(data), start + chance.choice((1, 3, 20, 200)))
        match chance.randrange(7):
            case 0:
                del data[start:stop]
            case 1:
                data[start:start] = data[start:stop] * chance.choice((1, 2, 40))
            case 2:
                data[start:start] = chance.choice(TOKENS)
            case 3:
                data[start:stop] = chance.randbytes(stop - start)
            case 4:
                data[start:stop] = chance.choice(TOKENS)
            case 5:
                width = chance.randrange(5, 120)
                data = bytearray(
                    b"\n".join(data[at : at + width] for at in range(0, len(data), width))
                )
            case _:
                del data[start:]
    return bytes(data)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**63))
def test_mutated_logs_give_a_valid_failure(seed):
    """Whatever a log holds, it gives one failure that survives JSON and can be printed."""
    data = mutated(seed)
    failure = decode_text(data)

    text = json.dumps(failure.to_dict(), allow_nan=False)
    assert Failure.from_dict(json.loads(text)) == failure
    if seed % 8 == 0:
        decoder = TextDecoder()
        step = 1 + seed % 97
        for start in range(0, len(data), step):
            decoder.feed(data[start : start + step])
        assert decoder.close() == failure
    if seed % 16 == 1:
        message = data.decode("utf-8", "replace")
        decode_exception(RuntimeError(message), data).to_dict()
        assert render_failure(failure)
    if seed % 16 == 2:
        cells = [{"outputs": [{"text": data.decode("latin-1")}]}]
        notebook = json.dumps({"cells": cells, "nbformat": 4}).encode()
        for content, name in ((notebook, "a.ipynb"), (b"<pre>" + data, "a.html"), (data, "a.gz")):
            with contextlib.suppress(UnusableInput):
                read_document(io.BytesIO(content), name)
