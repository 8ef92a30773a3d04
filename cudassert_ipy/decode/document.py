"""A file that somebody hands in: what it is (log, notebook, web page, packed), and its failure.

Text of any size is read in chunks and never held; a notebook has to be held, up to a limit. One
beyond it is read as the text that it is.
"""

from __future__ import annotations

import codecs
import itertools
import select
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cudassert_ipy import messages
from cudassert_ipy.decode.failure import TextDecoder
from cudassert_ipy.decode.gzip_file import GZIP, UnusableInput, unpacked
from cudassert_ipy.decode.html_file import is_html, page_text
from cudassert_ipy.decode.notebook_file import cell_outputs, is_notebook

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cudassert_ipy.decode.versions import VersionScanner
    from cudassert_ipy.model import Failure

MAX_NOTEBOOK = 64 * 1024 * 1024
MAX_VALUES = 2_000_000
"""In a notebook: each takes up to 250 bytes of memory, however few it takes in the file."""

_CHUNK = 1 << 20
_SAMPLE = 64 * 1024
# Controls that text may hold: \a \b \t \n \v \f \r and escape.
_NOT_TEXT = bytes(set(range(32)) - {7, 8, 9, 10, 11, 12, 13, 27})
_MAX_CONTROL_SHARE = 0.05
_PACKED = {
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7z",
}
_ENCODINGS = {  # PowerShell's `>` writes UTF-16; the longer marks first
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Document(NamedTuple):
    """What a file tells."""

    failure: Failure
    place: str
    """The cell of a notebook that the failure was first seen in; empty where there is none."""
    notes: tuple[str, ...]
    """What the reader has to know about the file itself, e.g. that it ends too early."""


def read_document(
    stream: BinaryIO, name: str, *, versions: VersionScanner | None = None
) -> Document:
    """Return what ``stream``, a file called ``name``, tells; ``versions`` is shown all of its text.

    Raises :class:`UnusableInput` for anything but text, and ``OSError`` of the stream.
    """
    notes: list[str] = []
    chunks = _chunks(stream)
    first = next(chunks, b"")
    if first.startswith(GZIP):
        chunks = unpacked(itertools.chain([first], chunks), notes)
        first = next(chunks, b"")
        name = name.removesuffix(".gz")
    encoding = next((_ENCODINGS[mark] for mark in _ENCODINGS if first.startswith(mark)), None)
    if encoding:
        chunks = _recoded(itertools.chain([first], chunks), encoding)
        first = next(chunks, b"")
    if not first:
        notes.append(messages.CLI_EMPTY)
    _check_is_text(first)
    chunks = itertools.chain([first], chunks)
    if first and (is_notebook(first) or name.lower().endswith(".ipynb")):
        failure, place = _read_notebook(chunks, name, versions, notes)
    elif is_html(first, name):
        sections = ((_cell(item.cell), item.text) for item in page_text(chunks))
        failure, place = _read_sections(sections, versions)
    else:
        failure, place = _read_text(chunks, versions), ""
    if versions:
        versions.feed(b"\n")
    return Document(failure, place, tuple(notes))


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while (data := _next_chunk(stream)) != b"":
        if data is None:  # a pipe that does not block, and is empty just now
            select.select([stream], [], [])
        else:
            yield data


def _next_chunk(stream: BinaryIO) -> bytes | None:
    return stream.read(_CHUNK)


def _check_is_text(first: bytes) -> None:
    for mark, name in _PACKED.items():
        if first.startswith(mark):
            raise UnusableInput(messages.CLI_PACKED.format(name=name))
    sample = first[:_SAMPLE]
    controls = len(sample) - len(sample.translate(None, _NOT_TEXT))
    if controls > len(sample) * _MAX_CONTROL_SHARE:
        raise UnusableInput(messages.CLI_BINARY)


def _recoded(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in chunks:
        if text := decoder.decode(chunk):
            yield text.encode("utf-8", "replace")
    if text := decoder.decode(b"", final=True):
        yield text.encode("utf-8", "replace")


def _read_text(chunks: Iterable[bytes], versions: VersionScanner | None) -> Failure:
    decoder = TextDecoder()
    for chunk in chunks:
        decoder.feed(chunk)
        if versions:
            versions.feed(chunk)
    return decoder.close()


def _read_notebook(
    chunks: Iterator[bytes], name: str, versions: VersionScanner | None, notes: list[str]
) -> tuple[Failure, str]:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MAX_NOTEBOOK:
            break
    cells = None
    if len(data) > MAX_NOTEBOOK or sum(data.count(mark) for mark in b"{[,") > MAX_VALUES:
        notes.append(messages.CLI_TOO_LARGE_NOTEBOOK)
    else:
        try:
            cells = cell_outputs(data)
        except ValueError as error:
            if name.lower().endswith(".ipynb"):
                raise UnusableInput(str(error)) from error
    if cells is None:
        # Or some other JSON, which is a text like any other.
        return _read_text(itertools.chain(_cut(data), chunks), versions), ""
    sections = (
        (
            messages.UNNUMBERED_CELL.format(position=cell.position)
            if cell.execution_count is None
            else messages.cell(cell.execution_count),
            cell.text + b"\n",
        )
        for cell in cells
    )
    return _read_sections(sections, versions, notebook=True)


def _cut(data: bytearray) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK):
        yield bytes(data[start : start + _CHUNK])


def _cell(number: int | None) -> str:
    return "" if number is None else messages.cell(number)


def _read_sections(
    sections: Iterable[tuple[str, str | bytes]],
    versions: VersionScanner | None,
    *,
    notebook: bool = False,
) -> tuple[Failure, str]:
    """Return the failure that the sections together tell of, and the first that tells of it.

    The first that tells of an error as sticky as that one: out of memory, from which a program goes
    on, does not hide the assertion after it.
    """
    whole = TextDecoder(notebook=notebook)
    places: dict[bool | None, str] = {}
    for place, texts in itertools.groupby(sections, key=lambda item: item[0]):
        own = TextDecoder(notebook=notebook)
        for _, text in texts:
            data = text.encode("utf-8", "replace") if isinstance(text, str) else text
            whole.feed(data)
            own.feed(data)
            if versions:
                versions.feed(data)
        alone = own.close()
        if alone.kind != "not_cuda":
            places.setdefault(alone.sticky, place)
    failure = whole.close()
    return failure, "" if failure.kind == "not_cuda" else places.get(failure.sticky, "")
