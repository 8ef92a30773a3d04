"""A copy of a model to run once: on the CPU, in evaluation mode, and without a trace in the model.

Parameters are borrowed, not copied: what the run writes into them is put back.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages
from cudassert_ipy.checks.origins import storage_of
from cudassert_ipy.errors import CudassertError
from cudassert_ipy.report.clean import clean_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@dataclass(slots=True)
class Borrowed:
    """A model that may run, and what must be put back after it did."""

    model: Any
    sizes: set[int] = field(default_factory=set)
    """All sizes of the parameters and buffers."""
    storages: set[int | None] = field(default_factory=set)
    shared: dict[int | None, Tensor] = field(default_factory=dict)
    """Parameters that share the memory of the user's, by storage."""
    kept: dict[int | None, Tensor] = field(default_factory=dict)

    def owns(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is a parameter or buffer of the model, or a view of one."""
        storage = storage_of(tensor)
        return storage is not None and storage in self.storages

    def keep(self, func: Any, args: tuple[Any, ...]) -> None:
        """Keep the values of parameters that an operation is about to write into.

        ``nn.Embedding(max_norm=...)`` does so in every forward.
        """
        for argument, value in zip(func._schema.arguments, args, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if is_written and isinstance(tensor, torch.Tensor):
                    storage = storage_of(tensor)
                    if storage in self.shared and storage not in self.kept:
                        self.kept[storage] = self.shared[storage].detach().clone()

    def put_back(self) -> None:
        """Give written parameters their values back."""
        with torch.no_grad():
            for storage, values in self.kept.items():
                self.shared[storage].copy_(values)


def borrow(model: Any) -> Borrowed:
    """Return a copy of ``model`` that shares its parameters where they are on the CPU.

    Raises ``CudassertError`` where it cannot be copied. A function is taken as it is.
    """
    if not isinstance(model, torch.nn.Module):
        return Borrowed(model)
    model = _unwrapped(model)
    memo: dict[int, Any] = {}
    borrowed = Borrowed(model)
    try:
        for parameter in model.parameters():
            data = parameter.data.to("cpu")  # its version counter is not the user's
            memo[id(parameter)] = torch.nn.Parameter(data, requires_grad=False)
            storage = storage_of(data)
            borrowed.storages.add(storage)
            borrowed.shared[storage] = data
            borrowed.sizes.update(data.shape)
        for module in model.modules():
            for value in [*vars(module).values(), *module._buffers.values()]:
                # Also plain attributes: those with a graph cannot be copied by deepcopy.
                if isinstance(value, torch.Tensor) and id(value) not in memo:
                    made = value.detach().to("cpu", copy=True)
                    memo[id(value)] = made
                    borrowed.storages.add(storage_of(made))
                    borrowed.sizes.update(made.shape)
        borrowed.model = copy.deepcopy(model, memo).eval()
    except Exception as error:  # modules may hold anything: locks, files, generators
        what = clean_line(f"{type(error).__name__}: {error}", 200)
        raise CudassertError(messages.MODEL_COPY.format(error=what)) from error
    return borrowed


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Leave the random generators of Python, numpy and torch as they were."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def _unwrapped(model: Any) -> Any:
    """Return the model inside torch.compile's, DataParallel's and DDP's wrappers."""
    while True:
        if isinstance(model, torch.nn.DataParallel) or _is_ddp(model):
            model = model.module
        elif type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def _is_ddp(model: Any) -> bool:
    return type(model).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel") and (
        isinstance(getattr(model, "module", None), torch.nn.Module)
    )
