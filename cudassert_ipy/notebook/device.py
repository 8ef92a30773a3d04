"""What the extension asks of torch about the device.

Never imports torch by itself, never initializes CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cudassert_ipy.model import Context, Environment

FIRST_PAUSE = 50e-6
LONGEST_PAUSE = 5e-3


def loaded_torch() -> Any | None:
    """Return torch if this process has imported it (completely), else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "cuda") and hasattr(torch, "Tensor") else None


def cuda_in_use() -> bool:
    """Whether this process has a CUDA context (or the simulator's) that could be dead."""
    torch = loaded_torch()
    if torch is None:
        return False
    try:
        return bool(torch.cuda.is_initialized())
    except RuntimeError:
        return False  # a half-installed torch: it has no context


def launches_block() -> bool:
    """Whether CUDA launches are blocking in this process, which is slow."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" and cuda_in_use()


def could_use_cuda() -> bool:
    """Whether torch is imported and could use a device, real or simulated."""
    torch = loaded_torch()
    return torch is not None and bool(simulated() or torch.version.cuda or torch.version.hip)


def device_present() -> bool:
    """Whether a CUDA device, real or simulated, can be used. Imports torch."""
    import torch

    return bool(torch.cuda.is_available())


def _devices(torch: Any) -> Iterator[int]:
    """Devices that have a primary context; asking another one would create it (hundreds of MB)."""
    # torch._C._cuda_hasPrimaryContext: seen in CUDA builds of 2.6 to 2.15; absent in CPU builds,
    # where only the simulator can get here.
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    for index in range(torch.cuda.device_count()):
        if simulated() or has_context is None or has_context(index):
            yield index


def is_on_device(value: object) -> bool:
    """Whether ``value`` is a CUDA tensor, real or simulated."""
    torch = loaded_torch()
    # type(), not isinstance(): lazy proxies run user code for __class__.
    if torch is None or not issubclass(type(value), torch.Tensor):
        return False
    try:
        return bool(value.is_cuda)  # type: ignore[attr-defined]
    except Exception:  # subclasses answer as they like: an uninitialized parameter raises
        return False


def simulated() -> bool:
    """Whether the simulator stands in for the device."""
    simulator = sys.modules.get("cudassert_ipy.standin.simulator")
    return bool(simulator is not None and simulator.is_on())


def _in_process_group() -> bool:
    """Whether waiting for the device could hang: for a rank whose cell has not run yet."""
    distributed = sys.modules.get("torch.distributed")
    return bool(
        distributed is not None and distributed.is_available() and distributed.is_initialized()
    )


def wait_for_device(deadline: float) -> BaseException | None:
    """Fence: wait until the device has finished, at most ``deadline`` seconds.

    Polls ``Stream.query()``, which never blocks; under torch.distributed only once. Returns the
    error that the device reports, or None (finished, still running, or not to be asked). Ctrl-C
    ends the wait.
    """
    torch = loaded_torch()
    if torch is None or not cuda_in_use():
        return None
    end = time.monotonic() + deadline
    pause = FIRST_PAUSE
    try:
        if torch.cuda.is_current_stream_capturing():
            return None  # a query would break the capture (CUDA errors 900, 901)
        if _in_process_group():
            deadline = 0.0
        pending = list(_devices(torch))
        while pending:
            pending = [i for i in pending if not torch.cuda.current_stream(i).query()]
            if not pending or time.monotonic() > end:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    except KeyboardInterrupt:
        return None  # nothing of the user's runs here that an interrupt could be meant for
    except Exception as error:  # whatever the device reports is the answer
        return error
    return None


def synchronize() -> BaseException | None:
    """Wait for the device; CUDA prints assertion text only here. Returns the error, if any.

    Returns at once when the context is dead. Skipped where waiting could hang.
    """
    torch = loaded_torch()
    if torch is None or not cuda_in_use():
        return None
    try:
        if _in_process_group() or torch.cuda.is_current_stream_capturing():
            return None
        torch.cuda.synchronize()
    except Exception as error:  # as above
        return error
    return None


def probe(classify: Callable[[BaseException], Context]) -> Context:
    """Say whether this process's CUDA context is dead.

    ``classify`` tells what an error that the device reports means for the context. Never by
    ``is_available()``, which stays true on a dead context, nor by showing a tensor.
    """
    torch = loaded_torch()
    if torch is None:
        return "unknown"
    if not cuda_in_use():
        return "alive"  # nothing of CUDA was used here: there is no context that could be dead
    error = synchronize() or wait_for_device(0.0)
    return "alive" if error is None else classify(error)


def keep_alive() -> None:
    """Keep what lived on the device until the process ends.

    After death a destructor that calls CUDA (blocks with recorded streams, pinned blocks, events)
    can abort the process, so the objects get a reference that is never given back, not even at
    interpreter exit, where a list of ours would be cleared.
    """
    torch = loaded_torch()
    if torch is None:
        return
    kinds = tuple(
        kind
        for name in ("Event", "Stream", "CUDAGraph")
        if isinstance(kind := getattr(torch.cuda, name, None), type)
    )
    kept: list[object] = []
    for item in gc.get_objects():
        if is_on_device(item):
            kept += [item, item._base]
            if item.is_leaf:
                kept.append(item.grad)
        elif issubclass(type(item), kinds):
            kept.append(item)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


class DeadTensorRepr:
    """While installed, a CUDA tensor's repr says that its values are lost instead of raising."""

    def __init__(self) -> None:
        self._original: Any = None
        self._installed: Any = None
        self.since: int | None = None

    def install(self, since: int | None) -> None:
        """Replace ``torch.Tensor.__repr__``; ``since``: the cell in which the context died."""
        torch = loaded_torch()
        if torch is None or self._installed is not None:
            return
        original = torch.Tensor.__repr__

        def repr_of_lost(tensor: Any, **options: Any) -> str:
            if not is_on_device(tensor):
                return str(original(tensor, **options))
            from cudassert_ipy import messages

            dtype = str(tensor.dtype).removeprefix("torch.")
            place = f"{tensor.device} {dtype} {list(tensor.shape)}"
            return messages.DEAD_TENSOR.format(tensor=place, cell=messages.cell(since))

        self._original, self._installed, self.since = original, repr_of_lost, since
        torch.Tensor.__repr__ = repr_of_lost

    def remove(self) -> None:
        """Give ``torch.Tensor`` its own repr back, unless somebody else replaced it meanwhile."""
        torch = loaded_torch()
        if torch is not None and self._installed is not None:
            if torch.Tensor.__repr__ is self._installed:
                torch.Tensor.__repr__ = self._original
            self._installed = self._original = None


def environment(front_end: str | None) -> Environment:
    """Return the versions a bug report needs, without touching the device."""
    import platform

    from cudassert_ipy.model import Environment

    torch = loaded_torch()
    ipykernel = sys.modules.get("ipykernel")
    gpu = driver = None
    if torch is not None and cuda_in_use():
        # get_device_name answers on a dead context, too; a broken driver may raise.
        with contextlib.suppress(Exception):
            gpu = str(torch.cuda.get_device_name())
        with contextlib.suppress(Exception):
            driver = str(torch._C._cuda_getDriverVersion())
    return Environment(
        python=platform.python_version(),
        torch=str(torch.__version__) if torch is not None else None,
        cuda=torch.version.cuda if torch is not None else None,
        driver=driver,
        gpu=gpu,
        ipykernel=getattr(ipykernel, "__version__", None),
        front_end=front_end,
        simulated=simulated(),
    )
