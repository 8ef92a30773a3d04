"""The simulated device: errors are asynchronous, and a device assertion kills the context.

What was taken as fact: the driver prints assertion text only when the host synchronizes (CUDA C++
Programming Guide, "Assertion"); a query reports the error without text; then every call fails with
the same error (``cudaErrorAssert`` in driver_types.h: "The device cannot be used again"); with
``CUDA_LAUNCH_BLOCKING=1`` each launch synchronizes. A test double, not evidence about a GPU.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.checks.inspect import check_operands
from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.standin.cuda_errors import ASSERT, accelerator_error, out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.checks.inspect import Checked
    from cudassert_ipy.checks.operand import Operand
    from cudassert_ipy.checks.operators import Operator
    from cudassert_ipy.decode.catalog import KnownAssertion

TOTAL_BYTES = 16 * 2**30
MAX_LINES = 24
_THREADS_PER_BLOCK = 128
_LEDGER = "_cudassert_allocation"


class SimulatePolicy:
    """Real assertion lines on fd 2, ``torch.AcceleratorError`` 710, and death.

    ``blocking`` (default: ``CUDA_LAUNCH_BLOCKING`` in the environment now) raises at the operation.
    ``latency`` is after how many further launches an error is noticed without a synchronizing call;
    None means never.
    """

    device_count = 1
    tracks_substitutes = False

    def __init__(
        self,
        *,
        blocking: bool | None = None,
        latency: int | None = None,
        total_bytes: int = TOTAL_BYTES,
    ) -> None:
        if blocking is None:
            blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        self.blocking = blocking
        self.latency = latency
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.failed = False
        """Whether an assertion failed on the device."""
        self.noticed = False
        """Whether the host was told, after which every call fails at once."""
        self._unprinted: list[str] = []
        self._launches_since = 0

    def launch(self, operator: Operator | None, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Check the operands of a kernel; after a failure, kernels leave garbage."""
        self.unreadable()
        if self.failed:
            self._launches_since += 1
            if self.latency is not None and self._launches_since > self.latency:
                self.query()
            return False
        if operator is None:
            return True
        return self._survives(operator, args, kwargs)

    def call(self, operator: Operator, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Check the operands of a torch function whose CPU code would refuse them on the host."""
        return not self.failed and self._survives(operator, args, kwargs)

    def _survives(self, operator: Operator, args: tuple[Any, ...], kwargs: Any) -> bool:
        arguments = operator.arguments(args, kwargs)
        for item in check_operands(operator, arguments):
            known = _printed(item.operand) if item.offenders.bad_count else None
            if known is not None:
                break
        else:
            # Nothing is bad, or only what no kernel of this torch asserts on: torch's host code
            # checks it, on the CPU as on a device, or nobody does.
            return True
        if known.pattern and arguments.get("assert_msg"):
            known = replace(known, expression=arguments["assert_msg"])
        self._fail(known, item)
        if self.blocking:
            self.synchronize()
        return False

    def reserve(self, size: int) -> None:
        """Raise ``torch.OutOfMemoryError`` if the simulated memory is too small."""
        self.unreadable()
        if self.used_bytes + size > self.total_bytes:
            raise out_of_memory(size, self.total_bytes, self.used_bytes, 0)

    def allocated(self, storage: Any) -> None:
        """Count a storage as long as it lives."""
        size = storage.nbytes()
        if self.used_bytes + size > self.total_bytes:
            raise out_of_memory(size, self.total_bytes, self.used_bytes, 0)
        setattr(storage, _LEDGER, _Allocation(self, size))

    def synchronize(self) -> None:
        """Wait: prints the assertion text and raises if the device failed."""
        if not self.failed:
            return
        lines, self._unprinted = self._unprinted, []
        if lines:
            # The driver writes to the file descriptor, past sys.stderr and its redirections, and
            # its error is the same where nothing can be written (closed, full, no reader).
            with contextlib.suppress(OSError):
                os.write(2, "".join(f"{line}\n" for line in lines).encode())
        self.query()

    def query(self) -> None:
        """Raise if the device failed, without printing."""
        if self.failed:
            self.noticed = True
            self.unreadable()

    def unreadable(self) -> None:
        """Raise once the host was told of the failure."""
        if self.noticed:
            raise accelerator_error(ASSERT, blocking=self.blocking)

    def remark(self, text: str) -> None:
        """Nothing to note: a simulated device is no evidence anyway."""

    def gap(self, text: str) -> None:
        """Nothing to note: the error that is raised says it."""

    def copied_to_host(self, tensor: Tensor) -> None:
        """Nothing to note: ``synchronize`` raised if the values are not there."""

    def _fail(self, known: KnownAssertion, item: Checked) -> None:
        self.failed = True
        count, positions = item.offenders.bad_count, item.offenders.positions
        flat = [_flat(position, item.operand.tensor.shape) for position in positions]
        flat += range(flat[-1] + 1, flat[-1] + 1 + count - len(flat))
        for number in flat[:MAX_LINES]:
            block, thread = divmod(number, _THREADS_PER_BLOCK)
            line = known.render((block, 0, 0), (thread, 0, 0), torch_version=torch.__version__)
            self._unprinted.append(line)


def _printed(operand: Operand) -> KnownAssertion | None:
    """Return the assertion that this torch's kernel has for an operand; None where it has none."""
    rows = [catalog().by_key(key) for key in operand.assertions]
    return next((row for row in rows if _is_in_this_torch(row)), None)


def _is_in_this_torch(row: KnownAssertion) -> bool:
    now = _version(torch.__version__)
    since, until = _version(row.since), _version(row.until)
    return since is not None and now is not None and since <= now <= (until or now)


def _version(text: str) -> tuple[int, int] | None:
    """Return major and minor number; None for "builds after ..." and the like."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


class _Allocation:
    """Lives as long as its storage, and counts its bytes."""

    __slots__ = ("_policy", "_size")

    def __init__(self, policy: SimulatePolicy, size: int) -> None:
        self._policy = policy
        self._size = size
        policy.used_bytes += size
        policy.peak_bytes = max(policy.peak_bytes, policy.used_bytes)

    def __del__(self) -> None:
        self._policy.used_bytes -= self._size


def _flat(position: tuple[int, ...], shape: Any) -> int:
    number = 0
    for index, size in zip(position, shape, strict=True):
        number = number * size + index
    return number
