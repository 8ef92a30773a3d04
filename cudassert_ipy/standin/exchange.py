"""DLPack on the stand-in device: the memory that another library hands back keeps its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import dlpack

from cudassert_ipy.standin.patches import own
from cudassert_ipy.standin.tags import Tag, tag, tag_of

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches


def install_exchange(context: Context, patches: Patches) -> None:
    """Replace the two ends of DLPack in torch; a capsule is known by the address it holds."""
    exported: dict[int, tuple[Any, Tag]] = {}
    original_from, original_to = dlpack.from_dlpack, torch._C._to_dlpack
    original_device = torch.Tensor.__dlpack_device__

    def to_dlpack(tensor: torch.Tensor) -> Any:
        found = tag_of(tensor)
        if found is not None:
            for address in [key for key, (alive, _) in exported.items() if alive.expired()]:
                del exported[address]
            exported[tensor.data_ptr()] = (StorageWeakRef(tensor.untyped_storage()), found)
        return original_to(tensor)

    def from_dlpack(ext_tensor: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(ext_tensor, torch.Tensor) and tag_of(ext_tensor) is not None:
            ext_tensor = to_dlpack(ext_tensor.detach())
        made: torch.Tensor = original_from(ext_tensor, **kwargs)
        alive, found = exported.get(made.data_ptr(), (None, None))
        if alive is not None and not alive.expired():
            tag(made, found)
        return made

    def __dlpack_device__(self: torch.Tensor) -> Any:  # noqa: N807
        found = tag_of(self)
        if found is None or found.device_index is None or not context.active:
            return original_device(self)
        return dlpack.DLDeviceType.kDLCUDA, found.device_index

    patches.set(torch.Tensor, "__dlpack_device__", __dlpack_device__)
    patches.replace(torch, "to_dlpack", own(to_dlpack))
    patches.replace(dlpack, "to_dlpack", to_dlpack)
    patches.replace(torch, "from_dlpack", own(from_dlpack))
    patches.replace(dlpack, "from_dlpack", from_dlpack)
