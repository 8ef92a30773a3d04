"""Names, sources and messages from outside: escaped, cleaned and cut in every format."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from cudassert_ipy.model import (
    MIME_TYPE,
    Assertion,
    Cell,
    Diagnosis,
    Environment,
    Failure,
    Finding,
    Frame,
    Replay,
    ReportedAt,
    TensorRow,
)
from cudassert_ipy.report.bundle import bundle
from cudassert_ipy.report.clean import clean, clean_line, hide_home
from cudassert_ipy.report.fragments import render_line_html, render_losses_html, render_step_html
from cudassert_ipy.report.html import render_finding_html, render_html, render_tensors_html
from cudassert_ipy.report.markdown import render_markdown
from cudassert_ipy.report.private import without_values
from cudassert_ipy.report.text import one_line, render_failure, render_text
from cudassert_ipy.restart.plan import Loss, PlanStep

ALLOWED_TAGS = {
    "style", "section", "div", "p", "span", "strong", "em", "code", "pre", "mark", "u", "dl", "dt",
    "dd", "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "svg",
    "rect", "path", "text",
}  # fmt: skip
ALLOWED_ATTRIBUTES = {
    "class", "style", "scope", "colspan", "viewbox", "role", "aria-hidden", "x", "y", "width",
    "height", "rx", "d", "text-anchor",
}  # fmt: skip

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</code></pre></section></details><iframe src=//evil>",
    "{{ 7*7 }} {% raw %} {x} {0.__class__}",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://evil\x1b\\link",
    "evil\u202egnp.exe \u2066x\u2069 \u200b\u00ad\U000e0041",
    "a\r\nb\tc\x00d\x08e\x7ff\x9b31m\u2028g",
    "```\n# heading\n```` @everyone ![x](http://evil/p.png) [a](javascript:alert(1)) #1",
    "lone \ud800 surrogate",
    "z\u0301" + "\u0301" * 500,
    "$\\href{javascript:alert(1)}{x}$",
    "x" * 100_000,
    "<" * 50_000,
]


def everywhere(text: str) -> Diagnosis:
    """Return a diagnosis with ``text`` in every place that takes text from outside."""
    assertion = Assertion(
        expression=text,
        file=text,
        line=3,
        function=text,
        operations=(text, text),
        operand=text,
        requirement=text,
        values={text: text},
    )
    finding = Finding(
        operation=text,
        aten=text,
        operand=text,
        expression=text,
        line=1,
        column=2,
        end_column=5,
        source=text,
        frames=(Frame(function=text, line=1, source=text),) * 3,
        shape=(2, 3),
        dtype=text,
        minimum=0,
        maximum=9,
        valid_minimum=0,
        valid_maximum=5,
        bad_count=6,
        bad_positions=((0, 1),) * 6,
        bad_values=(9,) * 6,
        requirement=text,
        hint=text,
    )
    row = TensorRow(name=text, role="index", operation=text, dtype=text, device=text, bad_count=6)
    return Diagnosis(
        failure=Failure(
            kind="device_assert", message=text, assertions=(assertion,) * 2, advice=(text,)
        ),
        cell=Cell(execution_count=1, id=text),
        reported_at=ReportedAt(line=1, source=text),
        finding=finding,
        replay=Replay(
            where="cpu", state="after_failure", outcome="raised", exception=text, note=text
        ),
        tensors=(row,) * 3,
        context="dead",
        actions=(text, "report"),
        environment=Environment(python=text, torch=text, gpu=text, driver=text, front_end=text),
    )


def shapes(text: str) -> list[Diagnosis]:
    """Return diagnoses that show all branches of the view."""
    full = everywhere(text)
    replayed = replace(full, finding=None)
    return [
        full,
        replayed,
        replace(replayed, replay=None),
        replace(replayed, replay=None, context="alive"),
        replace(replayed, replay=None, failure=Failure(kind="cuda_error", message=text)),
        replace(replayed, replay=None, failure=None),
    ]


class Tags(HTMLParser):
    """Collects what a browser would make of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_safe_html(html: str) -> None:
    parser = Tags()
    parser.feed(html)
    parser.close()
    assert parser.tags <= ALLOWED_TAGS
    assert parser.attributes <= ALLOWED_ATTRIBUTES
    assert parser.open == []


def assert_clean(text: str) -> None:
    bad = re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text
    )
    assert bad is None, repr(bad)
    text.encode("utf-8")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_html(text: str) -> None:
    """Hostile text adds no tag and no attribute to the HTML, and leaves it well nested."""
    for item in shapes(text):
        for html in (render_html(item), render_finding_html(item), render_tensors_html(item)):
            assert_safe_html(html)
            assert_clean(html)
            assert len(html) < 60_000


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_fragments(text: str) -> None:
    """The pieces of the panel escape as well."""
    step = PlanStep(
        source=text, execution_count=1, seconds=1.0, selected=True, shell_only=True, long=True
    )
    pieces = [
        render_line_html(text, aside=text, strong=True, badge=True),
        render_step_html(step),
        render_losses_html([Loss(name=text, type=text, size=5)], [text]),
    ]
    for html in pieces:
        assert_safe_html(html)
        assert_clean(html)
        assert len(html) < 12_000


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text(text: str) -> None:
    """Hostile text cannot move the cursor, turn the reading direction or flood the terminal."""
    for item in shapes(text):
        assert_clean(render_text(item))
        assert len(render_text(item)) < 30_000
        line = one_line(item)
        assert_clean(line)
        assert "\n" not in line
        assert len(line) <= 600
        if item.failure is not None:
            assert_clean(render_failure(item.failure))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    """No text from outside breaks a renderer or gets markup through."""
    for item in shapes(text):
        assert_safe_html(render_html(item))
        assert_clean(render_text(item))
        assert_clean(render_markdown(item))


def assert_safe_markdown(markdown: str) -> None:
    """Render it as a forge does, with raw HTML allowed, and look at what came through."""
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    parser = Tags()
    parser.feed(html)
    assert parser.tags <= {"h3", "p", "em", "strong", "code", "pre", "ul", "li"} | {
        "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    prose = re.sub(r"(?s)<code.*?</code>", "", html)
    assert "@" not in prose
    assert "://" not in prose
    assert re.search(r"#\d", prose.replace("&#", "")) is None


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_markdown(text: str) -> None:
    """A report pasted into an issue mentions nobody, loads nothing and holds no HTML."""
    for item in shapes(text):
        assert_safe_markdown(render_markdown(item))


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="`*_[]()<>!#@\\\n |~&a1:/", max_size=40))
def test_any_markdown(text: str) -> None:
    """No mixture of the characters that Markdown gives a meaning to gets through."""
    assert_safe_markdown(render_markdown(everywhere(text)))


def test_markdown_fence_is_longer_than_any_run() -> None:
    """A source line with backticks cannot close the block that it stands in."""
    source = "s = '`````' + f(x)"
    finding = Finding(operation="f", aten="f", operand="x", line=1, source=source)
    lines = render_markdown(Diagnosis(finding=finding, context="alive")).splitlines()
    start = lines.index("``````python")

    assert lines[start + 1] == source
    assert "``````" in lines[start + 2 :]


def test_markdown_hides_home() -> None:
    """Home directories, which name a person, are not in the report."""
    text = "/home/jane/x.py C:\\Users\\jane\\x.py /Users/jane/lib"
    shown = render_markdown(everywhere(text))

    assert "jane" not in shown
    assert "~/x.py" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/jane/a.py", "~/a.py"),
        ("/Users/jane", "~"),
        (r"C:\Users\jane\a", r"~\a"),
        ("/homepage/x", "/homepage/x"),
        ("a/home/jane/x", "a~/x"),
        (r"\n/home/jane/x", r"\n~/x"),
        ("__/home/jane/x", "__~/x"),
        ("./home/jane/x", ".~/x"),
        (r"C:\\Users\\jane\\a", r"~\\a"),
        (r"c:\users\jane\a", r"~\a"),
        (r"\/home\/jane\/a", r"~\/a"),
        ("https://x.y/users/5", "https://x.y/users/5"),
    ],
)
def test_hide_home(text: str, expected: str) -> None:
    """Only home directories are shortened."""
    assert hide_home(text) == expected


def test_clean_keeps_ordinary_text() -> None:
    """Letters of any language, newlines and emoji of one character stay."""
    assert clean("名前 é ß\n日本 🙂") == "名前 é ß\n日本 🙂"


def test_clean_line_is_bounded() -> None:
    """A huge text costs little and is cut with an ellipsis."""
    assert clean_line("x" * 10_000_000, 10) == "x" * 9 + "…"


SECRET = 918273


def secret_diagnosis() -> Diagnosis:
    finding = Finding(
        operation="torch.nn.functional.embedding",
        aten="aten.embedding.default",
        operand="input",
        expression="ids",
        line=1,
        source="embed(ids)",
        shape=(4,),
        minimum=SECRET,
        maximum=SECRET,
        valid_minimum=0,
        valid_maximum=9,
        bad_count=1,
        bad_positions=((3,),),
        bad_values=(SECRET,),
        hint=f"the table needs {SECRET} rows",
    )
    row = TensorRow(name="ids", role="index", operation="e", minimum=SECRET, maximum=SECRET)
    assertion = Assertion(expression="i < n", file="", line=1, function=None, values={"i": SECRET})
    return Diagnosis(
        failure=Failure(kind="device_assert", assertions=(assertion,)),
        finding=finding,
        replay=Replay(
            where="cpu",
            state="after_failure",
            outcome="raised",
            exception=f"IndexError: Target {SECRET} is out of bounds.",
        ),
        tensors=(row,),
        context="dead",
    )


def test_values_can_be_kept_out() -> None:
    """With ``show_values`` off no tensor value is in any format, nor in the data beside them."""
    item = secret_diagnosis()
    hidden = bundle(item, show_values=False)
    texts = [hidden["text/plain"], hidden["text/html"], json.dumps(hidden[MIME_TYPE])]
    texts += [
        render_markdown(item, show_values=False),
        render_finding_html(item, show_values=False),
        render_tensors_html(item, show_values=False),
    ]

    assert all(str(SECRET) in json.dumps(value) for value in (bundle(item)[MIME_TYPE],))
    assert all(str(SECRET) not in text for text in texts)
    assert "IndexError" in texts[0]
    assert "[3]" in texts[0]


def test_exception_without_type_is_hidden() -> None:
    """An exception text that does not begin with a type is dropped whole: it may be all value."""
    replay = Replay(
        where="cpu", state="after_failure", outcome="raised", exception=f"Target {SECRET}: bad"
    )
    hidden = without_values(Diagnosis(replay=replay))

    assert hidden.replay is not None
    assert hidden.replay.exception is None
