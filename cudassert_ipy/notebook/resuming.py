"""The first moments of a kernel after a restart in place (private interfaces as in ``kernel``)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.notebook.kernel import in_turn, parent_of_current_cell
from cudassert_ipy.restart.start import take_over

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cudassert_ipy.restart.handoff import Handoff


def schedule_resume(
    shell: Any, handoff: Handoff, work: Callable[[], Awaitable[None]], *, settle: float = 0.8
) -> None:
    """Run ``work()`` once the kernel's loop starts, before any request; call it at load time.

    Around it: subshells are made again, ``settle`` seconds pass (front ends subscribe again
    up to 0.4 s after the load, as measured; earlier output is lost and the cell stays busy), output
    belongs to the original cell, the kernel is busy, then idle, an owed reply is sent, and the
    prompt numbers go on.
    """
    from tornado.ioloop import IOLoop

    take_over(handoff.cwd, handoff.sys_path)
    listening = _note_interrupts()

    async def arrive() -> None:
        with listening:
            _recreate_subshells(shell.kernel, handoff.subshell_ids)
            await asyncio.sleep(settle)
            await _resume(shell, handoff, work)

    in_turn(shell.kernel, IOLoop.current(), arrive)


_interrupts: list[int] = []


def interrupted() -> bool:
    """Whether a SIGINT came since the load and between the cells of the resume that runs now.

    A cell that runs gets its SIGINT itself. What came before the load was lost with the exec.
    """
    return bool(_interrupts)


def _note_interrupts() -> contextlib.ExitStack:
    """Note SIGINT from now to the end of the result, instead of ignoring it. Main thread only."""
    _interrupts.clear()
    before = signal.signal(signal.SIGINT, lambda number, _: _interrupts.append(number))
    listening = contextlib.ExitStack()
    listening.callback(signal.signal, signal.SIGINT, signal.SIG_DFL if before is None else before)
    return listening


def here(shell: Any, handoff: Handoff) -> Handoff:
    """Return ``handoff`` as one for the kernel that runs now and the cell that runs now.

    For one that a user took up after a restart by hand: nothing is owed, the page's subshells are
    the new kernel's, and numbers go on from here where they are not behind already.
    """
    parent = parent_of_current_cell(shell)
    return replace(
        handoff,
        parent=parent.message if parent is not None else None,
        idents=parent.idents if parent is not None else (),
        reply_owed=False,
        subshell_ids=(),
        inputs=(),
    )


def resume_soon(shell: Any, handoff: Handoff, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work()`` right after the running cell, its output too; ``handoff`` is from ``here``."""
    kernel = shell.kernel

    async def go_on() -> None:
        with _note_interrupts():
            await _resume(shell, handoff, work)

    in_turn(kernel, kernel.io_loop, go_on)


async def _resume(shell: Any, handoff: Handoff, work: Callable[[], Awaitable[None]]) -> None:
    kernel = shell.kernel
    take_parent(shell, handoff)
    parent = _message(handoff)
    kernel._publish_status("busy", "shell", parent=parent)
    failure: BaseException | None = None
    try:
        await work()
    except BaseException as error:  # a kernel that never says idle is dead to every front end
        failure = error
        print(messages.RESUME_BROKEN.format(error=_name(error)), file=sys.stderr)
    restore_numbers(shell, handoff)
    take_parent(shell, handoff)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if handoff.reply_owed and parent is not None:
        _send_owed_reply(kernel, parent, handoff, failure)
    kernel._publish_status("idle", "shell", parent=parent)


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def take_parent(shell: Any, handoff: Handoff) -> None:
    """Route output to the cell that asked for the restart. Needed again after every cell."""
    parent = _message(handoff)
    if parent is not None:
        shell.kernel.set_parent(_idents(handoff), parent)


def drop_output(shell: Any, handoff: Handoff) -> None:
    """Route output to a request that nobody made: front ends ignore it.

    The streams stay the objects they are, so that a logging handler made in a set-up cell works on.
    """
    header = dict((_message(handoff) or {}).get("header", {}))
    header["msg_id"] = secrets.token_hex(16)
    shell.kernel.set_parent(_idents(handoff), _request(header))


def restore_numbers(shell: Any, handoff: Handoff) -> None:
    """Let prompt numbers go on, and give ``In`` back its old entries for cells that did not run."""
    # Never back below a number that was used: IPython would complain about its history database.
    following = max(handoff.execution_count, shell.execution_count)
    history = shell.history_manager
    for kept in (history.input_hist_raw, history.input_hist_parsed):
        kept.extend([""] * (following - len(kept)))
        del kept[following:]
        for number, source in enumerate(handoff.inputs[:following]):
            kept[number] = kept[number] or source
    shell.execution_count = following


def _message(handoff: Handoff) -> dict[str, Any] | None:
    header = (handoff.parent or {}).get("header")
    if not isinstance(header, dict) or not isinstance(header.get("msg_id"), str):
        return None
    return _request(header)


def _request(header: dict[str, Any]) -> dict[str, Any]:
    return {
        "header": header,
        "msg_id": header["msg_id"],
        "msg_type": header.get("msg_type", "execute_request"),
        "parent_header": {},
        "metadata": {},
        "content": {},
        "buffers": [],
    }


def _idents(handoff: Handoff) -> list[bytes]:
    with contextlib.suppress(ValueError):
        return [bytes.fromhex(ident) for ident in handoff.idents]
    return []


def _send_owed_reply(
    kernel: Any, parent: dict[str, Any], handoff: Handoff, failure: BaseException | None
) -> None:
    content: dict[str, Any] = {
        "status": "ok",
        "execution_count": handoff.execution_count - 1,
        "user_expressions": {},
        "payload": [],
    }
    if failure is not None:
        content["status"] = "error"
        content.update(ename=type(failure).__name__, evalue=str(failure), traceback=[])
    channel = getattr(kernel, "shell_channel_thread", None)
    if channel is not None:  # ipykernel 7: only that thread writes to the socket
        stream = channel.manager.get_subshell_to_shell_channel_socket(None)
    else:
        stream = kernel.shell_stream
    metadata = {"status": content["status"]}
    kernel.session.send(
        stream, "execute_reply", content, parent, ident=_idents(handoff), metadata=metadata
    )


def _recreate_subshells(kernel: Any, ids: tuple[str, ...]) -> None:
    """Make subshells with the ids the page knows, else every widget of it is dead.

    ``_create_subshell`` draws its id from the module's ``uuid``; that is replaced for the call
    (seen in 7.0, 7.1 and 7.4).
    """
    import uuid

    channel: Any = getattr(kernel, "shell_channel_thread", None)
    manager: Any = getattr(channel, "manager", None)
    module: Any = sys.modules.get("ipykernel.subshell_manager")
    if not ids or not hasattr(manager, "_create_subshell") or not hasattr(module, "uuid"):
        return

    class FixedUuid:
        def __init__(self, value: uuid.UUID) -> None:
            self.value = value

        def uuid4(self) -> uuid.UUID:
            return self.value

    def create() -> None:
        known = set(manager.list_subshell())
        for text in ids[:64]:
            try:
                value = uuid.UUID(text)
            except ValueError:
                continue
            if str(value) in known:
                continue
            module.uuid = FixedUuid(value)
            try:
                manager._create_subshell()
            finally:
                module.uuid = uuid

    channel.io_loop.add_callback(create)
