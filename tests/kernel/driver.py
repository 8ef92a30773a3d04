"""Drive a real kernel as a front end does, through jupyter_client."""

from __future__ import annotations

import json
import os
import queue
import time
from dataclasses import dataclass, field
from typing import Any

import jupyter_client
import pytest

DIAGNOSIS = "application/vnd.cudassert.diagnosis.v1+json"
PANEL = "application/vnd.jupyter.widget-view+json"

SETUP = """\
import torch
from torch import nn
model = nn.Embedding(1000, 128).to("cuda")
ids = torch.arange(32).reshape(4, 8)
ids[2, 5] = 1000
batch = {"ids": ids.to("cuda")}"""

FAILING = """\
rows = model(batch["ids"])
score = rows.sum()
print("still running")
value = score.item()"""


@dataclass
class Outcome:
    """What one cell showed and replied."""

    reply: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return str(self.reply.get("status"))

    @property
    def count(self) -> int:
        return int(self.reply["execution_count"])

    def stream(self, name: str) -> str:
        return "".join(
            m["content"]["text"]
            for m in self.messages
            if m["msg_type"] == "stream" and m["content"]["name"] == name
        )

    @property
    def stdout(self) -> str:
        return self.stream("stdout")

    @property
    def stderr(self) -> str:
        return self.stream("stderr")

    @property
    def traceback(self) -> str:
        return "\n".join(
            "\n".join(m["content"]["traceback"]) for m in self.messages if m["msg_type"] == "error"
        )

    @property
    def bundles(self) -> list[dict[str, Any]]:
        """Data of displays and updates, in order."""
        return [
            m["content"]["data"]
            for m in self.messages
            if m["msg_type"] in ("display_data", "update_display_data", "execute_result")
        ]

    @property
    def diagnoses(self) -> list[dict[str, Any]]:
        return [data[DIAGNOSIS] for data in self.bundles if DIAGNOSIS in data]

    @property
    def panels(self) -> list[str]:
        """Model ids of the widgets shown."""
        return [data[PANEL]["model_id"] for data in self.bundles if PANEL in data]


class Kernel:
    """A kernel and its client; the extension is loaded unless asked otherwise."""

    def __init__(self, environment: dict[str, str], arguments: list[str] | None = None) -> None:
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        # ipykernel leaves fd 1 and 2 alone where it sees pytest; users' kernels do not.
        inherited = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        self.manager.start_kernel(
            env={**inherited, "OMP_NUM_THREADS": "1", **environment},
            extra_arguments=arguments or [],
        )
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.log: list[dict[str, Any]] = []
        self.replies: dict[str, dict[str, Any]] = {}

    def send(self, code: str, **options: Any) -> str:
        return str(self.client.execute(code, **options))

    def finish(self, message_id: str, timeout: float = 60.0) -> Outcome:
        """Wait until the request is answered and idle; return what it brought."""

        def over() -> bool:
            self._receive_replies()
            idle = any(
                m["msg_type"] == "status" and m["content"]["execution_state"] == "idle"
                for m in self.log
                if m["parent_header"].get("msg_id") == message_id
            )
            return idle and message_id in self.replies

        self.wait_until(over, timeout)
        return self.outcome(message_id, self.replies[message_id])

    def outcome(self, message_id: str, reply: dict[str, Any] | None = None) -> Outcome:
        found = [m for m in self.log if m["parent_header"].get("msg_id") == message_id]
        return Outcome(reply or {}, found)

    def run(self, code: str, timeout: float = 60.0, **options: Any) -> Outcome:
        return self.finish(self.send(code, **options), timeout)

    def wait_until(self, condition: Any, timeout: float = 60.0) -> None:
        """Collect published messages until ``condition()`` holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {timeout} s: {[m['msg_type'] for m in self.log[-9:]]}")
            self._published()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the kernel, by JSON."""
        code = f"import json as _j; print('@@' + _j.dumps({expression}))"
        outcome = self.run(code, store_history=False)
        assert outcome.status == "ok", outcome.traceback
        line = next(s for s in outcome.stdout.splitlines() if s.startswith("@@"))
        return json.loads(line[2:])

    def report(self) -> dict[str, Any]:
        outcome = self.run("%cuda_debug report --json", store_history=False)
        assert outcome.status == "ok", outcome.stderr
        return json.loads(outcome.stdout)

    def send_comm(self, comm_id: str, data: dict[str, Any]) -> str:
        """Send what a widget in the page sends (a click, a change)."""
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def models(self) -> dict[str, dict[str, Any]]:
        """State of every widget, as the page knows it."""
        states: dict[str, dict[str, Any]] = {}
        for message in self.log:
            content = message["content"]
            if message["msg_type"] == "comm_open" and content["target_name"] == "jupyter.widget":
                states[content["comm_id"]] = dict(content["data"]["state"])
            elif message["msg_type"] == "comm_msg" and content["data"].get("method") == "update":
                states.setdefault(content["comm_id"], {}).update(content["data"]["state"])
            elif message["msg_type"] == "comm_close":
                states.pop(content["comm_id"], None)
        return states

    def visible(self, root: str) -> dict[str, dict[str, Any]]:
        """Widgets that hang below ``root`` now."""
        models = self.models()
        found: dict[str, dict[str, Any]] = {}
        waiting = [root]
        while waiting:
            key = waiting.pop(0)
            if key in found or key not in models:
                continue
            found[key] = models[key]
            for value in models[key].values():
                items = value if isinstance(value, list) else [value]
                waiting += [
                    item.removeprefix("IPY_MODEL_")
                    for item in items
                    if isinstance(item, str) and item.startswith("IPY_MODEL_")
                ]
        return found

    def click(self, root: str, label: str, timeout: float = 30.0) -> None:
        """Click the button with that label (or that begins so) below the widget ``root``."""

        def button() -> str | None:
            buttons = {
                state["description"]: key
                for key, state in self.visible(root).items()
                if state.get("_model_name") == "ButtonModel" and not state.get("disabled")
            }
            begin_so = [text for text in buttons if text.startswith(label)]
            return buttons.get(label) or (buttons[begin_so[0]] if begin_so else None)

        self.wait_until(lambda: button() is not None, timeout)
        key = button()
        assert key is not None
        self.send_comm(key, {"method": "custom", "content": {"event": "click"}})

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def restart_by_hand(self) -> None:
        """Restart as a front end's menu does: a new process on the old connection file."""
        self.manager.restart_kernel(now=True)
        self.client.stop_channels()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def _receive_replies(self) -> None:
        while True:
            try:
                message = self.client.get_shell_msg(timeout=0)
            except queue.Empty:
                return
            self.replies[message["parent_header"].get("msg_id")] = dict(message["content"])

    def _published(self) -> list[dict[str, Any]]:
        found = []
        wait = 0.1
        while True:
            try:
                found.append(self.client.get_iopub_msg(timeout=wait))
            except queue.Empty:
                break
            wait = 0
        self.log += found
        return found
