"""The old tensor types of ``torch.cuda``, such as ``torch.cuda.FloatTensor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.standin.tags import tag_of

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches

_PREFIX = "torch.cuda."
_NAMES = (
    *("FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "BoolTensor"),
    *("ByteTensor", "CharTensor", "ShortTensor", "IntTensor", "LongTensor"),
)


def install_legacy_types(context: Context, patches: Patches) -> None:
    """Replace the types, and let ``torch.set_default_tensor_type`` take them."""
    for name in _NAMES:
        patches.replace(torch.cuda, name, _type(context, name))
    original = torch.set_default_tensor_type

    def set_default_tensor_type(t: Any) -> None:
        plain = plain_type(t)
        original(t if plain is None else plain)
        torch.set_default_device(None if plain is None else "cuda")

    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)


def plain_type(kind: Any) -> Any:
    """Return the CPU twin of a ``torch.cuda`` tensor type or of its name, else None."""
    if isinstance(kind, str):
        name = kind.removeprefix(_PREFIX) if kind.startswith(_PREFIX) else ""
        return getattr(torch, name) if name in _NAMES else None
    return getattr(kind, "_cudassert_plain", None)


def _type(context: Context, name: str) -> type:
    plain: Any = getattr(torch, name)

    class Kind(type):
        _cudassert_plain = plain

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = plain(*args, **kwargs)
            context.use()
            context.place(made, context.current_index, substitute=False)
            return made

        def __instancecheck__(cls, instance: Any) -> bool:
            if not isinstance(instance, torch.Tensor) or instance.dtype != plain.dtype:
                return False
            found = tag_of(instance)
            return found is not None and found.device_index is not None

    return Kind(name, (), {"__module__": "torch.cuda", "dtype": plain.dtype, "is_cuda": True})
