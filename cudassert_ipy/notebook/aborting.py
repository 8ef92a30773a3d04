"""Answer ``aborted`` to requests that a kernel received but has not begun.

They would be lost with the process, and their cells would stay busy for ever. Private interfaces of
ipykernel, seen in 7.4 and, quite different, in 6.29; where they are missing nothing is found.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def abort_received(kernel: Any) -> None:
    """Answer every request to the main shell that waits; call from the main thread.

    Not only execute requests: a client that asked for anything else waits for its reply as well.
    """
    channel: Any = getattr(kernel, "shell_channel_thread", None)
    if channel is not None:  # ipykernel 7
        _pass_through(channel)
        reply_to = channel.manager.get_subshell_to_shell_channel_socket(None)
        pair = channel.manager._shell_channel_to_main
        waiting = [*_waiting_in_tasks(), *_waiting_in_socket(pair.to_socket)]
    else:
        reply_to = kernel.shell_stream
        waiting = _waiting_in_queue(kernel)
    for frames in waiting:
        if len(frames) == 1:  # the kernel's own "stop aborting"
            continue
        try:
            idents, rest = kernel.session.feed_identities(frames, copy=False)
            message = kernel.session.deserialize(rest, content=True, copy=False)
        except ValueError as error:  # bad signature: ipykernel drops such a message as well
            kernel.log.warning("message dropped before the restart: %s", error)
            continue
        kernel._publish_status("busy", "shell", parent=message)
        kernel._send_abort_reply(reply_to, message, idents)
        kernel._publish_status("idle", "shell", parent=message)
    if channel is not None:
        _pass_through(channel)
    else:
        reply_to.flush()


def _waiting_in_socket(socket: Any) -> Iterator[Any]:
    while socket.poll(0):
        yield socket.recv_multipart(copy=False)


def _waiting_in_queue(kernel: Any) -> list[Any]:
    """Take the requests out of ipykernel 6's queue, which also holds its own callbacks."""
    kernel.shell_stream.flush()  # what lies in the socket goes to the queue
    requests, others = [], []
    while not kernel.msg_queue.empty():
        entry = kernel.msg_queue.get_nowait()
        _, handler, arguments = entry
        if handler == kernel.dispatch_shell:
            requests.append(arguments[0])
        else:
            others.append(entry)
    for entry in others:
        kernel.msg_queue.put_nowait(entry)
    return requests


def _waiting_in_tasks() -> list[Any]:
    """Take the messages of requests that were read already and wait for the running one to end.

    Each is a task around ``Kernel.shell_main`` that waits for the main lock, or was not started;
    before that, a task around a wrapper (``run_in_context``) that was not started. They are
    cancelled, so that none is answered twice should the exec fail.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # no loop, no tasks
        return []
    found = []
    for task in asyncio.all_tasks(loop):
        message = None if task is asyncio.current_task() else _message_of(task.get_coro())
        if message is not None:
            task.cancel()
            found.append(message)
    return found


def _message_of(coroutine: Any) -> Any:
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return None
    new = inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
    name = frame.f_code.co_name
    if name == "run_in_context" and new:
        arguments = frame.f_locals.get("args") or (None,)
        return arguments[-1]
    if name == "shell_main" and (new or _waits_for_lock(coroutine)):
        in_main = frame.f_locals.get("subshell_id") is None
        return frame.f_locals.get("msg") if in_main else None
    return None


def _waits_for_lock(coroutine: Any) -> bool:
    awaited = getattr(coroutine, "cr_await", None)
    code = getattr(awaited, "cr_code", None)
    return code is not None and code is asyncio.Lock.acquire.__code__


def _pass_through(channel: Any) -> None:
    """Wait until the thread between sockets and main shell has handed over what it had."""
    for _ in range(2):
        passed = threading.Event()
        channel.io_loop.add_callback(passed.set)
        passed.wait(0.5)
        time.sleep(0.01)
