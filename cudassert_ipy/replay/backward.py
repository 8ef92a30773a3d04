"""Backward in the child without torch's engine, which refuses to work in a forked process.

Once a backward has run on a machine with a GPU, the engine has a thread per device and knows that
a fork loses them; before that, the child would start such threads for a device that it may not
touch. So wherever this torch can have a device, the child walks the graph by itself, in the calling
thread: the line of ``loss.backward()`` is on the stack when a check fails. Not checked on a GPU.

Not seen by the walk are hooks that C++ code has put on tensors or nodes (DistributedDataParallel).
"""

from __future__ import annotations

import contextlib
import re
import sys
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge
from torch.autograd.variable import Variable

from cudassert_ipy import messages
from cudassert_ipy.checks.frames import is_user_file
from cudassert_ipy.checks.location import running
from cudassert_ipy.replay.graph_nodes import (
    FREED_TWICE,
    Node,
    UnsupportedGraphError,
    fit_gradients,
    is_freed,
    note_hooks,
    note_zeros,
)
from cudassert_ipy.replay.graph_walk import Graph, Walk, Walks
from cudassert_ipy.replay.iterators import NeedsParentError
from cudassert_ipy.standin.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cudassert_ipy.model import Finding

_OUT_OF_TREE: Final = ("torch_xla", "habana_frameworks")
_UNNAMED_BACKEND: Final = "privateuseone"
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+), in .*\n(?:    (.*)\n)?', re.MULTILINE)
"""A frame in the text of ``traceback.format_stack``, which anomaly mode keeps."""


def torch_engine_works() -> bool:
    """Return whether torch's engine surely works in a fork: no device can have threads in it."""
    version = torch.version
    built = [getattr(version, name, None) for name in ("cuda", "hip", "xpu")]
    if any(built) or torch.backends.mps.is_built():
        return False
    if any(name in sys.modules for name in _OUT_OF_TREE):
        return False
    return bool(torch._C._get_privateuse1_backend_name() == _UNNAMED_BACKEND)


def can_walk() -> bool:
    """Return whether this torch lets Python see what the walk needs (seen in 2.6 to 2.13)."""
    node = torch.ones(1, requires_grad=True).mul(2).grad_fn
    needed = ("_input_metadata", "_sequence_nr", "metadata", "register_prehook", "next_functions")
    return all(hasattr(node, name) for name in needed) and hasattr(Variable, "_execution_engine")


@contextlib.contextmanager
def own_backward(used: Callable[[str], None]) -> Iterator[None]:
    """Let every backward of this process be our walk.

    Graphs from before do not show their hooks: see :func:`graphs.forbid_old_graphs`. ``used`` is
    told the reason when a backward cannot be done rightly; it then raises
    :class:`NeedsParentError`, whether or not the cell catches that.
    """
    engine = _Engine(used)
    patches = Patches()
    patches.set(Variable, "_execution_engine", engine)
    _note_what_python_cannot_see(patches, engine)
    _answer_for_the_engine(patches, engine)
    try:
        yield
    finally:
        patches.remove()


def name_node(finding: Finding) -> Finding:
    """Add to the hint of ``finding`` in which node of the graph it was made, if it was in one.

    Hooks and custom functions have user frames of their own, which say it better. The line of the
    forward is known where the user has torch's anomaly mode on.
    """
    if running("torch.autograd.graph._engine_run_backward") is None:
        return finding
    node: Node | None = torch._C._current_autograd_node()
    if node is None:
        return finding
    text = messages.REPLAY_IN_BACKWARD.format(node=node.name())
    stack = "".join(node.metadata.get("traceback_") or ())
    for file, line, source in _FRAME.findall(stack):
        if is_user_file(file):
            place = f"line {line}: {source.strip()}" if source else f"line {line}."
            text = messages.REPLAY_IN_BACKWARD_OF.format(node=node.name(), place=place)
    return replace(finding, hint=f"{finding.hint} {text}".strip())


class _Engine:
    """What torch's Python code asks of ``Variable._execution_engine``."""

    def __init__(self, used: Callable[[str], None]) -> None:
        self._used = used
        self._walks = Walks()
        self._retaining: list[weakref.ref[torch.Tensor]] = []

    @property
    def walk(self) -> Walk | None:
        """The innermost walk of this thread."""
        running = self._walks.running
        return running[-1] if running else None

    def retain(self, tensor: torch.Tensor) -> None:
        """Keep ``.grad`` of a tensor that is no leaf."""
        self._retaining = [known for known in self._retaining if known() is not None]
        if not any(known() is tensor for known in self._retaining):
            self._retaining.append(weakref.ref(tensor))

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Run ``callback`` at the end of the current backward."""
        if self.walk is None:
            msg = "Final callbacks can only be installed during backward pass."
            raise RuntimeError(msg)
        self.walk.callbacks.append(callback)

    def is_checkpoint_valid(self) -> bool:
        """Return whether a reentrant checkpoint may run: not within ``autograd.grad``."""
        return not any(walk.restricted for walk in self._walks.running)

    def run_backward(
        self,
        tensors: tuple[Any, ...],
        grad_tensors: tuple[torch.Tensor | None, ...],
        keep_graph: bool,
        create_graph: bool,
        inputs: tuple[Any, ...] = (),
        allow_unreachable: bool = False,
        accumulate_grad: bool = False,
    ) -> tuple[torch.Tensor | None, ...] | None:
        """Do what ``THPEngine_run_backward`` (``python_engine.cpp``) does.

        Raises:
            NeedsParentError: the graph has something that the walk cannot do rightly.

        """
        try:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                raise UnsupportedGraphError  # its hooks are in C++, its peers beyond the fork
            roots = [_root(tensor, number) for number, tensor in enumerate(tensors)]
            graph = Graph(roots)
            wanted = [_input(tensor, graph, accumulate=accumulate_grad) for tensor in inputs]
            gradients = fit_gradients(roots, grad_tensors, "")
            found = self._walk(
                Walk(
                    graph,
                    wanted,
                    accumulate=accumulate_grad,
                    keep_graph=keep_graph,
                    retained=self._retained(),
                ),
                gradients,
                create_graph=create_graph,
            )
        except UnsupportedGraphError as error:
            self._used(messages.REPLAY_NO_BACKWARD)
            raise NeedsParentError(messages.REPLAY_NO_BACKWARD) from error
        if accumulate_grad or not inputs:
            return None
        for number, gradient in enumerate(found):
            if gradient is None and not allow_unreachable:
                msg = (
                    f"The differentiated Tensor at index {number} appears to not have been used in "
                    "the graph. Set allow_unused=True if this is the desired behavior."
                )
                raise RuntimeError(msg)
        return tuple(found)

    def _walk(
        self, walk: Walk, gradients: tuple[Any, ...], *, create_graph: bool
    ) -> list[torch.Tensor | None]:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(create_graph)
        self._walks.running.append(walk)
        try:
            return walk.run(gradients)
        finally:
            self._walks.running.pop()
            torch._C._set_grad_enabled(before)

    def _retained(self) -> dict[Node, list[tuple[int, torch.Tensor]]]:
        found: dict[Node, list[tuple[int, torch.Tensor]]] = {}
        for known in self._retaining:
            tensor = known()
            if tensor is not None:
                found.setdefault(tensor.grad_fn, []).append((tensor.output_nr, tensor))
        return found


def _root(tensor: Any, number: int) -> tuple[Node, int]:
    if not isinstance(tensor, torch.Tensor):
        return tensor[0], tensor[1]
    if not tensor.requires_grad:
        msg = f"element {number} of tensors does not require grad and does not have a grad_fn"
        raise RuntimeError(msg)
    with torch._C.DisableTorchFunction():
        if tensor.grad_fn is not None:
            return tensor.grad_fn, tensor.output_nr
        try:
            node, output, *_ = get_gradient_edge(tensor)
        except AttributeError as error:  # a leaf of a `torch.func` level that is over
            raise UnsupportedGraphError from error
    return node, output


def _input(tensor: Any, graph: Graph, *, accumulate: bool) -> tuple[Node, int]:
    if not isinstance(tensor, torch.Tensor):
        return tensor[0], tensor[1]
    if not tensor.requires_grad:
        msg = "One of the differentiated Tensors does not require grad"
        raise RuntimeError(msg)
    if accumulate and not tensor.is_leaf:
        tensor.retain_grad()
    with torch._C.DisableTorchFunction():
        if tensor.grad_fn is not None:
            return tensor.grad_fn, tensor.output_nr
        return graph.edge_of_leaf(tensor)


def _note_what_python_cannot_see(patches: Patches, engine: _Engine) -> None:
    """Note hooks, retained gradients and missing zeros while the graph is built."""
    register_hook = torch.Tensor.register_hook
    retain_grad = torch.Tensor.retain_grad
    base: Any = torch._C._FunctionBase

    def note_hook(self: torch.Tensor, hook: Any) -> Any:
        handle = register_hook(self, hook)
        if self.grad_fn is not None:
            note_hooks(self.grad_fn, self.output_nr, handle.hooks_dict_ref())
        return handle

    def note_retain(self: torch.Tensor) -> None:
        retain_grad(self)
        if not self.is_leaf:
            engine.retain(self)

    def set_zeros(self: Any, value: bool) -> None:
        base.materialize_grads.__set__(self, value)
        note_zeros(self, value)

    def saved(name: str) -> property:
        original = getattr(base, name)

        def get(self: Any) -> Any:
            if is_freed(self):
                raise RuntimeError(FREED_TWICE)
            return original.__get__(self)

        return property(get)

    patches.set(torch.Tensor, "register_hook", note_hook)
    patches.set(torch.Tensor, "retain_grad", note_retain)
    patches.set(BackwardCFunction, "materialize_grads", property(None, set_zeros))
    for name in ("saved_tensors", "saved_variables"):
        patches.set(BackwardCFunction, name, saved(name))


def _answer_for_the_engine(patches: Patches, engine: _Engine) -> None:
    """Answer what hooks and checkpoints ask ``torch._C`` about the backward that runs."""
    core: Any = torch._C

    def number() -> int:
        return -1 if engine.walk is None else engine.walk.number

    def node() -> Node | None:
        return None if engine.walk is None else engine.walk.node

    def will_run(node: Node) -> bool:
        if engine.walk is None:
            msg = "_get_should_execute_nodes should only be called during the backward pass"
            raise RuntimeError(msg)
        return engine.walk.will_run(node)

    def keep_graph() -> bool:
        return engine.walk is not None and engine.walk.keep_graph

    patches.replace(core, "_current_graph_task_id", number)
    patches.replace(core, "_current_autograd_node", node)
    patches.replace(core, "_will_engine_execute_node", will_run)
    patches.replace(core._autograd, "_get_current_graph_task_keep_graph", keep_graph)
