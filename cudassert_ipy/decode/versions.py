"""The versions that a text mentions, for a bug report."""

from __future__ import annotations

import re

_OVERLAP = 200
_MAX_TRIES = 1000
# What follows has to be there, since a version may go on in the next chunk.
_NUMBER = re.compile(
    rb"\d{1,3}(?:\.[0-9a-zA-Z+_-]{1,30}){1,4}(?=[^.0-9a-zA-Z+_-]|\.[^0-9a-zA-Z+_-])"
)
# What stands in front of a version where torch.utils.collect_env, pip or the paths of a traceback
# print it, the surest first. Plain bytes, since each is looked for in 150 MB and regexes take ten
# times as long.
_ANCHORS = {
    b"PyTorch version: ": "torch",
    b"torch==": "torch",
    b"torch-": "torch",
    b"torch ": "torch",
    b"CUDA used to build PyTorch: ": "cuda",
    b"ROCM used to build PyTorch: ": "rocm",
    b"Nvidia driver version: ": "driver",
    b"Driver Version: ": "driver",
    b"Python version: ": "python",
    b"/python": "python",
}


class VersionScanner:
    """Remembers the first version of each kind in a stream of bytes, however it is chunked.

    The stream has to end with a newline.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, bytes] = {}
        self._rest = b""

    @property
    def found(self) -> dict[str, str]:
        """The versions, of each kind the one from the surest place."""
        versions: dict[str, str] = {}
        for anchor, name in _ANCHORS.items():
            if anchor in self._found:
                versions.setdefault(name, self._found[anchor].decode("ascii"))
        return versions

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the text."""
        data = self._rest + data
        for anchor in _ANCHORS:
            version = None if anchor in self._found else _search(data, anchor)
            if version:
                self._found[anchor] = version
        self._rest = data[-_OVERLAP:]


def _search(data: bytes, anchor: bytes) -> bytes | None:
    at = -1
    for _ in range(_MAX_TRIES):
        at = data.find(anchor, at + 1)
        if at < 0:
            break
        is_word = anchor[:1].isalpha() and data[max(at - 1, 0) : at].isalnum()
        match = None if is_word else _NUMBER.match(data, at + len(anchor))
        if match:
            return match[0]
    return None
