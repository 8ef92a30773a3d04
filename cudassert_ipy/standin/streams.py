"""Streams, events and generators of the stand-in device: one stream, always in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context


def stream_classes(context: Context) -> tuple[type, type]:
    """Return the classes that stand for ``torch.cuda.Stream`` and ``torch.cuda.Event``."""

    class Stream:
        """A stream; all streams of the stand-in device are one."""

        def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
            context.use()
            index = context.current_index if device is None else context.index_of(device)
            self.device = torch.device("cuda", index or 0)
            self.device_index = self.device.index
            self.device_type = 1
            self.priority = priority
            self.stream_id = kwargs.get("stream_id", 0)
            self.cuda_stream = 0

        def query(self) -> bool:
            context.policy.query()
            return True

        def synchronize(self) -> None:
            context.policy.synchronize()

        def wait_event(self, event: Any) -> None:  # noqa: ARG002
            context.use()

        def wait_stream(self, stream: Any) -> None:  # noqa: ARG002
            context.use()

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def is_capturing(self) -> bool:
            return False

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exception: object) -> None:
            return None

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and self.device == other.device

        def __hash__(self) -> int:
            return hash(self.device)

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={self.device} cuda_stream=0x0>"

    class Event:
        """An event, with the host's clock."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
            self._seconds: float | None = None

        def record(self, stream: Any = None) -> None:  # noqa: ARG002
            context.use()
            self._seconds = time.perf_counter()

        def wait(self, stream: Any = None) -> None:  # noqa: ARG002
            context.use()

        def query(self) -> bool:
            context.policy.query()
            return True

        def synchronize(self) -> None:
            context.policy.synchronize()

        def elapsed_time(self, end_event: Any) -> float:
            """Return milliseconds between the two events."""
            context.policy.query()
            if self._seconds is None or end_event._seconds is None:
                msg = "Both events must be recorded before calculating elapsed time."
                raise ValueError(msg)
            return float((end_event._seconds - self._seconds) * 1000)

    for kind, name in ((Stream, "Stream"), (Event, "Event")):
        kind.__module__, kind.__qualname__ = "torch.cuda", name
    return Stream, Event


def generator_class(context: Context) -> type:
    """Return the class that stands for ``torch.Generator``."""
    original = torch.Generator

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original)

    class Generator(original, metaclass=Kind):  # type: ignore[misc, valid-type]
        """A CPU generator that says which device it was made for."""

        def __new__(cls, device: Any = "cpu") -> Any:
            index = context.index_of(device)
            self = super().__new__(cls, "cpu" if index is not None else device)
            self._index = index
            return self

        def __init__(self, device: Any = "cpu") -> None:
            pass

        @property
        def device(self) -> torch.device:
            """The device it was made for."""
            if self._index is None:
                named: torch.device = super().device
                return named
            return torch.device("cuda", self._index)

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator
