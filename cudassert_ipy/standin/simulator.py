"""Switch the simulated CUDA device of this process on and off."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from cudassert_ipy import messages
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.standin.device import StandinDevice
from cudassert_ipy.standin.simulate import SimulatePolicy

if TYPE_CHECKING:
    from cudassert_ipy.standin.policy import Policy

_device: StandinDevice | None = None


def on() -> None:
    """Simulate a CUDA device in the main thread and those that start later; a new, live context.

    Does nothing if it is on. Raises :class:`~cudassert_ipy.CudassertError` in another thread than
    the main one, and ``RuntimeError`` if another stand-in device is installed.
    """
    global _device  # one device per process, as torch's own state is
    if _device is None:
        _require_main_thread("on")
        device = StandinDevice(SimulatePolicy())
        device.install()
        _device = device


def off() -> None:
    """Stop simulating. Tensors on the device keep their tag, and their values if it was alive.

    Raises :class:`~cudassert_ipy.CudassertError` in another thread than the main one.
    """
    global _device  # see on()
    if _device is not None:
        _require_main_thread("off")
        _device.remove()
        _device = None


def is_on() -> bool:
    """Whether the simulator is on."""
    return _device is not None


def context() -> Literal["alive", "dead"]:
    """Return the state of the simulated context; ``alive`` when the simulator is off.

    It is dead from the failing kernel on, whether or not the host was told yet.
    """
    policy: Policy | None = None if _device is None else _device.policy
    return "dead" if isinstance(policy, SimulatePolicy) and policy.failed else "alive"


def _require_main_thread(value: str) -> None:
    """Torch's modes are on the stack of one thread, and only that thread can take them off."""
    if threading.current_thread() is not threading.main_thread():
        raise CudassertError(messages.SIMULATOR_MAIN_THREAD.format(value=value))
