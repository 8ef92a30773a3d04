"""Assertions in the report that torch builds with device-side assertion tracking put in the error.

Only builds compiled with ``TORCH_USE_CUDA_DSA`` print it; ``c10/cuda/CUDADeviceAssertionHost.cpp``
has the words. One field a line; inside a repr the lines are one, with backslash-n between them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HOST_REPORT = "GPU assertion failure message"
"""Words that the report of an assertion starts with."""

_FIELD = re.compile(
    r"(GPU assertion failure message|File containing assertion"
    r"|Device function containing assertion|Thread ID that failed assertion"
    r"|Block ID that failed assertion) = (.*?)(?=\\n|$)"
)
_FILE = re.compile(r"(.*):(\d{1,9})$")
_INDEX = re.compile(r"\[(\d{1,10}),(\d{1,10}),(\d{1,10})\]")


class Reported(NamedTuple):
    """One assertion of the report; what it did not print is empty or None."""

    expression: str
    file: str
    line: int | None
    function: str | None
    block: tuple[int, ...] | None
    thread: tuple[int, ...] | None


class HostReport:
    """Collects the fields of the report line by line."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def read_line(self, text: str) -> list[Reported]:
        """Take one line; return the assertions that it completes."""
        complete = []
        for name, value in _FIELD.findall(text):
            key = name.partition(" ")[0]
            if key == "GPU":
                complete += self.close()
            elif not self._fields:
                continue
            self._fields[key] = value.strip()
            if key == "Block":
                complete += self.close()
        return complete

    def close(self) -> list[Reported]:
        """Return the assertion whose last fields are missing, if any."""
        fields, self._fields = self._fields, {}
        if "GPU" not in fields:
            return []
        file = _FILE.match(fields.get("File", ""))
        return [
            Reported(
                fields["GPU"],
                file[1] if file else fields.get("File", ""),
                int(file[2]) if file else None,
                fields.get("Device") or None,
                _triple(fields.get("Block", "")),
                _triple(fields.get("Thread", "")),
            )
        ]


def _triple(text: str) -> tuple[int, ...] | None:
    match = _INDEX.match(text)
    return tuple(int(number) for number in match.groups()) if match else None
