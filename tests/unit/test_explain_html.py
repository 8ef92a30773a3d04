"""Web pages: exported notebooks, saved threads; hostile pages."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudassert_ipy.decode.document import read_document
from cudassert_ipy.decode.html_file import is_html, page_text

PAGES = Path(__file__).parents[1] / "samples" / "pages"
ASSERTION = (
    "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: "
    "block: [0,0,0], thread: [4,0,0] Assertion `t &gt;= 0 &amp;&amp; t &lt; n_classes` failed."
)


def read(page, name="page.html"):
    return read_document(io.BytesIO(page.encode() if isinstance(page, str) else page), name)


def text(page, size=0):
    data = page.encode() if isinstance(page, str) else page
    chunks = [data[at : at + size] for at in range(0, len(data), size)] if size else [data]
    return "".join(piece.text for piece in page_text(chunks))


@pytest.mark.parametrize("template", ["lab", "classic"])
def test_exported_notebook(template):
    """Colored spans inside an assertion line do not matter; the cell is named; sources, Markdown,
    scripts and styles are no evidence (made by nbconvert 7.17, styles and scripts shortened)."""
    document = read((PAGES / f"nbconvert-{template}.html").read_bytes())

    (assertion,) = document.failure.assertions
    assert (assertion.expression, assertion.count) == ("t >= 0 && t < n_classes", 3)
    assert document.failure.code == 710
    assert document.place == "cell [3]"


@pytest.mark.parametrize("template", ["lab", "classic"])
def test_exported_notebook_reads_the_same_in_any_chunks(template):
    """A tag, a reference or a letter may be cut anywhere."""
    page = (PAGES / f"nbconvert-{template}.html").read_bytes()

    assert text(page, 1) == text(page, 7) == text(page)


def test_saved_page_of_jupyterlab():
    """In a page saved from JupyterLab the editor's text is the source, the prompt has no "In"."""
    page = f"""<!DOCTYPE html><html><body><div class="jp-Cell jp-CodeCell">
      <div class="jp-InputPrompt jp-InputArea-prompt">[12]:</div>
      <div class="jp-Editor"><div class="cm-editor"><div class="cm-line">x = "
      RuntimeError: CUDA error: misaligned address"</div></div></div>
      <div class="jp-RenderedText" data-mime-type="application/vnd.jupyter.stderr">
      <pre>{ASSERTION}</pre></div></div>"""

    document = read(page)

    assert (document.place, document.failure.kind) == ("cell [12]", "device_assert")
    assert document.failure.assertions[0].known


def test_cell_without_number_is_not_named():
    """A cell that runs, or that ran in a session before, has no number."""
    page = (
        '<html><div class="jp-InputPrompt">In [4]:</div><pre>fine</pre>'
        f'<div class="jp-InputPrompt">In [ ]:</div><pre>{ASSERTION}</pre>'
    )

    assert read(page).place == ""


def test_panel_of_this_tool_is_no_evidence():
    """What this tool showed repeats what CUDA printed and must not count again."""
    page = (
        f"<html><pre>{ASSERTION}</pre>"
        f'<section class="cudassert ca-panel"><section><pre>{ASSERTION}</pre></section>'
        f"<pre>{ASSERTION}</pre></section>"
    )

    assert read(page).failure.assertions[0].count == 1


def test_thread_of_a_forum():
    """Paragraphs, line breaks, code blocks and the marks that forums put into long words."""
    page = f"""<!-- saved --><html><head><title>CUDA error: misaligned address</title>
      <script>"CUDA error: misaligned address"</script></head><body>
      <p>I get <code>RuntimeError: CUDA error: device-side</code><code> assert triggered</code><br>
      CUDA kernel errors might be asynchronously reported at some other API call</p>
      <td>1</td><td>{ASSERTION.replace("Loss", "Lo<wbr>s&#8203;s").replace(" ", "&nbsp;")}</td>"""

    document = read(page)

    assert (document.failure.code, document.failure.blocking) == (710, False)
    assert document.failure.assertions[0].known
    assert document.place == ""


def test_inline_tags_join_and_block_tags_break():
    """A word may be half bold; two paragraphs are two lines; cells of a table are two words."""
    assert text("a<b>b</b>c").split("\n") == ["abc"]
    assert text("a<p>b</p>c").split() == ["a", "b", "c"]
    assert text("<td>a</td><td>b</td>").split() == ["a", "b"]
    assert text("a<br>b<br/>c").split("\n") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("a<!-- <p>x</p> -->b", "ab"),
        ("a<!-->b", "ab"),
        ("a<script>if (1 < 2) '</b>'</script>b", "ab"),
        ("a<SCRIPT>x</SCRIPT >b", "ab"),
        ("a<style>x</styles>y</style>b", "ab"),
        ('a<i title="1 > 0">b', "ab"),
        ("a<i title='\">b'>b", "ab"),
        ("a<i title=it's>b", "ab"),
        ("a<i title = 'x>y' >b", "ab"),
        ("a < b, a<1, a<&#x3c;", "a < b, a<1, a<<"),
        ("a&lt;b&gt;c", "a<b>c"),
        ("&amp;lt;", "&lt;"),
        ("a<![CDATA[x]]>b", "ab"),
        ("a</ x>b", "ab"),
        ("a<b", "a"),
        ("caf\u00e9 &eacute;", "caf\u00e9 \u00e9"),
    ],
)
def test_odd_markup(page, shown):
    """What browsers do with it, for whole pages and for pages in pieces."""
    assert text(page) == text(page, 1) == text(page, 3) == shown


@pytest.mark.parametrize(
    ("data", "name", "is_page"),
    [
        (b"<!DOCTYPE html>", "x", True),
        (b"\xef\xbb\xbf\n<HTML lang=en>", "-", True),
        (b'<?xml version="1.0"?>\n<!-- x --><html>', "x", True),
        (b"log <b>x</b> </div>", "a.HTM", True),
        (b"plain log with a < b", "a.html", False),
        (b"step 1 <html>", "a.log", False),
        (b"", "a.html", False),
    ],
)
def test_what_a_page_is(data, name, is_page):
    """The content decides; a log called .html is read as the log it is."""
    assert is_html(data, name) is is_page


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "<!",
            "<a ",
            "<!--",
            "<![<!",
            "</",
            '<a href="',
            "<a =",
            "&#",
            "&",
            "<script>",
            "<title>",
        ),
        *("<div>", '<div class="cudassert">', '<p class="input_prompt">1', "<a b='x' ", "<br>"),
    ],
)
def test_hostile_pages_take_time_in_proportion(unit):
    """No construct that never ends makes the reader start over (html.parser took minutes)."""
    page = (unit * 400_000)[:400_000]
    started = time.process_time()

    text(page, 64 * 1024)

    assert time.process_time() - started < 5


@pytest.mark.parametrize("unit", ["<", "=", "<a =", "<div>", "<b>x", "<p a='"])
def test_dense_markup_takes_two_seconds_a_megabyte_at_most(unit):
    """Pages of nothing but markup: 20 MB of ``<`` took half a minute."""
    page = (unit * 1_000_000)[:1_000_000]
    started = time.process_time()

    text(("<html><a " if unit == "=" else "<html>") + page, 1 << 20)

    assert time.process_time() - started < (0.6 if unit in "<=" else 2)


def test_deep_nesting_and_a_huge_data_uri():
    """Neither a depth of 300,000 nor an attribute of 5 MB matters."""
    page = (
        '<html><div class="cudassert">' + "<div>" * 300_000 + "RuntimeError: CUDA error: x"
        "</div>" * 300_001 + f'<img src="data:{"A" * 5_000_000}"><pre>{ASSERTION}</pre>'
    )

    failure = read(page).failure

    assert (failure.kind, failure.assertions[0].count) == ("device_assert", 1)


PARTS = st.sampled_from(
    [
        *(
            "<",
            ">",
            "</",
            "<!--",
            "-->",
            "<!",
            '"',
            "'",
            "=",
            "&",
            "&#x",
            ";",
            "<p",
            "<br/>",
            "<pre>",
        ),
        *("<script", "</script>", "<div class=cudassert>", "</div>", " class=", "In [1]:", "\n"),
        *("<div class='input_prompt'>In [3]:", "\0", "é", "CUDA error: misaligned address"),
        ASSERTION,
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS | st.text(max_size=8), max_size=30), st.integers(1, 9))
def test_any_page_is_read_and_chunks_do_not_matter(parts, size):
    """No page raises, and none reads differently in pieces."""
    page = "".join(parts).encode("utf-8", "replace")

    assert text(page, size) == text(page)
    read(b"<html>" + b" " * 1000 + page)  # so long that no control makes it a binary file
