"""Every renderer against the golden files; CUDASSERT_UPDATE_GOLDEN=1 rewrites them."""

import json
import os
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from cudassert_ipy.model import MIME_TYPE, Diagnosis
from cudassert_ipy.report.bundle import bundle
from cudassert_ipy.report.html import render_html
from cudassert_ipy.report.markdown import render_markdown
from cudassert_ipy.report.text import one_line, render_text

GOLDEN = Path(__file__).parent.parent / "golden" / "report"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
STYLE = re.compile(r"<style>.*?</style>\n?", re.DOTALL)


def diagnosis(name: str) -> Diagnosis:
    data = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return Diagnosis.from_dict(data)


def text(item: Diagnosis) -> str:
    return f"{one_line(item)}\n\n{render_text(item)}\n"


def html(item: Diagnosis) -> str:
    return STYLE.sub("", render_html(item)) + "\n"


RENDERERS: dict[str, Callable[[Diagnosis], str]] = {
    "txt": text,
    "html": html,
    "md": render_markdown,
}


@pytest.mark.parametrize("suffix", RENDERERS)
@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, suffix: str) -> None:
    """Each kind of diagnosis reads, in each format, as the reviewed golden file."""
    shown = RENDERERS[suffix](diagnosis(name))
    path = GOLDEN / f"{name}.{suffix}"
    if os.environ.get("CUDASSERT_UPDATE_GOLDEN") == "1":
        path.write_text(shown, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == shown


def test_there_are_golden_files() -> None:
    """Every outcome of a replay has a golden diagnosis."""
    outcomes = {diagnosis(name).replay and diagnosis(name).replay.outcome for name in NAMES}

    assert outcomes >= {"raised", "clean", "inconclusive", "crashed", "timed_out", "cancelled"}


@pytest.mark.parametrize("name", NAMES)
def test_bundle(name: str) -> None:
    """A bundle has text, HTML and the data, and the data reads back as the same diagnosis."""
    data = bundle(diagnosis(name))

    assert set(data) == {"text/plain", "text/html", MIME_TYPE}
    assert Diagnosis.from_dict(json.loads(json.dumps(data[MIME_TYPE]))) == diagnosis(name)


def test_range_is_readable_where_svg_is_dropped() -> None:
    """Sanitizers drop ``svg`` and ``style``; what is left is the bar of the text renderer."""
    left = re.sub(r"<[^>]+>", "", STYLE.sub("", render_html(diagnosis("finding_of_the_guard"))))

    assert f"✗ -1 [0 {'━' * 34} 9] ✗ 10" in " ".join(left.split())


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("finding")])
def test_text_and_html_say_the_same(name: str) -> None:
    """Every fact of the text stands in the HTML too, so that neither reader misses one."""
    item = diagnosis(name)
    markup = re.sub(r"</?(mark|u|code|span|strong|svg|rect)\b[^>]*>", "", render_html(item))
    words = unescape(re.sub(r"<[^>]+>", " ", STYLE.sub("", markup)))
    # Not in the HTML: the carets, the bars around the source line, the rule of the table.
    drawn = re.compile(r"[\^│─]+")
    in_text = render_text(item).replace("`", " ").split()
    bare = {word.strip(":,.;()") for word in in_text if not drawn.fullmatch(word)}

    assert {word for word in bare if word not in words} == set()
