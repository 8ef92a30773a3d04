"""The restart in place, on real ipykernel through jupyter_client, without the extension."""

from __future__ import annotations

import os
import queue
import time
from pathlib import Path

import jupyter_client
import pytest

pytestmark = pytest.mark.kernel

HERE = Path(__file__).parent


class Reply:
    """What one request brought: reply content, output texts in order, status changes."""

    def __init__(self, reply, outputs):
        self.reply = reply
        self.outputs = outputs

    @property
    def status(self):
        return self.reply["status"] if self.reply else None

    @property
    def text(self):
        return "".join(
            message["content"].get("text", "")
            or message["content"].get("data", {}).get("text/plain", "")
            or "\n".join(message["content"].get("traceback", []))
            for message in self.outputs
        )


class Kernel:
    def __init__(self, manager, client):
        self.manager = manager
        self.client = client
        self.log: list[dict] = []

    @property
    def pid(self):
        return self.manager.provisioner.pid

    def send(self, code):
        return self.client.execute(code, allow_stdin=False)

    def collect(self, *ids, timeout=30.0, idles=1):
        """Wait for the reply and ``idles`` idle messages of each request; keep all of iopub."""
        replies, seen = {}, dict.fromkeys(ids, 0)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self.client.get_shell_msg(timeout=0.02)
                replies[message["parent_header"].get("msg_id")] = message["content"]
            except queue.Empty:
                pass
            try:
                message = self.client.get_iopub_msg(timeout=0.02)
            except queue.Empty:
                message = None
            if message is not None:
                self.log.append(message)
                parent = message["parent_header"].get("msg_id")
                state = message["content"].get("execution_state")
                if parent in seen and state == "idle":
                    seen[parent] += 1
            if all(seen[i] >= idles and i in replies for i in ids):
                break
        else:
            raise AssertionError(f"no answer: {seen}, replies {list(replies.values())}")
        return [Reply(replies[i], self.outputs(i)) for i in ids]

    def outputs(self, request):
        kinds = ("stream", "execute_result", "display_data", "error")
        return [
            message
            for message in self.log
            if message["parent_header"].get("msg_id") == request and message["msg_type"] in kinds
        ]

    def run(self, code, **options):
        return self.collect(self.send(code), **options)[0]

    def restart_by_button(self, call):
        """Run a cell that restarts afterwards and wait until the new process is done."""
        request = self.send(call)
        reply = self.collect(request, idles=2)[0]
        assert reply.status == "ok", reply.text
        return reply


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("jupyter")
    runtime = base / "runtime"
    runtime.mkdir(mode=0o700)
    return base, runtime


@pytest.fixture
def kernel(folders, monkeypatch, tmp_path):
    base, runtime = folders
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime))
    environment = os.environ | {
        "IPYTHONDIR": str(base / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": "1",
        "CUDASSERT_DISABLE": "1",
    }
    environment.pop("CUDA_LAUNCH_BLOCKING", None)
    environment.pop("PYTEST_CURRENT_TEST", None)  # ipykernel would not redirect its descriptors
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment, cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    running = Kernel(manager, client)
    assert running.run("%load_ext restart_probe\nimport restart_probe as probe").status == "ok"
    yield running
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_magic_restarts_within_its_cell(kernel):
    """The new process has the same pid, runs the set-up and answers the cell it was called from."""
    pid = kernel.pid
    port = kernel.manager.shell_port
    kernel.run("x = 1")
    reply = kernel.run("probe.magic(cells=probe.cells('x = 41', 'x += 1; x', first=1))")
    assert reply.status == "ok"
    assert reply.reply["execution_count"] == 3
    assert "0/2 Running cell [1] again" in reply.text
    assert "Set-up done: 2 cells ran again." in reply.text
    after = kernel.run("import os; print(os.getpid(), os.environ.get('CUDA_LAUNCH_BLOCKING'), x)")
    assert after.text == f"{pid} 1 42\n"
    assert after.reply["execution_count"] == 4
    assert kernel.manager.shell_port == port
