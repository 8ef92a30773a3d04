"""One node of an autograd graph: run it as torch's engine would, with its hooks and its checks.

The rules and most messages are those of ``torch/csrc/autograd/engine.cpp`` (``call_function``,
``validate_outputs``), ``python_function.cpp`` (``PyNode::apply``) and ``python_hook.cpp``. What
Python cannot see of a node (hooks on tensors, whether its values are freed, whether it makes zeros
of missing gradients) is noted in the node's ``metadata`` by :mod:`cudassert_ipy.replay.backward`.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Node: TypeAlias = Any
"""A node has no Python class of its own: the types of C++ nodes have ``object`` as base."""
Gradient: TypeAlias = torch.Tensor | None
Gradients: TypeAlias = tuple[Gradient, ...]

FREED_TWICE: Final = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)

# Keys in a node's `metadata`, a dict that torch keeps for each C++ node (anomaly mode uses it).
_HOOKS: Final = "cudassert_ipy.hooks"
_FREED: Final = "cudassert_ipy.freed"
_NO_ZEROS: Final = "cudassert_ipy.no_zeros"


class UnsupportedGraphError(RuntimeError):
    """The walk cannot do rightly what torch's engine does here."""


# --- what is noted at a node ---------------------------------------------------------------------


def note_hooks(node: Node, output: int, hooks: dict[Any, Any]) -> None:
    """Note the hooks of the tensor that is output number ``output`` of ``node``."""
    noted = node.metadata.setdefault(_HOOKS, [])
    if not any(known is hooks for _, known in noted):
        noted.append((output, hooks))


def note_zeros(node: Node, wanted: bool) -> None:
    """Note whether a custom Function wants zeros for missing gradients (the default)."""
    node.metadata[_NO_ZEROS] = not wanted


def free(node: Node) -> None:
    """Let go of what ``node`` saved: a later backward through it raises, as with torch's engine.

    Python cannot call ``release_variables``; hooks on a saved tensor take its place just as well.
    What has hooks of the user already stays in memory and counts as freed.
    """
    node.metadata[_FREED] = True
    kind: Any = type(node)
    for name in _raw_saved_names(kind):
        saved = getattr(node, name)
        for one in saved if isinstance(saved, tuple) else (saved,):
            # `data` is there in torch 2.13; without it the RuntimeError says so, which is slow.
            if getattr(one, "data", one) is None:
                continue
            # RuntimeError: nothing was saved there, or there are hooks already.
            with contextlib.suppress(RuntimeError):
                one.register_hooks(_nothing, _refuse_freed)


def _refuse_freed(_: Any) -> NoReturn:
    raise RuntimeError(FREED_TWICE)


def is_freed(node: Node) -> bool:
    """Return whether what ``node`` saved is freed."""
    return _FREED in node.metadata


# --- hooks ---------------------------------------------------------------------------------------


def run_tensor_hooks(
    node: Node, gradients: Gradients, retained: Iterable[tuple[int, torch.Tensor]]
) -> Gradients:
    """Run the hooks of the tensors that ``node`` made, then fill ``.grad`` of ``retained`` ones."""
    if is_accumulator(node):
        hooks = node.variable._backward_hooks
        noted = [(0, hooks)] if hooks else []
    else:
        noted = node.metadata.get(_HOOKS, ())
    for output, hooks in noted:
        for hook in list(hooks.values()):
            before = gradients[output]
            result = hook(before)
            if result is None or result is before:
                continue
            _check_hooked(before, result, hook)
            gradients = (*gradients[:output], result, *gradients[output + 1 :])
    for output, tensor in retained:
        _retain(tensor, gradients[output])
    return gradients


def _retain(tensor: torch.Tensor, gradient: Gradient) -> None:
    # `VariableHooks::retain_grad` in torch/csrc/autograd/variable.cpp.
    if gradient is None:
        return
    with torch._C.DisableTorchFunction():
        if tensor.grad is not None:
            tensor.grad = tensor.grad + gradient
        elif gradient.layout is torch.strided:
            tensor.grad = gradient.clone(memory_format=torch.contiguous_format)
        else:
            tensor.grad = gradient.clone()


def _run_prehooks(node: Node, gradients: Gradients) -> Gradients:
    for hook in _node_hooks(node.register_prehook):
        result = hook(gradients)
        if result is not None and result is not gradients:
            gradients = _checked_hooked(gradients, result, hook)
    return gradients


def _run_posthooks(node: Node, results: Gradients, gradients: Gradients) -> Gradients:
    for hook in _node_hooks(node.register_hook):
        changed = hook(results, gradients)
        if changed is not None and changed is not results:
            results = _checked_hooked(results, changed, hook)
    return results


def _node_hooks(register: Any) -> list[Any]:
    """Return the hooks of a node: a handle of one more hook knows the dict that has all."""
    handle = register(_nothing)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return list(hooks.values())


def _nothing(*_: Any) -> None:
    """Stand for a hook, or pack a saved tensor into nothing."""


def _checked_hooked(before: Gradients, after: Any, hook: Any) -> Gradients:
    if not isinstance(after, tuple):
        msg = f"expected tuple, but hook returned '{type(after).__name__}'"
        raise TypeError(msg)
    if len(before) != len(after):
        msg = (
            f"hook '{_name_of(hook)}' has returned an incorrect number of values "
            f"(got {len(after)}, but expected {len(before)})"
        )
        raise RuntimeError(msg)
    for old, new in zip(before, after, strict=True):
        if new is not old:
            _check_hooked(old, new, hook)
    return after


def _check_hooked(before: Gradient, after: Any, hook: Any) -> None:
    if after is None:
        return
    if before is None:
        msg = "can't replace a None gradient with a non-None value"
        raise RuntimeError(msg)
    if not isinstance(after, torch.Tensor):
        msg = f"expected Variable, but hook returned '{type(after).__name__}'"
        raise TypeError(msg)
    with torch._C.DisableTorchFunction():
        if after.type() != before.type():
            msg = (
                f"hook '{_name_of(hook)}' has changed the type of value "
                f"(was {before.type()} got {after.type()})"
            )
            raise RuntimeError(msg)
        if after.shape != before.shape:
            msg = f"hook '{_name_of(hook)}' has changed the size of value"
            raise RuntimeError(msg)


def _name_of(hook: Any) -> str:
    return getattr(hook, "__name__", None) or "<unknown>"


# --- running a node ------------------------------------------------------------------------------


def run_node(node: Node, gradients: Gradients) -> Gradients:
    """Run ``node`` with its own hooks and return a gradient for each of its ``next_functions``."""
    gradients = _run_prehooks(node, gradients)
    if isinstance(node, torch._C._FunctionBase):
        results = _run_python_function(node, gradients)
    else:
        if is_freed(node):
            _check_not_freed(node)
        returned = node(*gradients)
        results = returned if isinstance(returned, tuple) else (returned,)
    edges = node.next_functions
    if len(results) != len(edges):
        msg = (
            f"Function {node.name()} returned an invalid number of gradients - expected "
            f"{len(edges)}, but got {len(results)}"
        )
        raise RuntimeError(msg)
    results = fit_gradients(edges, results, f"Function {node.name()} returned an ")
    return _run_posthooks(node, results, gradients)


def _check_not_freed(node: Node) -> None:
    kind: Any = type(node)
    if kind.__name__ == "CppFunction":
        raise UnsupportedGraphError  # only C++ knows what it has saved
    for name in _raw_saved_names(kind):
        try:
            saved = getattr(node, name.replace("_raw_saved_", "_saved_"))
        except Exception:  # our refusal, or a hook of the user: so there was something
            saved = ()
        if saved is not None:
            raise RuntimeError(FREED_TWICE)


@functools.cache
def _raw_saved_names(kind: Any) -> tuple[str, ...]:
    """Return the attributes of a node type that are saved tensors, not unpacked."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _run_python_function(node: Any, gradients: Gradients) -> Gradients:
    """Run the ``backward`` of a custom ``torch.autograd.Function``."""
    if not node.metadata.get(_NO_ZEROS):
        gradients = tuple(
            _zeros(metadata) if gradient is None else gradient
            for gradient, metadata in zip(gradients, node._input_metadata, strict=True)
        )
    returned = node.apply(*gradients)
    results = returned if isinstance(returned, tuple) else (returned,)
    needs = node.needs_input_grad
    if len(results) > len(needs) and all(result is None for result in results[len(needs) :]):
        results = results[: len(needs)]
    if len(results) != len(needs):
        msg = (
            f"function {node.name()} returned an incorrect number of gradients "
            f"(expected {len(needs)}, got {len(results)})"
        )
        raise RuntimeError(msg)
    edges = node.next_functions
    # Edges stand for the tensors among the inputs, `needs` for all inputs: those that need a
    # gradient are the edges that lead somewhere. Where no edge leads nowhere, every other input
    # is no tensor, and torch allows nothing but None there.
    only_tensors = all(following is not None for following, _ in edges)
    wanted = []
    for position, (result, needed) in enumerate(zip(results, needs, strict=True), start=1):
        if needed:
            if result is not None and not isinstance(result, torch.Tensor):
                msg = f"expected Variable or None (got {type(result).__name__})"
                raise RuntimeError(msg)
            wanted.append(result)
        elif result is not None and only_tensors:
            msg = (
                f"function {node.name()} returned a gradient different than None at position "
                f"{position}, but the corresponding forward input was not a Variable"
            )
            raise RuntimeError(msg)
    leading = [number for number, (following, _) in enumerate(edges) if following is not None]
    if len(leading) != len(wanted):
        raise UnsupportedGraphError
    fitted: list[Gradient] = [None] * len(edges)
    for number, result in zip(leading, wanted, strict=True):
        fitted[number] = result
    return tuple(fitted)


def _zeros(metadata: Any) -> torch.Tensor:
    if getattr(metadata, "is_nested_tensor", False):
        raise UnsupportedGraphError
    with torch._C.DisableTorchFunction():
        return torch.zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)


def is_accumulator(node: Node) -> bool:
    """Return whether ``node`` adds to the ``.grad`` of a leaf."""
    return type(node).__name__ == "AccumulateGrad"


# --- gradients -----------------------------------------------------------------------------------


def fit_gradients(
    edges: Sequence[tuple[Node | None, int]], gradients: Gradients, says: str
) -> Gradients:
    """Sum each gradient to the shape and cast it to the dtype of what it is the gradient of.

    Raises:
        RuntimeError: it does not fit, in torch's words after ``says``.

    """
    return tuple(
        gradient
        if gradient is None or node is None
        else _fit(
            gradient, node, node._input_metadata[output], f"{says}invalid gradient at ", index
        )
        for index, ((node, output), gradient) in enumerate(zip(edges, gradients, strict=True))
    )


def _fit(gradient: torch.Tensor, node: Node, metadata: Any, says: str, index: int) -> torch.Tensor:
    nested = bool(getattr(metadata, "is_nested_tensor", False))
    if gradient.is_nested != nested:
        raise UnsupportedGraphError
    says = f"{says}index {index} - "
    with torch._C.DisableTorchFunction():
        # The sizes of a nested tensor do not show; torch sums none of these either.
        shape = None if nested else tuple(metadata.shape)
        if shape is not None and tuple(gradient.shape) != shape:
            if not _sums_to(tuple(gradient.shape), shape):
                msg = (
                    f"{says}got {list(gradient.shape)} but expected shape compatible with "
                    f"{list(shape)}"
                )
                raise RuntimeError(msg)
            gradient = gradient.sum_to_size(shape)
        wanted = metadata.dtype
        if is_accumulator(node):
            # None: the leaf takes a gradient of any dtype (torch 2.10 and later).
            wanted = getattr(node.variable, "grad_dtype", wanted)
        if wanted is not None and gradient.dtype is not wanted:
            same_kind = gradient.is_complex() == wanted.is_complex
            if not (gradient.is_floating_point() or same_kind):
                msg = (
                    "Expected isFloatingType(grad.scalar_type()) || (input_is_complex == "
                    "grad_is_complex) to be true, but got false."
                )
                raise RuntimeError(msg)
            gradient = gradient.to(wanted)
        device = metadata.device
        if torch._C.TensorBase.device.__get__(gradient) != device:
            if gradient.dim() != 0:
                msg = (
                    f"{says}expected device {device} but got "
                    f"{torch._C.TensorBase.device.__get__(gradient)}"
                )
                raise RuntimeError(msg)
            gradient = gradient.to(device)
    return gradient


def _sums_to(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if len(shape) > len(given):
        return False
    trailing = given[len(given) - len(shape) :]
    return all(size in (1, have) for size, have in zip(shape, trailing, strict=True))


def add_gradients(old: Gradient, new: Gradient) -> Gradient:
    """Return the sum of two gradients of one output; None is no gradient."""
    if old is None or new is None:
        return new if old is None else old
    with torch._C.DisableTorchFunction():
        # A sparse and a dense tensor add up in this order only (`input_buffer.cpp`).
        return new + old if old.is_sparse else old + new
