"""``python -m cudassert_ipy explain [FILE ...|-] [--json|--markdown]``: say what went wrong.

Exit status as of grep: 2 if any input cannot be used or the result not be written, else 0 if a CUDA
error was found in any, else 1. Imports no torch.
"""

from __future__ import annotations

import os
import sys

# All else is imported where it is needed, after Ctrl-C has been provided for.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, TextIO

    from cudassert_ipy.decode.document import Document
    from cudassert_ipy.decode.versions import VersionScanner

_FOUND, _NOTHING_FOUND, _UNUSABLE, _INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: of this process); return the exit status."""
    try:
        status = _explain(_parse(arguments))
    except SystemExit as stop:  # argparse has shown the help or what is wrong
        status = stop.code if isinstance(stop.code, int) else _UNUSABLE
    # Python would flush at exit, and a failure then is status 120.
    status = status if _write("") else _UNUSABLE
    _complain("")
    return status


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    import argparse

    from cudassert_ipy import messages

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
    import json

    from cudassert_ipy import messages
    from cudassert_ipy.decode.gzip_file import UnusableInput
    from cudassert_ipy.decode.versions import VersionScanner
    from cudassert_ipy.report.clean import clean_line

    files = options.files or ["-"]
    records: list[dict[str, Any]] = []
    unusable = found = False
    for number, file in enumerate(files):
        name = messages.CLI_STANDARD_INPUT if file == "-" else clean_line(file) or "''"
        versions = VersionScanner() if options.markdown else None
        try:
            document = _read(file, versions)
        except (UnusableInput, OSError, ValueError, MemoryError) as error:
            _complain(messages.CLI_UNUSABLE.format(file=name, reason=_reason(file, error)))
            unusable = True
            continue
        found = found or document.failure.kind != "not_cuda"
        for note in document.notes:
            _complain(messages.CLI_NOTE.format(file=name, note=note))
        if options.json:
            records.append(_record(name, document))
        else:
            title = name if len(files) > 1 else ""
            blank = "\n" if title and number else ""
            found_versions = versions.found if versions else None
            if not _write(blank + _text(document, title, found_versions)):
                return _UNUSABLE
    if options.json and len(files) > 1:
        unusable = not _write(json.dumps(records, indent=2)) or unusable
    elif records:
        unusable = not _write(json.dumps(records[0]["failure"], indent=2)) or unusable
    return _UNUSABLE if unusable else _FOUND if found else _NOTHING_FOUND


def _read(file: str, versions: VersionScanner | None) -> Document:
    from pathlib import Path

    from cudassert_ipy import messages
    from cudassert_ipy.decode.document import read_document
    from cudassert_ipy.decode.gzip_file import UnusableInput

    if not file:
        raise FileNotFoundError(messages.CLI_NO_NAME)  # Path("") is the current directory
    if file != "-":
        with Path(file).open("rb") as stream:
            return read_document(stream, file, versions=versions)
    if sys.stdin is None:
        raise UnusableInput(messages.CLI_NO_INPUT)
    if sys.stdin.isatty():
        _complain(messages.CLI_TERMINAL)
    return read_document(sys.stdin.buffer, file, versions=versions)


def _reason(file: str, error: Exception) -> str:
    from cudassert_ipy import messages

    if isinstance(error, FileNotFoundError) and set("*?[") & set(file):
        return messages.CLI_NO_MATCH  # the shell left the pattern as it is
    if isinstance(error, MemoryError):
        return messages.CLI_NO_MEMORY
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _record(name: str, document: Document) -> dict[str, Any]:
    failure = document.failure.to_dict()
    return {"file": name, "place": document.place or None, "failure": failure}


def _text(document: Document, title: str, versions: dict[str, str] | None) -> str:
    """Return the document for people; with ``versions`` as Markdown."""
    from cudassert_ipy import messages

    failure, place = document.failure, document.place
    if versions is not None:
        from cudassert_ipy.report.markdown import render_failure_markdown

        return render_failure_markdown(failure, title=title, place=place, versions=versions)
    from cudassert_ipy.report.text import render_failure

    heading = messages.CLI_HEADING.format(file=title) + "\n" if title else ""
    in_cell = f"{place}: " if place else ""
    return heading + in_cell + render_failure(failure)


def _write(text: str) -> bool:
    """Write ``text`` and what is not written yet; return whether whoever reads it can have it."""
    from cudassert_ipy import messages

    if sys.stdout is None:
        if text:
            _complain(messages.CLI_NOT_WRITTEN.format(reason=messages.CLI_NO_OUTPUT))
        return not text
    try:
        if text:
            sys.stdout.flush()
            sys.stdout.buffer.write(text.rstrip("\n").encode("utf-8", "replace") + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)  # the reader has seen enough
    except OSError as error:
        _discard(sys.stdout)
        _complain(messages.CLI_NOT_WRITTEN.format(reason=error.strerror or error))
        return False
    return True


def _complain(text: str) -> None:
    """Say on stderr what the exit status does not, if there is anybody to hear it."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Send what ``stream`` still holds nowhere: Python would fail once more to write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _leave_on_interrupt() -> None:
    """Let Ctrl-C end the process at once, and without a traceback.

    There is nothing to clean up, and Python turns a KeyboardInterrupt during an import into other
    exceptions. One that is ignored, as under nohup, stays ignored.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))


if __name__ == "__main__":
    try:
        _leave_on_interrupt()
        sys.exit(main())
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
