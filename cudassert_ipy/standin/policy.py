"""What happens on the stand-in device: the interface that simulator and replay implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.checks.operators import Operator


class Policy(Protocol):
    """Decides about each thing that a program does with the stand-in device."""

    device_count: int
    """Devices that ``torch.cuda.device_count()`` reports."""
    tracks_substitutes: bool
    """Whether results of the device's random generator are substitutes."""

    def launch(self, operator: Operator | None, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Return whether to run a kernel (else it leaves garbage); may raise."""

    def call(self, operator: Operator, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Return whether to run a torch function with operands of its own; may raise."""

    def reserve(self, size: int) -> None:
        """Ask for ``size`` bytes before they are allocated; may raise ``OutOfMemoryError``."""

    def allocated(self, storage: Any) -> None:
        """Note a new storage on the device; may raise ``torch.OutOfMemoryError``."""

    def synchronize(self) -> None:
        """Wait for the device, which is where it reports errors."""

    def query(self) -> None:
        """Ask whether the device is done: reports an error, but prints nothing."""

    def copied_to_host(self, tensor: Tensor) -> None:
        """Note that device or substitute values become Python or CPU values."""

    def remark(self, text: str) -> None:
        """Note, once, what is done differently from a real device; it changes no outcome."""

    def gap(self, text: str) -> None:
        """Note, once, what could not be run: what the program did after that proves nothing."""

    def unreadable(self) -> None:
        """Raise if the device cannot be used any more."""
