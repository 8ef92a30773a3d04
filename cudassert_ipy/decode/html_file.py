"""A saved web page as text: an exported notebook, a forum thread, an issue.

Not on ``html.parser``: it raises AssertionError on ``<![<!``, holds a whole ``data:`` URI in memory
and takes quadratic time on tags that never end (Python 3.11: four minutes for 150 KB). Here every
character is read once, and what a tag or a reference may keep is bounded.
"""

from __future__ import annotations

import codecs
import html
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAX_TAG = 2000
_MAX_REFERENCE = 40
_MAX_PROMPT = 40

_START = re.compile(
    rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)?"
    rb"<(?:!doctype\s+html|html|head|body|meta|title|div|pre|p|table|span|section|article)\b",
    re.IGNORECASE | re.DOTALL,
)
_ANY_END_TAG = re.compile(rb"</(?:html|body|div|pre|p|span|table|code)>", re.IGNORECASE)
# An apostrophe inside an unquoted value opens nothing; the quote may be in the next chunk.
_STOP_IN_TAG = re.compile(r"""(>)|=\s*(?:["']|\Z)""")
# Pages of nothing but "<" or "<div>" are read in time, too: what is no tag is text, and a tag
# without attributes is read at once.
_MAY_OPEN = re.compile(r"<(?:[a-zA-Z/!?]|\Z)")
_BARE_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]{0,30})>")
_NOT_BLANK = re.compile(r"\S")
_NAME = re.compile(r"(/?)([a-zA-Z][^\s/>]{0,40})")
_CLASS = re.compile(r"""\sclass\s*=\s*(?:"([^"]*)|'([^']*)|([^\s"'>]+))""", re.IGNORECASE)
_PROMPT_NUMBER = re.compile(r"\[\s*(\d{1,9})\s*\]")
_CLEANED = str.maketrans({"\xa0": " ", "\xad": None, "\u200b": None, "\u200c": None, "\0": None})

_BREAKS = frozenset(
    "address article aside blockquote body br center dd details dialog div dl dt fieldset"  # noqa: SIM905  (words)
    " figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html li main nav ol option p"
    " pre section select summary table tbody textarea tfoot thead tr ul".split()
)
_SPACES = frozenset({"button", "img", "td", "th"})
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"]
)
# What these hold is not shown on the page, or not text; tags in it are none.
_RAW_ENDS = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    for name in ("iframe", "noembed", "noframes", "script", "style", "template", "title")
}
_MAX_RAW_END = len("</noframes") + 1
# What a cell's author wrote is no evidence, and what this tool showed is none either. The names are
# those of nbconvert 5 to 7, JupyterLab 4, the classic notebook, Colab and VS Code.
_NO_EVIDENCE = frozenset(
    {
        "CodeMirror",
        "cm-editor",
        "cudassert",
        "input_area",
        "jp-Editor",
        "jp-MarkdownCell",
        "monaco-editor",
        "text_cell",
    }
)
_PROMPTS = frozenset({"jp-InputPrompt", "jp-InputArea-prompt", "input_prompt"})


class Piece(NamedTuple):
    """Text of a page, and the prompt number of the notebook cell that it is from, if any."""

    cell: int | None
    text: str


def is_html(data: bytes, name: str = "") -> bool:
    """Return whether ``data``, the beginning of the file ``name``, looks like a web page."""
    if _START.match(data.removeprefix(codecs.BOM_UTF8)):
        return True
    return name.lower().endswith((".html", ".htm", ".xhtml")) and bool(_ANY_END_TAG.search(data))


def page_text(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """Yield the text that a reader of the page sees, in order; never raises for any content.

    Inline tags join, block tags and ``<br>`` break lines. Left out: scripts and styles, the sources
    and the Markdown of notebook cells, and what this tool itself showed.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    reader = _Reader()
    for chunk in chunks:
        yield from reader.feed(decoder.decode(chunk))
    yield from reader.feed(decoder.decode(b"", final=True))
    yield from reader.close()


class _Reader:
    """Cuts a page into tags and text; any chunking gives the same text."""

    def __init__(self) -> None:
        self._buffer = ""
        self._at = 0
        # Takes what it can from the buffer; returns False when it needs more to go on.
        self._state: Callable[[], bool] = self._in_text
        self._tag = ""
        self._end = ""
        self._raw_end = _RAW_ENDS["script"]
        # The element whose text is not the page's, and how many of its name are open in it.
        self._inside = ""
        self._depth = 0
        self._prompt: str | None = None
        self._cell: int | None = None
        self._texts: list[str] = []
        self._pieces: list[Piece] = []

    def feed(self, data: str) -> list[Piece]:
        self._buffer = self._buffer[self._at :] + data
        self._at = 0
        while self._at < len(self._buffer) and self._state():
            pass
        return self._taken()

    def close(self) -> list[Piece]:
        """Return what is left; a tag that never ended is not text."""
        rest = self._buffer[self._at :]
        if self._state == self._in_text and not rest.startswith("<"):
            self._say(html.unescape(rest))
        return self._taken()

    def _taken(self) -> list[Piece]:
        self._end_piece()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _end_piece(self) -> None:
        if self._texts:
            self._pieces.append(Piece(self._cell, "".join(self._texts).translate(_CLEANED)))
            self._texts = []

    def _say(self, text: str) -> None:
        if self._prompt is not None:
            self._prompt = (self._prompt + text)[:_MAX_PROMPT]
        elif not self._inside:
            self._texts.append(text)

    # --- states ----------------------------------------------------------------------------------

    def _in_text(self) -> bool:
        opens = _MAY_OPEN.search(self._buffer, self._at)
        stop = opens.start() if opens else len(self._buffer)
        if not opens:
            # A reference such as &#96; may go on in the next chunk.
            reference = self._buffer.rfind("&", max(stop - _MAX_REFERENCE, self._at))
            if reference >= 0 and self._buffer.find(";", reference) < 0:
                stop = reference
        if stop > self._at:
            self._say(html.unescape(self._buffer[self._at : stop]))
            self._at = stop
        bare = _BARE_TAG.match(self._buffer, stop)
        if bare:
            self._tag = bare[0]
            self._at = bare.end()
            self._handle_tag(closes=bool(bare[1]), name=bare[2].lower())
            return True
        return opens is not None and self._open()

    def _open(self) -> bool:
        """Decide what the ``<`` that comes next begins."""
        head = self._buffer[self._at : self._at + 4]
        if head in ("<", "</", "<!", "<!-"):
            return False
        if head == "<!--":
            self._skip(2, "-->")  # "<!-->" is a whole comment
        elif head[1] in "!?" or (head[1] == "/" and not head[2].isalpha()):
            self._skip(2 if head[1] == "/" else 1, ">")
        else:
            self._at += 1
            self._tag = ""
            self._state = self._in_tag
        return True

    def _skip(self, length: int, end: str) -> None:
        self._at += length
        self._end = end
        self._state = self._in_comment

    def _in_comment(self) -> bool:
        end = self._buffer.find(self._end, self._at)
        if end < 0:
            self._at = max(len(self._buffer) - len(self._end) + 1, self._at)
            return False
        self._at = end + len(self._end)
        self._state = self._in_text
        return True

    def _in_tag(self) -> bool:
        stop = _STOP_IN_TAG.search(self._buffer, self._at)
        self._keep(stop.end() if stop else len(self._buffer))
        if stop and stop[1]:
            self._state = self._in_text
            self._read_tag()
        elif stop and stop[0][-1] in "\"'":
            self._end = stop[0][-1]
            self._state = self._in_quotes
        elif stop:
            self._state = self._before_value
        return True

    def _before_value(self) -> bool:
        value = _NOT_BLANK.search(self._buffer, self._at)
        if value is None:
            self._at = len(self._buffer)
            return False
        self._at = value.start()
        if value[0] in "\"'":
            self._end = value[0]
            self._keep(value.end())
            self._state = self._in_quotes
        else:
            self._state = self._in_tag
        return True

    def _in_quotes(self) -> bool:
        end = self._buffer.find(self._end, self._at)
        self._keep(end + 1 if end >= 0 else len(self._buffer))
        if end >= 0:
            self._state = self._in_tag
        return True

    def _keep(self, stop: int) -> None:
        """Take the tag's text up to ``stop``, of a long tag only the beginning."""
        room = _MAX_TAG - len(self._tag)
        self._tag += self._buffer[self._at : min(stop, self._at + room)]
        self._at = stop

    def _in_raw(self) -> bool:
        end = self._raw_end.search(self._buffer, self._at)
        if end is None:
            self._at = max(len(self._buffer) - _MAX_RAW_END, self._at)
            return False
        self._at = end.end()
        self._tag = "/"
        self._state = self._in_tag
        return True

    # --- tags ------------------------------------------------------------------------------------

    def _read_tag(self) -> None:
        match = _NAME.match(self._tag)
        if match:
            self._handle_tag(closes=bool(match[1]), name=match[2].lower().removesuffix(">"))

    def _handle_tag(self, *, closes: bool, name: str) -> None:
        if name in _BREAKS and not (closes and name == "br"):
            self._say("\n")
        elif name in _SPACES and not closes:
            self._say(" ")
        if not closes and name in _RAW_ENDS:
            self._raw_end = _RAW_ENDS[name]
            self._state = self._in_raw
        elif name not in _VOID:
            self._nest(name, closes=closes)

    def _nest(self, name: str, *, closes: bool) -> None:
        if self._inside:
            if name == self._inside:
                self._depth += -1 if closes else 1
                if not self._depth:
                    self._leave()
            return
        if closes:
            return
        found = _CLASS.search(self._tag)
        classes = set(next(filter(None, found.groups()), "").split()) if found else set()
        if not classes.isdisjoint(_PROMPTS):
            self._prompt = ""
        elif classes.isdisjoint(_NO_EVIDENCE):
            return
        self._inside, self._depth = name, 1

    def _leave(self) -> None:
        self._inside = ""
        if self._prompt is not None:
            self._end_piece()
            number = _PROMPT_NUMBER.search(self._prompt)
            self._cell = int(number[1]) if number else None
            self._prompt = None
