"""Replace attributes of modules and classes, and put back exactly what was there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ABSENT = object()


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function object of its own, for one more name of the same function.

    torch._dynamo refuses one object under two names, and plain ``Adam.step`` loads it.
    """
    return lambda *args, **kwargs: function(*args, **kwargs)  # noqa: PLW0108  not the same object


class Patches:
    """A stack of replaced attributes, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` and remember what ``owner`` itself had there, inherited or not."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._undo.append((owner, name, before, value))

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Like :meth:`set`, but only where this version of torch has the name."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def remove(self) -> None:
        """Undo everything. What somebody else has replaced since then stays theirs."""
        while self._undo:
            owner, name, before, value = self._undo.pop()
            if vars(owner).get(name, _ABSENT) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
