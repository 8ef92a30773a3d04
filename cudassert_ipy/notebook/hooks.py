"""Where the extension hangs into IPython: each hook with its cost, its off switch and its removal.

A hook never breaks the user's cell: its body runs inside one guard that logs, shows one line, and
lets the user's own error through.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("cudassert_ipy")


@dataclass(slots=True)
class Hook:
    """One place where the extension listens.

    ``remove`` undoes the installation; ``switch`` tells the user how to turn it off.
    """

    name: str
    switch: str
    remove: Callable[[], None]
    calls: int = 0
    seconds: float = 0.0
    faults: int = 0


class Hooks:
    """All hooks of one shell, in the order of installation."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._hooks: list[Hook] = []

    def __iter__(self) -> Any:
        return iter(self._hooks)

    def remove_all(self) -> None:
        """Undo every installation, the last one first."""
        while self._hooks:
            self._hooks.pop().remove()

    def guarded(self, hook: Hook, body: Callable[..., Any], fallback: Any = None) -> Any:
        """Return ``body`` as a function that cannot raise and is counted.

        ``fallback(*args)`` gives the result when ``body`` fails; without it the result is None.
        """

        def call(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return body(*args, **options)
            except Exception as error:  # the user's cell must not suffer from a fault of ours
                hook.faults += 1
                log.exception("the hook %r failed", hook.name)
                print(messages.HOOK_FAILED.format(hook=hook.name, error=repr(error)[:200]))
                return fallback(*args, **options) if fallback is not None else None
            finally:
                hook.calls += 1
                hook.seconds += time.perf_counter() - started

        call.__cudassert__ = True  # type: ignore[attr-defined]
        return call

    def event(self, name: str, body: Callable[[Any], None], switch: str) -> None:
        """Listen to an IPython event."""
        events = self._shell.events
        hook = Hook(name, switch, lambda: events.unregister(name, callback))
        callback = self.guarded(hook, body)
        events.register(name, callback)
        self._hooks.append(hook)

    def transformer(self, body: Callable[[list[str]], list[str]], switch: str) -> None:
        """Rewrite the lines of a cell before IPython does."""
        # IPython >= 7.0; `cleanup_transforms` come before the cell-magic transform.
        transforms = self._shell.input_transformer_manager.cleanup_transforms
        hook = Hook("input transformer", switch, lambda: transforms.remove(callback))
        callback = self.guarded(hook, body, fallback=lambda lines: lines)
        transforms.insert(0, callback)
        self._hooks.append(hook)

    def traceback(self, body: Callable[[Any, Any, list[str]], list[str]], switch: str) -> None:
        """Add to tracebacks just before they are shown.

        ``_showtraceback`` is private, but the only place that sees syntax errors, callbacks and
        ``@interact`` as well (seen in IPython 7.34 to 9.18, ipykernel 6.17 to 7.4). It is wrapped
        on the instance, and whoever wrapped it before is called.
        """
        shell = self._shell
        previous = shell._showtraceback
        was_on_instance = "_showtraceback" in vars(shell)

        def remove() -> None:
            if shell._showtraceback is wrapper:
                if was_on_instance:
                    shell._showtraceback = previous
                else:
                    del shell._showtraceback
            else:
                # Somebody wrapped ours: it cannot be taken out of the middle, so it steps aside.
                wrapper.active = False  # type: ignore[attr-defined]

        hook = Hook("_showtraceback", switch, remove)
        edit = self.guarded(hook, body, fallback=lambda _etype, _evalue, stb: stb)

        def wrapper(etype: Any, evalue: Any, stb: list[str]) -> Any:
            if wrapper.active:  # type: ignore[attr-defined]
                stb = edit(etype, evalue, stb)
            return previous(etype, evalue, stb)

        wrapper.active = True  # type: ignore[attr-defined]
        shell._showtraceback = wrapper
        self._hooks.append(hook)

    def other(self, name: str, switch: str, remove: Callable[[], None]) -> Hook:
        """Note something installed elsewhere, so that it is listed and removed with the rest."""
        hook = Hook(name, switch, remove)
        self._hooks.append(hook)
        return hook
