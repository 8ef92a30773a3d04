"""The two torch modes of the stand-in device: tags follow every operation and every factory."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device as torch_device_mode
from torch.utils._python_dispatch import TorchDispatchMode

from cudassert_ipy.standin.context import index_of_any, tensors_in
from cudassert_ipy.standin.cuda_errors import different_devices, two_devices
from cudassert_ipy.standin.garbage import garbage
from cudassert_ipy.standin.hidden_operands import checked_call
from cudassert_ipy.standin.missing_kernels import run_otherwise
from cudassert_ipy.standin.pinned import pin
from cudassert_ipy.standin.tags import storage_of, tag_of
from cudassert_ipy.standin.traits import Traits, traits_of
from cudassert_ipy.standin.zero_division import divide_anyway, divides_by_zero

if TYPE_CHECKING:
    from torch import Tensor

    from cudassert_ipy.standin.context import Context


class StandinDispatchMode(TorchDispatchMode):
    """Runs device operations on the CPU kernels and tags their results."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch (seen in 2.9 to 2.14) imports torch._dynamo at the first operation: a second.
        # It need not protect this method: while a dispatch mode is on, nothing is compiled.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        context = self._context
        if not context.active:
            return func(*args, **kwargs)
        history = context.history
        if history is None:
            return self._run(func, args, kwargs)
        before = history.before(func, args)
        out = self._run(func, args, kwargs)
        history.note(func, args, kwargs, out, before)
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context = self._context
        index = None
        substitute = on_host = False
        for tensor in tensors_in(*args, *kwargs.values()):
            found = tag_of(tensor)
            if found is None or found.device_index is None:
                on_host = on_host or tensor.dim() > 0
                substitute = substitute or found is not None
            else:
                if index is None:
                    index = found.device_index
                elif index != found.device_index and not traits_of(func).mixes_devices:
                    raise two_devices(index, found.device_index)
                substitute = substitute or found.substitute
        traits = traits_of(func)
        if index is None:
            if not traits.takes_tensors:
                index = context.thread.forced
                if index is None:
                    index = index_of_any(context.thread.call)
            if index is None:
                return self._on_host(func, traits, args, kwargs, substitute=substitute)
        elif on_host:
            _check_mixture(func, traits, args, kwargs, index, context.thread.call)
            if traits.written and not is_on_device(args[traits.written[0]]):
                return self._into_host(func, traits, args, kwargs, substitute=substitute)
        return self._on_device(func, traits, args, kwargs, index, substitute=substitute)

    def _on_host(
        self, func: Any, traits: Traits, args: Any, kwargs: Any, *, substitute: bool
    ) -> Any:
        """Run an operation on CPU tensors; some of them may hold substitute values."""
        place = traits.device_position
        if place is not None and place < len(args) and args[place] is not None:
            index = self._context.index_of(args[place])
            if index is not None:  # C++ code makes a device tensor from CPU tensors
                args = (*args[:place], torch.device("cpu"), *args[place + 1 :])
                out = func(*args, **kwargs)
                self._mark(out, traits, args, index, substitute=substitute)
                return out
        out = func(*args, **kwargs)
        if substitute:
            if traits.synchronizes:
                self._context.policy.copied_to_host(args[0])
            self._mark(out, traits, args, None, substitute=True)
        return out

    def _into_host(
        self, func: Any, traits: Traits, args: Any, kwargs: Any, *, substitute: bool
    ) -> Any:
        """Write device values to a CPU tensor: ``cpu.copy_(cuda)``."""
        self._context.policy.synchronize()
        out = func(*args, **kwargs)
        self._mark(out, traits, args, None, substitute=substitute)
        return out

    def _on_device(
        self, func: Any, traits: Traits, args: Any, kwargs: Any, index: int, *, substitute: bool
    ) -> Any:
        context = self._context
        policy = context.policy
        context.initialized = True
        if substitute and not context.drew_random:
            context.used_substitutes = True
        if traits.is_view:
            out = func(*args, **kwargs)
            self._mark(out, traits, args, index, substitute=substitute)
            return out
        if traits.synchronizes or _has_mask(traits, args):
            policy.synchronize()
            policy.copied_to_host(args[0])
        elif _copies_from_host(traits, func, args, kwargs):
            policy.synchronize()
        if policy.launch(traits.operator, args, kwargs):
            if traits.factory_size is not None:
                policy.reserve(_bytes(args, kwargs, traits.factory_size))
            try:
                out = func(*args, **kwargs)
            except RuntimeError as error:
                if divides_by_zero(func, error):
                    out = divide_anyway(context, func, args, kwargs)
                    substitute = substitute or policy.tracks_substitutes
                else:
                    out = run_otherwise(context, func, traits, args, kwargs, error)
        else:
            out = garbage(func, traits, args, kwargs)
        if traits.is_random and policy.tracks_substitutes:
            context.drew_random = substitute = True
        self._mark(out, traits, args, index, substitute=substitute)
        return out

    def _mark(
        self, out: Any, traits: Traits, args: Any, index: int | None, *, substitute: bool
    ) -> None:
        """Tag results; the substitute mark of a storage goes only when all of it is overwritten."""
        if out is None:
            # Operations on lists, as optimizers use them, return nothing and write to arguments.
            results = [*tensors_in(*(args[n] for n in traits.written if n < len(args)))]
        else:
            results = list(out) if type(out) in (list, tuple) else [out]
        for position, result in enumerate(results):
            if not isinstance(result, torch.Tensor) or position == traits.host_result:
                continue
            mark = substitute
            if traits.overwrites and mark and _covers_storage(result):
                value = args[1] if len(args) > 1 else None
                source = tag_of(value) if isinstance(value, torch.Tensor) else None
                random = traits.is_random and self._context.policy.tracks_substitutes
                mark = random or (source is not None and source.substitute)
            self._context.place(result, index, substitute=mark)


class StandinFunctionMode(TorchFunctionMode):
    """Gives factories the device that their ``device`` argument names."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        context = self._context
        if not context.active:
            return func(*args, **kwargs)
        device = kwargs.get("device")
        is_operation = isinstance(func, torch._ops.OpOverload)
        if is_operation and device is not None and context.index_of(device) is None:
            device = None  # see below: this "cpu" is of our making
        if func in _constructors():
            if device is None:
                device = torch_device_mode.CURRENT_DEVICE
            return self._construct(func, args, kwargs, device)
        instead = checked_call(context, func, args, kwargs)
        if instead is not None:
            return instead
        if device is not None or func is torch.Tensor.new_tensor or kwargs.get("pin_memory"):
            return self._construct(func, args, kwargs, device)
        if func is torch.device and len(args) == 1 and type(args[0]) is int:
            return torch.device("cuda", args[0])
        thread = context.thread
        before = (thread.call, thread.inside)
        if not is_operation:
            # Else a dispatch mode (the guard, one of the user's, ours) hands on an operation of a
            # torch function that we have seen, and whose arguments its factories follow.
            thread.call = (*args, *kwargs.values()) if kwargs else args
        thread.inside = True
        try:
            out = func(*args, **kwargs)
            if func is torch._C._VariableFunctions._pad_packed_sequence:
                # Its second result, the lengths, is a factory's that stays on the CPU.
                context.place(out[1], None, substitute=False)
            return out
        finally:
            thread.call, thread.inside = before

    def _construct(self, func: Any, args: Any, kwargs: dict[str, Any], device: Any) -> Any:
        context = self._context
        follows = func in _from_data() or func is torch.Tensor.new_tensor
        data = args[0] if args and follows else None
        source = tag_of(data) if isinstance(data, torch.Tensor) else None
        if isinstance(data, torch.Tensor) and func in (torch.as_tensor, torch.asarray):
            # They share memory where they can; a tag is the storage's, so it goes along.
            if device is None:
                return func(*args, **kwargs)
            copy = bool(kwargs.get("copy"))
            return data.to(device=device, dtype=kwargs.get("dtype"), copy=copy)
        if kwargs.get("out") is not None:
            return func(*args, **{key: item for key, item in kwargs.items() if key != "device"})
        pinned = kwargs.get("pin_memory")
        kwargs = {key: item for key, item in kwargs.items() if key not in ("device", "pin_memory")}
        if device is None:
            index = source.device_index if source is not None else None
        else:
            index = context.index_of(device)
            named = device if isinstance(device, torch.device | str) else None
            if index is None and named is not None and torch.device(named).type != "cpu":
                return func(*args, **kwargs, device=device)
        if index is not None:
            context.initialized = True
            context.policy.unreadable()
            if func in _from_data():
                context.policy.synchronize()
                func = torch.tensor if func is torch.as_tensor else func
                if func is torch.asarray:
                    kwargs["copy"] = True
        elif source is not None and device is not None:
            context.policy.synchronize()
        thread = context.thread
        before = (thread.call, thread.forced)
        thread.call, thread.forced = (), index
        try:
            # The device is named: a default device of the user's must not come into it.
            out = func(*args, **kwargs, device="cpu")
        finally:
            thread.call, thread.forced = before
        if isinstance(out, torch.Tensor) and (index is not None or is_on_device(out)):
            random = func in _random() and context.policy.tracks_substitutes and index is not None
            taint = source is not None and source.substitute
            context.place(out, index, substitute=random or taint)
        elif pinned and isinstance(out, torch.Tensor):
            pin(out)
        return out


def is_on_device(tensor: Any) -> bool:
    """Whether a tensor is tagged with a device."""
    found = tag_of(tensor)
    return found is not None and found.device_index is not None


@functools.cache
def _constructors() -> frozenset[Any]:
    return frozenset(torch_device_mode._device_constructors())


@functools.cache
def _from_data() -> frozenset[Any]:
    return frozenset((torch.tensor, torch.as_tensor, torch.asarray))


@functools.cache
def _random() -> frozenset[Any]:
    return frozenset((torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal))


def _check_mixture(
    func: Any, traits: Traits, args: Any, kwargs: Any, index: int, call: tuple[Any, ...]
) -> None:
    """Raise torch's error for CPU operands (of more than 0 dimensions) beside device operands."""
    if not traits.mixes_devices:
        given = {_address(tensor) for tensor in tensors_in(*call)}
        names = [item.name for item in func._schema.arguments]
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            for tensor in tensors_in(value):
                if is_on_device(tensor) or not tensor.dim():
                    continue
                if _address(tensor) in given:
                    raise different_devices(func, name, index)
        # None of them is the user's: they were made inside the running function, for its device.
        return
    if traits.operator is not None and traits.operator.family == "index":
        if not is_on_device(args[0]):
            msg = (
                "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            )
            raise RuntimeError(msg)
        if len(args) > 2 and not is_on_device(args[2]) and args[2].dim():
            raise different_devices(func, "values", index)


def _address(tensor: Tensor) -> int | None:
    storage = storage_of(tensor)
    return None if storage is None else storage._cdata


def _has_mask(traits: Traits, args: tuple[Any, ...]) -> bool:
    """Whether an index is a boolean mask, whose number of elements the host must wait for."""
    if traits.operator is None or traits.operator.family != "index":
        return False
    masks = (torch.bool, torch.uint8)
    return any(item is not None and item.dtype in masks for item in args[1])


def _copies_from_host(traits: Traits, func: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Whether CPU values are copied to the device with a copy that waits."""
    if not traits.overwrites or func is not torch.ops.aten.copy_.default:
        return False
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    return not non_blocking and not is_on_device(args[1])


def _covers_storage(tensor: Tensor) -> bool:
    storage = storage_of(tensor)
    return storage is not None and storage.nbytes() == tensor.numel() * tensor.element_size()


def _bytes(args: tuple[Any, ...], kwargs: Any, position: int) -> int:
    size = args[position] if position < len(args) else kwargs.get("size", ())
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return int(math.prod(size) * dtype.itemsize)
