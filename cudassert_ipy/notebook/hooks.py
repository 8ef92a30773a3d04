"""Where the extension hangs into IPython: each hook with its cost, its off switch and its removal.

A hook never breaks the user's cell: its body runs inside one guard that logs, shows one line, and
lets the user's own error through.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("cudassert_ipy")


class Hook:
    """One place where the extension listens, and what that has cost so far.

    Args:
        name: of the place.
        switch: how the user turns it off.
        remove: undoes the installation.

    """

    def __init__(self, name: str, switch: str, remove: Callable[[], None]) -> None:
        self.name = name
        self.switch = switch
        self.remove = remove
        self.calls = 0
        self.seconds = 0.0
        self.faults = 0


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
            except KeyboardInterrupt:
                print(messages.HOOK_INTERRUPTED)
                return fallback(*args, **options) if fallback is not None else None
            except BaseException as error:  # the user's cell must not suffer from a fault of ours
                hook.faults += 1
                log.exception("the hook %r failed", hook.name)
                print(messages.HOOK_FAILED.format(hook=hook.name, error=repr(error)[:200]))
                return fallback(*args, **options) if fallback is not None else None
            finally:
                hook.calls += 1
                hook.seconds += time.perf_counter() - started

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
        # So IPython (from 7.17) leaves it out when a terminal asks whether a cell is complete: with
        # the magic line still there, the cell ends at a blank line, as for every cell magic.
        callback.has_side_effects = True
        transforms.insert(0, callback)
        self._hooks.append(hook)

    def traceback(
        self,
        prepare: Callable[[BaseException | None], None],
        edit: Callable[[Any, Any, list[str]], list[str]],
        switch: str,
    ) -> None:
        """Change exceptions before IPython formats them, and the text before it is shown.

        ``_showtraceback`` is private, but the only place that sees syntax errors, callbacks and
        ``@interact`` as well (seen in IPython 7.34 to 9.18, ipykernel 6.17 to 7.4).
        """

        def around_format(showtraceback: Any) -> Any:
            def show(exc_tuple: Any = None, *args: Any, **options: Any) -> Any:
                guarded(exc_tuple[1] if exc_tuple else sys.exc_info()[1])
                return showtraceback(exc_tuple, *args, **options)

            return show

        def around_show(show_text: Any) -> Any:
            def show(etype: Any, evalue: Any, stb: list[str]) -> Any:
                return show_text(etype, evalue, guarded_edit(etype, evalue, stb))

            return show

        before = self.wrap("showtraceback", around_format, switch)
        after = self.wrap("_showtraceback", around_show, switch)
        guarded = self.guarded(before, prepare)
        guarded_edit = self.guarded(after, edit, fallback=lambda _etype, _evalue, stb: stb)

    def wrap(self, name: str, around: Callable[[Any], Any], switch: str) -> Hook:
        """Put ``around(previous)`` in the place of a method of the shell, on the instance.

        Whoever wrapped the method before is called; whoever wraps it later keeps working when ours
        is removed: from the middle it cannot be taken out, so it steps aside.
        """
        shell = self._shell
        previous = getattr(shell, name)
        was_on_instance = name in vars(shell)
        body = around(previous)
        active = True

        def wrapper(*args: Any, **options: Any) -> Any:
            return (body if active else previous)(*args, **options)

        def remove() -> None:
            nonlocal active
            active = False
            if getattr(shell, name) is wrapper:
                if was_on_instance:
                    setattr(shell, name, previous)
                else:
                    delattr(shell, name)

        setattr(shell, name, wrapper)
        return self.other(name, switch, remove)

    def other(self, name: str, switch: str, remove: Callable[[], None]) -> Hook:
        """Note something installed elsewhere, so that it is listed and removed with the rest."""
        hook = Hook(name, switch, remove)
        self._hooks.append(hook)
        return hook
