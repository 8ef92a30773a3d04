"""Read exceptions past their classes, whose attributes may be the user's code.

All of it goes through the descriptors of the built-in types: an overridden ``__cause__``,
``__class__`` or ``__dict__``, or a metaclass, is never asked.
"""

from __future__ import annotations

from typing import Any

from cudassert_ipy import messages

_MAX_EXCEPTIONS = 50
_MAX_CODE = 99_999

_CONTEXT: Any = BaseException.__dict__["__context__"]
_CAUSE: Any = BaseException.__dict__["__cause__"]
_ARGS: Any = BaseException.__dict__["args"]
_ATTRIBUTES: Any = BaseException.__dict__["__dict__"]
_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]
_NAME: Any = type.__dict__["__name__"]
_BASES: Any = type.__dict__["__mro__"]


def chain(exc: BaseException) -> list[BaseException]:
    """Return ``exc`` and all that it came from, the earliest first; bounded, cycles are cut.

    Raises ``TypeError`` if ``exc`` is no exception.
    """
    if not issubclass(type(exc), BaseException):
        raise TypeError(messages.NO_EXCEPTION.format(type=_name(type(exc))))
    order: list[BaseException] = []
    seen: set[int] = set()
    todo: list[BaseException] = [exc]
    while todo and len(order) < _MAX_EXCEPTIONS:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        order.append(node)
        related = [_CONTEXT.__get__(node), _CAUSE.__get__(node)]
        if issubclass(type(node), BaseExceptionGroup):
            related += reversed(_MEMBERS.__get__(node))
        todo += [item for item in related if item is not None]
    order.reverse()
    return order


def class_name(exc: BaseException) -> str:
    """Return the name of the exception's class."""
    return _name(type(exc))


def class_names(exc: BaseException) -> set[str]:
    """Return the names of the exception's class and of all its base classes."""
    return {_name(cls) for cls in _BASES.__get__(type(exc))}


def strings(exc: BaseException, limit: int) -> list[str]:
    """Return the exception's arguments that are plain strings, long ones cut in the middle."""
    texts = []
    for item in _ARGS.__get__(exc)[:10]:
        if type(item) is str:
            half = limit // 2
            texts.append(item if len(item) <= limit else f"{item[:half]}\n{item[-half:]}")
    return texts


def error_code(exc: BaseException) -> int | None:
    """Return ``error_code`` (``torch.AcceleratorError`` of torch 2.8+), or None.

    Looked for by walking, since looking a key up compares it with keys that may be the user's.
    """
    for key, value in list(dict.items(_ATTRIBUTES.__get__(exc))):
        if type(key) is str and key == "error_code":
            return value if type(value) is int and 0 <= value <= _MAX_CODE else None
    return None


def own_text(exc: BaseException, limit: int) -> str:
    """Return ``str(exc)``, for classes that keep their text elsewhere than in ``args``."""
    try:
        text = str(exc)
    # The user's __str__ may do anything, and raise anything; then there is no text. An interrupt
    # that arrives just now is lost with it: the kernel is printing an error, and runs no cell.
    except BaseException:
        return ""
    return text[:limit] if type(text) is str else ""


def _name(cls: type) -> str:
    return str.__str__(_NAME.__get__(cls))  # a plain copy: a name may be of a subclass of str
