"""The events of a replay: what is sent arrives, what is hostile does not."""

import json

import pytest

from cudassert_ipy.model import Finding, TensorRow
from cudassert_ipy.replay.protocol import (
    EVENT_LIMIT,
    LINE_LIMIT,
    Done,
    EventDecoder,
    Found,
    Progress,
    Remark,
    ReplayRequest,
    Row,
    encode,
)

EVENTS = [
    Progress(label="Replaying", seconds=0.25),
    Found(
        finding=Finding(
            operation="embedding", aten="aten::embedding", operand="input", maximum=float("nan")
        )
    ),
    Row(row=TensorRow(name='batch["ids"]', role="index", operation="embedding", shape=(4, 8))),
    Remark(text="index out of range in self"),
    Done(outcome="raised", exception="IndexError: x", seconds=1.5, substituted=2, note="π \u202e"),
]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_events_arrive_whole_whatever_the_chunks(size):
    """Every event is read back as it was sent, in chunks of any size."""
    data = b"".join(encode(event) for event in EVENTS)
    decoder = EventDecoder()
    got = [event for i in range(0, len(data), size) for event in decoder.feed(data[i : i + size])]
    assert repr(got) == repr(EVENTS)
    assert decoder.rejected == 0


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"event": "output", "text": "x"}',
        b'{"event": "done", "outcome": "fine"}',
        b'{"event": "done"}',
        b'{"event": "progress", "label": "x", "seconds": NaN}',
        b'{"event": ["done"]}',
        b'{"event": {"a": 1}}',
        b"[1, 2]",
        b'{"event": "progress", "label": "x", "seconds": ' + b"9" * 10_000 + b"}",
        b"x" * (LINE_LIMIT + 5),
    ],
)
def test_a_hostile_line_is_dropped_and_the_next_one_read(line):
    """A line that is no event is counted and dropped; the event after it is still read."""
    decoder = EventDecoder()
    assert decoder.feed(line + b"\n" + encode(EVENTS[0])) == [EVENTS[0]]
    assert decoder.rejected == 1


def test_a_line_without_end_takes_no_memory():
    """A line that never ends is not collected."""
    decoder = EventDecoder()
    for _ in range(40):
        assert decoder.feed(b"x" * 65536) == []
    assert len(decoder._pending) <= LINE_LIMIT
    assert decoder.feed(b"\n" + encode(EVENTS[0])) == [EVENTS[0]]


def test_a_flood_of_events_is_cut_but_the_last_word_is_heard():
    """Beyond the limit events are dropped, except the child's last word."""
    decoder = EventDecoder()
    data = encode(EVENTS[0])
    got = sum(len(decoder.feed(data * 1000)) for _ in range(EVENT_LIMIT // 1000 + 3))
    assert got == EVENT_LIMIT
    assert decoder.feed(encode(EVENTS[-1])) == [EVENTS[-1]]


def test_a_long_text_is_cut_when_sent():
    """A source line of a megabyte does not make the event too long to arrive."""
    finding = Finding(operation="o", aten="a", operand="i", source="x" * 1_000_000)
    (got,) = EventDecoder().feed(encode(Found(finding=finding)))
    assert got.finding.source == "x" * 4000


def test_request_comes_back_as_sent():
    """Source with any characters, time-out and random state survive the way to the child."""
    request = ReplayRequest(
        source="x = '\n\u2028é'\n", state="after_failure", timeout=3.5, rng={"a": [1]}
    )
    line = request.line()
    assert line.count(b"\n") == 1
    assert ReplayRequest.from_line(line) == request
    with pytest.raises(ValueError):
        ReplayRequest.from_line(json.dumps({"state": "other", "source": ""}).encode())
