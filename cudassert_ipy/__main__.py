"""``python -m cudassert_ipy explain [FILE|-] [--json]``: read a log, say what went wrong.

Exit status: 0 for a fatal or suspicious CUDA error, 1 for none, 2 for input that cannot be used.
Imports no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.model import Failure

_CHUNK = 1 << 20
_MAX_NOTEBOOK = 200 * 1024 * 1024
_SAMPLE = 64 * 1024
# Controls that text may hold: \a \b \t \n \v \f \r and escape.
_NOT_TEXT = bytes(set(range(32)) - {7, 8, 9, 10, 11, 12, 13, 27})
_MAX_CONTROL_SHARE = 0.05


class UnusableInput(Exception):  # noqa: N818  (a reason, not a defect)
    """The input cannot be read as text; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: of this process); return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cudassert_ipy", description=messages.CLI)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "explain", help=messages.CLI_EXPLAIN, description=messages.CLI_EXPLAIN
    )
    command.add_argument("file", nargs="?", default="-", metavar="FILE", help=messages.CLI_FILE)
    command.add_argument("--json", action="store_true", help=messages.CLI_JSON)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # said by the subcommand, whose usage lists what it accepts
        command.error(messages.CLI_UNKNOWN.format(arguments=" ".join(unknown)))
    try:
        failure, place = _decode(options.file)
    except (UnusableInput, OSError) as error:
        sys.stderr.write(messages.CLI_UNUSABLE.format(file=options.file, reason=_reason(error)))
        return 2
    _write(failure, place, as_json=options.json)
    return 1 if failure.kind == "not_cuda" else 0


def _decode(name: str) -> tuple[Failure, str]:
    """Return the failure, and for a notebook the cell that it is from."""
    if name == "-":
        return _decode_stream(sys.stdin.buffer, name)
    with Path(name).open("rb") as stream:
        return _decode_stream(stream, name)


def _decode_stream(stream: BinaryIO, name: str) -> tuple[Failure, str]:
    """Decode UTF-8 text: plain, UTF-16 with its mark (PowerShell), or a notebook."""
    from cudassert_ipy.decode.failure import TextDecoder, decode_text
    from cudassert_ipy.decode.notebook_file import is_notebook

    first = stream.read(_CHUNK)
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return decode_text((first + stream.read()).decode("utf-16", "replace")), ""
    sample = first[:_SAMPLE]
    controls = len(sample) - len(sample.translate(None, _NOT_TEXT))
    if controls > len(sample) * _MAX_CONTROL_SHARE:
        raise UnusableInput(messages.CLI_BINARY)
    if name.endswith(".ipynb") or is_notebook(first):
        return _decode_notebook(first + stream.read(_MAX_NOTEBOOK))
    decoder = TextDecoder()
    while first:
        decoder.feed(first)
        first = stream.read(_CHUNK)
    return decoder.close(), ""


def _decode_notebook(data: bytes) -> tuple[Failure, str]:
    from cudassert_ipy.decode.failure import decode_text
    from cudassert_ipy.decode.notebook_file import cell_outputs

    try:
        cells = cell_outputs(data)
    except ValueError as error:
        raise UnusableInput(str(error)) from error
    failure = decode_text(b"\n".join(cell.text for cell in cells))
    if failure.kind == "not_cuda":
        return failure, ""
    for cell in cells:
        own = decode_text(cell.text)
        if own.kind != "not_cuda" and own.sticky == failure.sticky:
            count = cell.execution_count
            unnumbered = messages.UNNUMBERED_CELL.format(position=cell.position)
            return failure, unnumbered if count is None else messages.cell(count)
    return failure, ""


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _write(failure: Failure, place: str, *, as_json: bool) -> None:
    if as_json:
        text = json.dumps(failure.to_dict(), indent=2)
    else:
        from cudassert_ipy.report.text import render_failure

        text = render_failure(failure)
        if place:
            text = f"{place}:\n{text}"
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
