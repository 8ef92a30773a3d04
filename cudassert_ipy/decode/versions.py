"""The versions that a text mentions, for a bug report."""

from __future__ import annotations

import re

_OVERLAP = 200
_NUMBER = rb"(\d{1,3}(?:\.[0-9a-zA-Z+_-]{1,30}){1,4})"
# As torch.utils.collect_env, pip, nvidia-smi and the paths of tracebacks print them.
_PATTERNS = {
    "torch": re.compile(rb"(?:PyTorch version: |\btorch(?:==|-| (?=\d+\.\d+\.\d)))" + _NUMBER),
    "cuda": re.compile(rb"CUDA used to build PyTorch: " + _NUMBER),
    "rocm": re.compile(rb"ROCM used to build PyTorch: " + _NUMBER),
    "driver": re.compile(rb"(?:Nvidia driver version: |Driver Version: )" + _NUMBER),
    "python": re.compile(rb"(?:Python version: |[/\\]python(?=3\.\d+[/\\]))" + _NUMBER),
}


class VersionScanner:
    """Remembers the first version of each kind in a stream of bytes, however it is chunked.

    The stream has to end with a newline.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the text."""
        data = self._rest + data
        for name, pattern in _PATTERNS.items():
            match = None if name in self.found else pattern.search(data)
            if match and match.end() < len(data):  # else it may go on in the next chunk
                self.found[name] = match[1].decode("ascii").rstrip(".-_+")
        self._rest = data[-_OVERLAP:]
