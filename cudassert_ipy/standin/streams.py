"""Streams and events of the stand-in device: many names for one queue, which is always in order."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.standin.patches import own

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches


def install_streams(context: Context, patches: Patches) -> None:
    """Replace streams, events and the current stream in torch.cuda, torch.accelerator and torch."""
    stream_kind, event_kind = _stream_class(context), _event_class(context)

    def current_stream(device: Any = None) -> Any:
        index = context.current_index if device is None else context.index_of(device)
        return context.thread.streams.get(index) or stream_kind(device, stream_id=0)

    def set_stream(stream: Any) -> None:
        if stream is not None:
            context.thread.streams[stream.device_index] = stream

    class StreamContext(_StreamContext):
        current = staticmethod(current_stream)
        select = staticmethod(set_stream)

    cuda = {
        "Stream": stream_kind,
        "Event": event_kind,
        "ExternalStream": lambda stream_ptr, device=None, **_: stream_kind(
            device, stream_id=stream_ptr
        ),
        "StreamContext": StreamContext,
        "stream": own(StreamContext),
        "set_stream": set_stream,
        "current_stream": current_stream,
        "default_stream": lambda device=None: stream_kind(device, stream_id=0),
    }
    for name, value in cuda.items():
        patches.replace(torch.cuda, name, value)
    for name in ("Stream", "Event", "ExternalStream"):
        patches.replace(torch.cuda.streams, name, cuda[name])
    # nn.DataParallel makes and keeps its own streams.
    data_parallel = torch.nn.parallel._functions
    patches.replace(data_parallel, "_get_stream", own(stream_kind))
    if hasattr(torch, "accelerator"):
        accelerator = torch.accelerator
        patches.replace(accelerator, "current_stream", own(current_stream))
        patches.replace(accelerator, "set_stream", own(set_stream))
    for name, kind in (("Stream", stream_kind), ("Event", event_kind)):
        patches.replace(torch, name, _generic(context, name, kind))


class _StreamContext:
    """``with torch.cuda.stream(s)``: ``s`` and its device are the current ones; None: no change."""

    current: Any
    select: Any

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self._device = torch.cuda.device(self.stream.device_index)
            self._device.__enter__()
            self._before = self.current()
            self.select(self.stream)

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            self.select(self._before)
            self._device.__exit__(*exception)


def _stream_class(context: Context) -> type:
    numbers = itertools.count(1)

    class Stream:
        """A stream; what is put on it is done at once."""

        def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
            context.use()
            index = context.current_index if device is None else context.index_of(device)
            self.device = torch.device("cuda", index or 0)
            self.device_index = self.device.index
            self.device_type = 1
            self.priority = priority
            self.stream_id = kwargs["stream_id"] if "stream_id" in kwargs else next(numbers)
            self._contexts: list[Any] = []

        @property
        def cuda_stream(self) -> int:
            """The stream's address on a real device; here its number."""
            return int(self.stream_id)

        native_handle = cuda_stream

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -5

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
            event = torch.cuda.Event() if event is None else event
            event.record(self)
            return event

        def is_capturing(self) -> bool:
            return context.thread.capturing

        def __enter__(self) -> Any:
            entered: Any = torch.cuda.stream(self)  # type: ignore[arg-type]
            entered.__enter__()
            self._contexts.append(entered)
            return self

        def __exit__(self, *exception: object) -> None:
            self._contexts.pop().__exit__(*exception)

        def __eq__(self, other: object) -> bool:
            return (
                isinstance(other, Stream)
                and self.device == other.device
                and self.stream_id == other.stream_id
            )

        def __hash__(self) -> int:
            return hash((self.device, self.stream_id))

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    Stream.__module__, Stream.__qualname__ = "torch.cuda", "Stream"
    return Stream


def _event_class(context: Context) -> type:
    class Event:
        """An event, with the host's clock."""

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,  # noqa: ARG002
            interprocess: bool = False,  # noqa: ARG002
            **kwargs: Any,  # noqa: ARG002
        ) -> None:
            self._timed = enable_timing
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
            # Both texts: torch/csrc/cuda/Event.cpp and aten/src/ATen/cuda/CUDAEvent.h.
            if not (self._timed and end_event._timed):
                msg = "Both events must be created with argument 'enable_timing=True'."
                raise ValueError(msg)
            if self._seconds is None or end_event._seconds is None:
                msg = "Both events must be recorded before calculating elapsed time."
                raise ValueError(msg)
            return float((end_event._seconds - self._seconds) * 1000)

    Event.__module__, Event.__qualname__ = "torch.cuda", "Event"
    return Event


def _generic(context: Context, name: str, kind: type) -> type:
    """Return what stands for ``torch.Stream`` or ``torch.Event``, which take any device."""
    original = getattr(torch, name)

    class Kind(type):
        def __call__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            if device is None or context.index_of(device) is not None:
                return kind(*args, **kwargs) if name == "Event" else kind(device, *args, **kwargs)
            return original(device, *args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original | kind)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original | kind)

    return Kind(name, (), {"__module__": "torch", "__doc__": original.__doc__})
