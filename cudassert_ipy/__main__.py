"""``python -m cudassert_ipy explain [FILE ...|-] [--json|--markdown]``: say what went wrong.

Exit status as of grep: 2 if any input cannot be used, else 0 if a CUDA error was found in any, else
1. Imports no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.decode.document import Document
    from cudassert_ipy.decode.versions import VersionScanner

_FOUND, _NOTHING_FOUND, _UNUSABLE, _INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: of this process); return the exit status."""
    options = _parse(arguments)
    try:
        return _explain(options)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cudassert_ipy", description=messages.CLI)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "explain",
        help=messages.CLI_EXPLAIN,
        description=messages.CLI_EXPLAIN,
        epilog=messages.CLI_STATUS,
    )
    command.add_argument("files", nargs="*", metavar="FILE", help=messages.CLI_FILE)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=messages.CLI_JSON)
    form.add_argument("--markdown", action="store_true", help=messages.CLI_MARKDOWN)
    options, others = parser.parse_known_args(arguments)
    unknown = [item for item in others if item.startswith("-") and item != "-"]
    if unknown:  # said by the subcommand, whose usage lists what it accepts
        command.error(messages.CLI_UNKNOWN.format(arguments=ascii(" ".join(unknown))))
    options.files += others  # argparse leaves over the files behind an option
    return options


def _explain(options: argparse.Namespace) -> int:
    from cudassert_ipy.decode.document import UnusableInput
    from cudassert_ipy.decode.versions import VersionScanner
    from cudassert_ipy.report.clean import clean_line

    files = options.files or ["-"]
    records: list[dict[str, Any]] = []
    unusable = found = False
    for number, file in enumerate(files):
        name = messages.CLI_STANDARD_INPUT if file == "-" else clean_line(file)
        versions = VersionScanner() if options.markdown else None
        try:
            document = _read(file, versions)
        except (UnusableInput, OSError, ValueError) as error:
            sys.stderr.write(messages.CLI_UNUSABLE.format(file=name, reason=_reason(file, error)))
            unusable = True
            continue
        found = found or document.failure.kind != "not_cuda"
        if document.note:
            sys.stderr.write(messages.CLI_NOTE.format(file=name, note=document.note))
        if options.json:
            records.append(_record(name, document))
        else:
            title = name if len(files) > 1 else ""
            blank = "\n" if title and number else ""
            found_versions = versions.found if versions else None
            _write(blank + _text(document, title, found_versions))
    if options.json and len(files) > 1:
        _write(json.dumps(records, indent=2))
    elif records:
        _write(json.dumps(records[0]["failure"], indent=2))
    return _UNUSABLE if unusable else _FOUND if found else _NOTHING_FOUND


def _read(file: str, versions: VersionScanner | None) -> Document:
    from cudassert_ipy.decode.document import UnusableInput, read_document

    if file != "-":
        with Path(file).open("rb") as stream:
            return read_document(stream, file, versions=versions)
    if sys.stdin is None:
        raise UnusableInput(messages.CLI_NO_INPUT)
    if sys.stdin.isatty():
        sys.stderr.write(messages.CLI_TERMINAL)
    return read_document(sys.stdin.buffer, file, versions=versions)


def _reason(file: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and set("*?[") & set(file):
        return messages.CLI_NO_MATCH  # the shell left the pattern as it is
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _record(name: str, document: Document) -> dict[str, Any]:
    failure = document.failure.to_dict()
    return {"file": name, "place": document.place or None, "failure": failure}


def _text(document: Document, title: str, versions: dict[str, str] | None) -> str:
    """Return the document for people; with ``versions`` as Markdown."""
    failure, place = document.failure, document.place
    if versions is not None:
        from cudassert_ipy.report.markdown import render_failure_markdown

        return render_failure_markdown(failure, title=title, place=place, versions=versions)
    from cudassert_ipy.report.text import render_failure

    heading = messages.CLI_HEADING.format(file=title) + "\n" if title else ""
    in_cell = f"{place}: " if place else ""
    return heading + in_cell + render_failure(failure)


def _write(text: str) -> None:
    try:
        sys.stdout.buffer.write(text.rstrip("\n").encode("utf-8", "replace") + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
