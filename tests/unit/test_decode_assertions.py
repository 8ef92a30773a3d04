"""The grammar of assertion lines: every wording in tests/samples/asserts, streaming, bounds."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudassert_ipy.decode.assertions import AssertionParser
from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.decode.failure import TextDecoder, decode_text
from cudassert_ipy.decode.groups import MAX_GROUPS, MAX_RANKED, MAX_UNPROVEN
from cudassert_ipy.decode.lines import MAX_LINE, LineSplitter
from cudassert_ipy.model import Failure

SAMPLES = Path(__file__).parents[1] / "samples" / "asserts"
TEXTS = sorted(SAMPLES.glob("*.txt"))
LINE = catalog().by_key("nll_loss").render((0, 0, 0), (7, 0, 0)).encode() + b"\n"

ASSERT = "device-side assert triggered"


def parse(data: bytes):
    parser = AssertionParser()
    parser.feed(data)
    return parser.close()


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_sample_is_decoded_as_written_beside_it(path):
    """Each sample gives the failure in the .json file of the same name (advice is left out)."""
    expected = json.loads(path.with_suffix(".json").read_text("utf-8"))

    decoded = decode_text(path.read_bytes()).to_dict()

    del decoded["advice"]
    assert decoded == expected


def test_every_row_of_the_catalog_has_a_sample():
    """A row that no sample shows is a row that nobody has tried."""
    shown = set()
    for path in TEXTS:
        for item in decode_text(path.read_bytes()).assertions:
            row = catalog().find(item.expression, item.file, item.function)
            shown.add(row.key if row else None)

    assert {row.key for row in catalog().rows} <= shown


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_bytes_one_by_one_give_the_same_failure(path):
    """Chunks of one byte give what one chunk gives."""
    data = path.read_bytes()
    decoder = TextDecoder()
    for index in range(len(data)):
        decoder.feed(data[index : index + 1])

    assert decoder.close() == decode_text(data)


def test_flood_is_one_assertion_with_a_count():
    """A million failing threads are one assertion; the first thread is kept."""
    parser = AssertionParser()
    row = catalog().by_key("index")
    for thread in range(5000):
        parser.feed(row.render((3, 0, 0), (thread, 0, 0)).encode() + b"\n")

    (assertion,) = parser.close()

    assert (assertion.count, assertion.block, assertion.thread) == (5000, (3, 0, 0), (0, 0, 0))


def test_different_lines_in_a_flood_keep_their_own_counts():
    """Recognizing repeated lines does not mix up two kernels that fail by turns."""
    rows = [catalog().by_key("index"), catalog().by_key("embedding")]
    lines = [rows[number % 3 == 0].render((0, 0, 0), (number, 0, 0)) for number in range(30)]

    assertions = parse("\n".join(lines).encode())

    assert [(item.function, item.count) for item in assertions] == [
        ("indexSelectSmallIndex", 10),
        ("operator()", 20),
    ]


def test_number_of_different_assertions_is_bounded():
    """A hostile log cannot make the parser keep more than a fixed number of groups."""
    data = b"".join(LINE.replace(b":245:", b":%d:" % number) for number in range(2 * MAX_GROUPS))

    assert len(parse(data)) == MAX_GROUPS


def seconds_to_split(size: int) -> float:
    line = b"x" * size
    times = []
    for _ in range(3):
        start = time.process_time()
        for _piece in LineSplitter().feed(line):
            pass
        times.append(time.process_time() - start)
    return min(times)


def test_one_long_line_takes_time_in_proportion_to_its_length():
    """Twice the length takes about twice the time: notebooks hold whole outputs in one line."""
    size = 24 * 2**20
    assert seconds_to_split(2 * size) < 3 * seconds_to_split(size)


def test_no_assertion_is_lost_on_a_line_that_hardly_ends():
    """Overlong lines are cut where no assertion is cut in two."""
    data = b" ".join([LINE.strip()] * 2000) + b" " + b"y" * (3 * MAX_LINE) + b"\n" + LINE

    (assertion,) = parse(data)

    assert assertion.count == 2001


@pytest.mark.parametrize(
    "text",
    [
        "python: loss.cpp:93: void f(int): Assertion `t >= 0 && t < n_classes' failed.",
        "RuntimeError: Assertion `t >= 0 && t < n_classes' failed.  at /x/ClassNLLCriterion.c:93",
        "prog: kernels.cu:12: int main(): Assertion `n > 0' failed.",
        "Assertion `srcIndex < srcSelectDimSize` failed is what the log said",
        "RuntimeError: Assertion `label >= 0 && label < num_labels` failed.",
    ],
)
def test_assertions_of_the_host_are_none(text):
    """assert() of a host program looks alike, but no device printed it."""
    assert parse(text.encode()) == ()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("prog: a.cu:12: int main(): Assertion `n > 0' failed.", "device-side assert triggered"),
        ("a.cc:12: Assertion `n > 0` failed.", "an illegal memory access was encountered"),
        ("a.cu:12: Assertion `n > 0` failed.", "out of memory"),
        ("Assertion `srcIndex < srcSelectDimSize` failed.", "out of memory"),
    ],
)
def test_assertions_without_block_need_an_error_that_they_explain(line, error):
    """A host's assertion beside a CUDA error is not the device's, nor kills it."""
    failure = decode_text(f"{line}\nRuntimeError: CUDA error: {error}\n")

    assert failure.assertions == ()


def test_a_quoted_assertion_does_not_repeat_one_that_was_printed():
    """A summary at the end of a log adds nothing to the line with block and thread."""
    text = f"{LINE.decode()}1 x Assertion `t >= 0 && t < n_classes` failed.\nCUDA error: {ASSERT}\n"

    (assertion,) = decode_text(text).assertions

    assert assertion.block == (0, 0, 0)


def test_number_of_assertions_without_block_is_bounded():
    """Host programs that assert without end take neither memory nor the room of real ones."""
    text = "".join(f"a.cu:{line}: f: Assertion `n > {line}` failed.\n" for line in range(1000))

    assertions = decode_text(f"{text}{LINE.decode()}CUDA error: {ASSERT}\n").assertions

    assert assertions[0].known
    assert len(assertions) == 1 + MAX_UNPROVEN


@pytest.mark.parametrize("width", [40, 80, 100, 137])
def test_lines_that_a_terminal_wrapped_are_read(width):
    """A paste may be cut anywhere, also in the middle of the word Assertion."""
    lines = [row.render((1, 0, 0), (2, 0, 0)) for row in catalog().rows[:2]]
    text = "".join(
        line[start : start + width] + "\n" for line in lines for start in range(0, len(line), width)
    )

    assertions = parse(b"step 1\n" + text.encode())

    assert [(item.expression, item.block, item.known) for item in assertions] == [
        (row.expression, (1, 0, 0), True) for row in catalog().rows[:2]
    ]


def test_compiler_messages_do_not_lend_an_assertion_their_file():
    """Only what continues a line of CUDA is joined to it."""
    text = f"a.cu:3: warning: unused\n{LINE.decode()}b.cu:4: note: x\nAssertion `n` failed.\n"

    assertions = decode_text(f"{text}RuntimeError: CUDA error: {ASSERT}\n").assertions

    assert [(item.expression, item.file) for item in assertions] == [
        ("t >= 0 && t < n_classes", LINE.decode().partition(":")[0]),
        ("n", ""),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# {0}",
        "// {0}",
        "x = 1  # {0}",
        'print("{0}")',
        'printf("{0}\\n");',
        'LINE = "{0}"',
        "    assert '{0}' in text",
        'pytest.raises(RuntimeError, match="{0}")',
        "expected: '{0}'",
        "XFAIL test_a.py::test_b - {0}",
        "[SKIP] {0}",
        "0 matches for {0}",
        "Known issue: {0}",
        "README.md:12:{0}",
        "> user wrote: I get {0}",
        "If you see {0}",
    ],
)
def test_a_line_in_source_or_in_somebodys_words_is_no_failure(text):
    """Tests, documents and questions quote assertions that did not happen there."""
    assert parse(text.format(LINE.decode().strip()).encode()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "{0}",
        "* {0}",
        "- {0}",
        "> {0}",
        "| {0} |",
        '{{"line": "{0}"}}',
        "['{0}', 'next']",
        "CompletedProcess(args=[], stderr='{0}')",
        'RuntimeError("{0}")',
        "b'{0}\\n'",
        "E   {0}",
        "INFO:root:{0}",
        "tests/test_a.py::test_b {0}",
    ],
)
def test_a_pasted_or_logged_line_is_a_failure(text):
    """List marks, quotation marks of a repr and loggers do not make it somebody's words."""
    (assertion,) = parse(text.format(LINE.decode().strip()).encode())

    assert assertion.known


def test_invalid_utf8_beside_an_assertion_survives():
    """Bytes that are no UTF-8 do not hide the assertion behind them."""
    (assertion,) = parse(b"\xff\xfe caf\xe9 " + LINE)

    assert assertion.known


PIECES = [
    LINE,
    LINE.strip(),
    b"Assertion `",
    b"` failed.",
    b"block: [0,0,0], thread: [1,2,3] ",
    b"block: [",
    b"\r",
    b"\n",
    b"\x1b[31m",
    b"\x1b]0;",
    b"\\n",
    b"[rank2]: ",
    b"RuntimeError: CUDA error: ",
    b"device-side assert triggered",
    b"out of memory",
    b'  File "x.py", line 3, in f\n',
    b"CUDNN_STATUS_INTERNAL_ERROR",
    b"Assertion failed: `x`: `n` value (3)",
    b"... Assertion `n > 0` failed.",
    b"a.cu:12: ",
    b"a.cu:12: f: block: [0,0,0], thread: [1,2,3] Asser\ntion `n > 0` failed.\n",
    b"x" * (MAX_LINE + 10),
]
SOUP = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=30)), max_size=15)


@settings(max_examples=300, deadline=None)
@given(pieces=SOUP, cuts=st.lists(st.integers(0, 4 * MAX_LINE), max_size=6))
def test_any_bytes_in_any_chunks_give_one_valid_failure(pieces, cuts):
    """No bytes raise; the JSON is valid and round-trips; chunking changes nothing."""
    data = b"".join(pieces)
    whole = decode_text(data)
    decoder = TextDecoder()
    start = 0
    for cut in sorted(cuts):
        decoder.feed(data[start:cut])
        start = max(start, cut)
    decoder.feed(data[start:])

    assert decoder.close() == whole
    assert Failure.from_dict(json.loads(json.dumps(whole.to_dict(), allow_nan=False))) == whole


def flood(lines: int, end: bytes = b"\n") -> bytes:
    rows = [catalog().by_key(key) for key in ("index", "nll_loss")]
    return b"".join(
        rows[number % 7 == 0].render((number // 64, 0, 0), (number % 64, 0, 0)).encode() + end
        for number in range(lines)
    )


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_flood_in_one_piece_is_counted_as_line_by_line(end):
    """Skipping repeated lines all at once loses and adds none, whatever ends the lines."""
    data = flood(700, end)

    counts = [item.count for item in parse(data)]

    assert counts == [100, 600]


def test_a_flood_of_many_ranks_by_turns_is_counted_by_rank():
    """Prefixes that are parts of each other, and none at all, keep their own counts."""
    heads = ["", "[rank1]: ", "[rank11]: ", "x [rank1]: ", *(f"[rank{n}]: " for n in range(20, 90))]
    line = catalog().by_key("index").render((0, 0, 0), (1, 0, 0))

    assertions = parse("".join(f"{head}{line}\n" * 3 for head in heads).encode() * 5)

    assert sum(item.count for item in assertions) == 15 * len(heads)
    assert {item.rank: item.count for item in assertions} == {
        None: 15,
        1: 30,
        11: 15,
        **dict.fromkeys(range(20, 90), 15),
    }


@pytest.mark.parametrize("rank", ["", "[rank5]: "])
def test_times_in_front_do_not_keep_a_flood_from_being_skipped(rank):
    """Loggers stamp each line; the stamps differ, the line is the same."""
    line = catalog().by_key("index").render((0, 0, 0), (1, 0, 0))
    times = [f"2026-03-01T10:00:{number % 60}.{number}Z stderr F " for number in range(1000)]
    data = "".join(f"{time}{rank}{line}\n" for time in times).encode()
    parser = AssertionParser()
    parser.feed(data[: data.index(b"\n") + 1])

    assert parser.skip_repeats(data, 0, len(data)) == len(data)
    (assertion,) = parser.close()
    assert (assertion.count, assertion.rank) == (1001, 5 if rank else None)


VERBOSE = "/p/x.cu:1: f: block: [0,0,0], thread: [{0},0,0]: Assertion failed: `x < y`: bad index"
PLAIN = "/p/x.cu:1: f: block: [0,0,0], thread: [{0},0,0] Assertion `x < y` failed."


@pytest.mark.parametrize("times", [1, 10])
def test_both_streams_of_a_verbose_build_tell_of_the_same_threads(times):
    """A flood on stdout and the same one on stderr are counted once."""
    verbose = [VERBOSE.format(number) for number in range(times)]
    plain = [PLAIN.format(number) for number in range(times)]

    for lines in (verbose, plain, verbose + plain, [*verbose, *plain[:1]]):
        (assertion,) = parse("\n".join(lines).encode())
        assert assertion.count == times


WRAPPERS = [
    '{{"log":"{line}\\n","stream":"stderr","time":"2026-03-01T10:00:{number:02}.{number:09}Z"}}',
    "{number:08x} {line}",
    "\x1b[31m10:00:{number:02} {line}\x1b[0m",
    "[rank{rank}]: 10:00:{number:02} {line}",
    "{line} {line}",
    "2026-03-01 10:00:{number:02},{number:03} | {line}",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_whatever_a_logger_puts_around_a_flood_it_is_counted_and_skipped(wrapper):
    """The counts are those of reading line by line, and hardly any line is read."""
    rows = [catalog().by_key(key) for key in ("index", "nll_loss", "embedding")]
    lines = [
        wrapper.format(
            number=number,
            rank=number % 8,
            line=rows[number % 3].render((0, 0, 0), (number, 0, 0)),
        )
        for number in range(960)
    ]
    parser = AssertionParser()
    read = []
    parse_line = parser._parse
    parser._parse = lambda text, **more: read.append(text) or parse_line(text, **more)
    parser.feed("\n".join(lines).encode() + b"\n")

    assertions = parser.close()

    twice = wrapper.count("{line}")
    assert sum(item.count for item in assertions) == 960 * twice
    assert {item.known for item in assertions} == {True}
    assert len(read) <= 64


def test_numbers_in_front_of_nothing_do_not_join_different_lines():
    """Where no path shows what a logger has added, other numbers are another line."""
    lines = [
        f"10:00:0{n} k{n}: block: [0,0,0], thread: [1,0,0] Assertion `x < y` failed."
        for n in range(5)
    ]

    for end in ("", "\n"):
        assertions = parse("\n".join(lines).encode() + end.encode())
        assert [(item.function, item.count) for item in assertions] == [
            (f"k{n}", 1) for n in range(5)
        ]


def test_all_threads_are_counted_however_many_ranks_there_are():
    """Ranks beyond the limit are not told apart, but no thread is lost."""
    line = LINE.decode()
    ranks = 2 * MAX_RANKED

    assertions = parse("".join(f"[rank{n % ranks}]: {line}" for n in range(2 * ranks)).encode())

    assert sum(item.count for item in assertions) == 2 * ranks
    assert len(assertions) == MAX_RANKED


@pytest.mark.parametrize(
    "line",
    [
        "/a.cu:1: f: block: [0,0,0], thread: [0,0,0] Assertion `x{0}` failed.".replace(
            "{0}", "\\" * n
        )
        for n in (1900, 3800)
    ]
    + [
        "/a" * n + "/a.cu:1: f: block: [0,0,0], thread: [0,0,0] Assertion `x` failed."
        for n in (2000, 4000)
    ],
    ids=["backslashes-1", "backslashes-2", "path-1", "path-2"],
)
def test_no_line_takes_quadratic_time(line):
    """Hostile lines up to the limit are read in milliseconds."""
    start = time.process_time()
    for _ in range(5):
        parse(line.encode())

    assert (time.process_time() - start) / 5 < 0.05


def test_the_line_of_a_source_file_is_no_number_of_a_logger():
    """Where a path stands twice in front, two lines of it are not taken for one."""
    text = "".join(
        f"E  /a.cu:{line}: /a.cu: block: [0,0,0], thread: [0,0,0] Assertion `x < y` failed.\n"
        for line in (1, 7, 1)
    )

    assert sum(item.count for item in parse(text.encode())) == 3
    assert len(parse(text.encode())) > 1


def test_wrapped_and_indented_lines_are_read():
    """A log viewer wraps inside words and indents what follows."""
    row = catalog().by_key("embedding")
    line = row.render((1, 0, 0), (2, 0, 0))
    pieces = [line[start : start + 70] for start in range(0, len(line), 70)]

    (assertion,) = parse("\n      ".join(pieces).encode())

    assert (assertion.expression, assertion.known) == (row.expression, True)


def test_inside_a_repr_the_path_starts_behind_the_line_in_front():
    """The end of the line before does not become part of the file's name."""
    row = catalog().by_key("index")
    line = row.render((1, 0, 0), (2, 0, 0))

    (assertion,) = parse(f"'first failed.\\n{line}\\n{line}\\n'".encode())

    assert (assertion.file, assertion.count) == (line.partition(":")[0], 2)


def test_an_error_behind_an_assertion_on_one_line_is_read():
    """A repr holds the assertion and the error that follows it in one line."""
    text = f"{LINE.decode().strip()}\\nRuntimeError: CUDA error: unspecified launch failure"

    assert decode_text(text).message == "CUDA error: unspecified launch failure"


def test_blank_lines_cost_nothing():
    """A million of them are passed over as one."""
    start = time.process_time()

    assert parse(b"\n" * 1_000_000 + LINE)[0].known
    assert time.process_time() - start < 0.5


def test_a_flood_costs_little_more_than_looking_at_it():
    """Repeated lines are skipped as a block, not read one by one."""
    row = catalog().by_key("embedding")
    line = row.render((1, 0, 0), (2, 0, 0)).encode() + b"\n"
    parser = AssertionParser()
    parser.feed(line)

    stopped = parser.skip_repeats(line * 1000, 0, len(line) * 1000)

    assert stopped == len(line) * 1000
    assert parser.close()[0].count == 1001


@pytest.mark.parametrize("width", range(30, 100))
def test_lines_wrapped_in_the_middle_of_the_path_are_read(width):
    """Whatever is cut in two, the path's name and the line number too, the row is found."""
    row = catalog().by_key("embedding")
    line = row.render((1, 0, 0), (2, 0, 0))
    pieces = [line[start : start + width] for start in range(0, len(line), width)]

    (assertion,) = parse("\n".join(["loss 0.3", *pieces, "done"]).encode())

    assert (assertion.known, assertion.count) == (True, 1)
    assert assertion.expression == row.expression


def test_an_unfinished_line_does_not_swallow_the_next_one():
    """A cut-off line followed by a whole one are two assertions."""
    rows = [catalog().by_key(key) for key in ("index", "nll_loss")]
    whole = [row.render((0, 0, 0), (1, 0, 0)) for row in rows]

    assertions = parse(f"{whole[0][:-12]}\n{whole[1]}\n".encode())

    assert {item.expression for item in assertions} >= {rows[1].expression}
    assert all(item.count == 1 for item in assertions)


@pytest.mark.parametrize(
    ("expression", "operand", "requirement"),
    [
        ("label >= 0 && label < n", "label", "0 <= label < n"),
        ("row < rows", "row", "row < rows"),
        ("(a[i] > 0 && a[i] <= b)", "a[i]", "0 < a[i] <= b"),
        ("lo <= index && index < hi", "index", "lo <= index < hi"),
        ("a < 5 && b < 7", "", "a < 5 && b < 7"),
        ("false", "", "this place in the kernel must never be reached"),
        ('false && "no " "luck"', "", "the kernel says: no luck"),
        ('n > 0 && "n is too small\\n"', "n", "n > 0 (the kernel says: n is too small)"),
        ("", "", "not printed: the assertion has no text"),
        ("something went wrong", "", "the kernel says: something went wrong"),
        ("!isnan(x)", "", "!isnan(x)"),
    ],
)
def test_unknown_assertions_say_what_their_words_allow(expression, operand, requirement):
    """Nothing is guessed: the condition, the name it compares, the message its author wrote."""
    place = "/home/ann/ext/mine.cu:7: f: block: [0,0,0], thread: [1,0,0]"

    (assertion,) = parse(f"{place} Assertion `{expression}` failed.".encode())

    assert not assertion.known
    assert not assertion.operations
    assert (assertion.operand, assertion.requirement) == (operand, requirement)


@pytest.mark.parametrize(
    "head",
    [
        "[rank3]: ",
        "[rank3]:",
        "[Rank 3] ",
        "[default3]:",
        "3: ",
        "[3]: ",
        "[1,3]<stderr>:",
        "2026-03-01 10:00:00 [rank3]: ",
        "rank=3) ",
    ],
)
def test_the_rank_in_front_is_kept(head):
    """Launchers have several ways to say whose line it is."""
    (assertion,) = parse(head.encode() + LINE)

    assert assertion.rank == 3
    assert assertion.known


@pytest.mark.parametrize("head", ["12:00:03 ", "12: 3 ", "epoch 3: 10%| ", "[3/10] ", "3 ", "[3] "])
def test_other_numbers_in_front_are_no_rank(head):
    """A clock, an epoch and a progress bar hold numbers as well."""
    (assertion,) = parse(b"x " + head.encode() + LINE)

    assert assertion.rank is None
    assert assertion.known
