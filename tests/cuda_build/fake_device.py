"""Real C++ cuda tensors over host memory: needs a CUDA build of torch and no driver.

Two private constructors of torch (seen in 2.14.1) make them: for Python, autograd and TensorImpl
they are what a forked child inherits from a kernel with a GPU, since a child must not call CUDA
either. Metadata can be read and views be made; kernels and copies cannot run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudassert_ipy.replay.state import HostCopy

CONSTRUCTORS = (
    "_construct_storage_from_data_pointer",
    "_construct_CUDA_Tensor_From_Storage_And_Metadata",
)


def available() -> bool:
    """Whether this torch has the constructors, and no device that would mind."""
    return all(hasattr(torch._C, name) for name in CONSTRUCTORS) and not torch.cuda.is_available()


class FakeDevice:
    """Moves tensors to ``cuda:0`` and knows what their storages held, as a checkpoint would."""

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}
        self._copies: dict[int, HostCopy] = {}

    def move(self, host: torch.Tensor, *, known: bool = True) -> torch.Tensor:
        """Return ``host`` on the device; tensors that share a storage go on sharing one.

        ``known``: whether the values were copied before the fork, and the replacement finds them.
        """
        memory = host.detach().untyped_storage()
        storage = self._storages.get(memory._cdata)
        if storage is None:
            storage = torch._C._construct_storage_from_data_pointer(
                memory.data_ptr(), torch.device("cuda:0"), memory.nbytes()
            )
            storage.kept = memory  # the host memory that it points to
            self._storages[memory._cdata] = storage
        if known:
            copy = torch.UntypedStorage(memory.nbytes()).copy_(memory)
            self._copies[storage._cdata] = HostCopy(copy, 3, False, None, StorageWeakRef(storage))
        metadata = {
            "dtype": host.dtype,
            "device": torch.device("cuda:0"),
            "size": host.shape,
            "stride": host.stride(),
            "storage_offset": host.storage_offset(),
        }
        return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage)

    def put(self, *tensors: torch.Tensor, known: bool = True) -> None:
        """Move tensors in place: the Python objects and their C++ bodies stay."""
        for tensor in tensors:
            if tensor.grad is not None:
                tensor.grad.data = self.move(tensor.grad, known=known)
            tensor.data = self.move(tensor, known=known)

    def module(self, module: Any, *, known: bool = True) -> Any:
        """Move the parameters and buffers of ``module`` in place and return it."""
        self.put(*module.parameters(), *module.buffers(), known=known)
        return module

    def get(self, storage: torch.UntypedStorage) -> HostCopy | None:
        """Answer as ``HostCopies.get`` does, which cannot have read this device."""
        return self._copies.get(storage._cdata)

    def pinned_among(self, _tensors: Any) -> list[torch.Tensor]:
        """Return nothing: without a driver no memory is page-locked."""
        return []
