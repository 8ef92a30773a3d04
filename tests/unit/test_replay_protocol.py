"""The events of a replay: what is sent arrives, what is hostile does not."""

import json

import pytest

from cudassert_ipy.model import Finding, TensorRow
from cudassert_ipy.replay.protocol import (
    EVENT_LIMIT,
    FOUND_LIMIT,
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

TOKEN = "5f"


def sent(event):
    return encode(event, TOKEN)


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
    data = b"".join(sent(event) for event in EVENTS)
    decoder = EventDecoder(TOKEN)
    got = [event for i in range(0, len(data), size) for event in decoder.feed(data[i : i + size])]
    assert repr(got) == repr(EVENTS)
    assert decoder.rejected == 0


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"token": "5f", "event": "output", "text": "x"}',
        b'{"token": "5f", "event": "done", "outcome": "fine"}',
        b'{"token": "5f", "event": "done"}',
        b'{"token": "5f", "event": "progress", "label": "x", "seconds": NaN}',
        b'{"token": "5f", "event": "progress", "label": "x", "seconds": 1e999}',
        b'{"token": "5f", "event": "done", "outcome": "clean", "seconds": ' + b"9" * 400 + b"}",
        b'{"event": "done", "outcome": "clean"}',
        b'{"token": "other", "event": "done", "outcome": "clean"}',
        b'{"token": ["5f"], "event": "done", "outcome": "clean"}',
        b'{"token": "5f", "event": ["done"]}',
        b'{"token": "5f", "event": {"a": 1}}',
        b"[1, 2]",
        b'{"token": "5f", "event": "progress", "label": "x", "seconds": ' + b"9" * 10_000 + b"}",
        b"x" * (LINE_LIMIT + 5),
    ],
)
def test_a_hostile_line_is_dropped_and_the_next_one_read(line):
    """A line that is no event is counted and dropped; the event after it is still read."""
    decoder = EventDecoder(TOKEN)
    assert decoder.feed(line + b"\n" + sent(EVENTS[0])) == [EVENTS[0]]
    assert decoder.rejected == 1


def test_a_line_without_end_takes_no_memory():
    """A line that never ends is not collected."""
    decoder = EventDecoder(TOKEN)
    for _ in range(40):
        assert decoder.feed(b"x" * 65536) == []
    assert len(decoder._pending) <= LINE_LIMIT
    assert decoder.feed(b"\n" + sent(EVENTS[0])) == [EVENTS[0]]


def test_a_flood_of_events_is_cut_but_the_last_word_is_heard():
    """Beyond the limit events are dropped, except the child's last word."""
    decoder = EventDecoder(TOKEN)
    data = sent(EVENTS[0])
    got = sum(len(decoder.feed(data * 1000)) for _ in range(EVENT_LIMIT // 1000 + 3))
    assert got == EVENT_LIMIT
    assert decoder.feed(sent(EVENTS[-1])) == [EVENTS[-1]]


def test_a_long_text_is_cut_when_sent():
    """A source line of a megabyte does not make the event too long to arrive."""
    finding = Finding(operation="o", aten="a", operand="i", source="x" * 1_000_000)
    (got,) = EventDecoder(TOKEN).feed(sent(Found(finding=finding)))
    assert got.finding.source == "x" * 4000


def test_a_long_text_is_cut_when_read():
    """A name, a text or a list beyond the limit is cut also where the sender did not cut it."""
    row = {"name": "x" * 200_000, "role": "index", "operation": "o", "shape": [1] * 5000}
    lines = [{"event": "row", "row": row}, {"event": "remark", "text": "y" * 200_000}]
    data = b"".join(json.dumps({"token": TOKEN, **line}).encode() + b"\n" for line in lines)
    got, remark = EventDecoder(TOKEN).feed(data)
    assert (got.row.name, len(got.row.shape)) == ("x" * 4000, 1000)
    assert remark.text == "y" * 4000


@pytest.mark.parametrize(
    "event",
    [
        Remark(text="a\ud800b"),
        Done(outcome="clean", exception="a\ud800b", note="a\ud800b"),
        Found(finding=Finding(operation="a\ud800b", aten="a", operand="a\udfffb")),
        Row(row=TensorRow(name="a\ud800b", role="index", operation="o")),
    ],
)
def test_what_no_terminal_can_take_is_replaced(event):
    """Half of a surrogate pair, from whoever wrote the line, never reaches the parent."""
    own = json.dumps({**json.loads(sent(event)), **event.to_dict()}).encode()
    for line in (sent(event), own + b"\n"):
        (got,) = EventDecoder(TOKEN).feed(line)
        repr(got).encode("utf-8")
        assert "a?b" in repr(got)
        assert "\\ud" not in repr(got)


def test_a_pair_of_surrogates_is_one_character():
    """Characters beyond the basic plane arrive as they are."""
    assert EventDecoder(TOKEN).feed(sent(Remark(text="😀"))) == [Remark(text="😀")]


def test_a_flood_does_not_take_the_room_of_a_finding():
    """Findings are heard after any flood of other events, and are bounded themselves."""
    decoder = EventDecoder(TOKEN)
    decoder.feed(sent(EVENTS[0]) * (EVENT_LIMIT + 5))
    got = decoder.feed(sent(EVENTS[1]) * (FOUND_LIMIT + 5))
    assert {type(event) for event in got} == {Found}
    assert len(got) == FOUND_LIMIT


def test_half_a_line_of_somebody_does_not_spoil_the_next():
    """What the cell left on the pipe without a line feed is not taken for the start of an event."""
    decoder = EventDecoder(TOKEN)
    assert decoder.feed(b'{"event": ' + sent(EVENTS[0])) == [EVENTS[0]]
    assert decoder.rejected == 1


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
