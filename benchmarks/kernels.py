"""A real kernel for measuring: started, asked and ended through jupyter_client."""

from __future__ import annotations

import os
import queue
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLY_TIMEOUT = 120.0


class Result(NamedTuple):
    """What one cell gave."""

    seconds: float
    """From sending the request until the kernel was idle again."""
    status: str
    outputs: list[dict[str, Any]]
    """Contents of its stream, display_data, execute_result and error messages."""

    def text(self) -> str:
        """Return all streams joined."""
        return "".join(output.get("text", "") for output in self.outputs)


class Kernel:
    """One kernel, fresh and without the user's profile."""

    def __init__(self, directory: str) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CUD")}
        environment["IPYTHONDIR"] = directory
        environment["OMP_NUM_THREADS"] = "1"
        # An installed package has its files compiled; this one may be run from its sources.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._connect()

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        deadline = time.monotonic() + REPLY_TIMEOUT
        # Not wait_for_ready: it sleeps in steps that would be counted as the kernel's. Two
        # questions, since the output channel may connect later than the other one.
        while time.monotonic() < deadline:
            self._client.kernel_info()
            try:
                self._client.get_shell_msg(timeout=0.25)
                self._ask("pass", timeout=2)
            except queue.Empty:
                continue
            return
        msg = "the kernel did not start"
        raise RuntimeError(msg)

    def _ask(self, code: str, timeout: float) -> Result:
        """Run one cell; raise ``queue.Empty`` when nothing is heard for ``timeout`` seconds."""
        started = time.perf_counter()
        request = self._client.execute(code)
        outputs = []
        while True:
            message = self._client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind in ("stream", "display_data", "execute_result", "error"):
                outputs.append(content)
        while True:
            reply = self._client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == request:
                break
        return Result(time.perf_counter() - started, reply["content"]["status"], outputs)

    def run(self, code: str, *, status: str | None = "ok") -> Result:
        """Run one cell; raise RuntimeError unless it ends with ``status`` (None: any)."""
        try:
            result = self._ask(code, REPLY_TIMEOUT)
        except queue.Empty:
            msg = f"no answer in {REPLY_TIMEOUT:.0f} s to: {code}"
            raise RuntimeError(msg) from None
        if status not in (None, result.status):
            errors = [
                f"{out['ename']}: {out['evalue']}" for out in result.outputs if "ename" in out
            ]
            msg = f"this cell ended with {result.status!r}, not {status!r}: {code}\n{errors}"
            raise RuntimeError(msg)
        return result

    def restart(self) -> None:
        """Restart as a front end does, without asking the old process to leave nicely."""
        self._client.stop_channels()
        self._manager.restart_kernel(now=True)
        self._connect()

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@contextmanager
def kernel() -> Iterator[Kernel]:
    """Start a kernel and end it afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        running = Kernel(directory)
        try:
            yield running
        finally:
            running.close()
