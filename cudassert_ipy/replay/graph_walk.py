"""A walk over an autograd graph in the calling thread, node by node, as torch's engine does it.

After ``Engine::execute`` in ``torch/csrc/autograd/engine.cpp``: nodes run when all gradients for
them are there, those that were made last first.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch

from cudassert_ipy.replay.graph_nodes import (
    Gradient,
    Gradients,
    Node,
    add_gradients,
    free,
    is_accumulator,
    run_node,
    run_tensor_hooks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Edge = tuple[Any, int]

_NUMBERS: Final = itertools.count()


class Graph:
    """What can be reached from ``roots``."""

    def __init__(self, roots: Sequence[Edge]) -> None:
        self.roots = roots
        self.missing: Counter[Node] = Counter()
        """How many gradients each node waits for."""
        self._before: dict[Node, list[Node]] = {}
        self._leaves: dict[int, tuple[torch.Tensor, Node]] | None = None
        todo = []
        for node, _ in roots:
            self.missing[node] += 1
            if node not in self._before:
                self._before[node] = []
                todo.append(node)
        while todo:
            node = todo.pop()
            for following, _ in node.next_functions:
                if following is None:
                    continue
                self.missing[following] += 1
                if following not in self._before:
                    self._before[following] = []
                    todo.append(following)
                self._before[following].append(node)

    def edge_of_leaf(self, leaf: torch.Tensor) -> Edge:
        """Return where the gradient of ``leaf`` arrives; a place beyond the graph if nowhere."""
        if self._leaves is None:
            self._leaves = {
                id(variable): (variable, node)
                for node in self._before
                if is_accumulator(node) and (variable := node.variable) is not None
            }
        _, node = self._leaves.get(id(leaf), (None, object()))
        return node, 0

    def all_before(self, nodes: set[Node]) -> set[Node]:
        """Return the nodes from which one of ``nodes`` can be reached."""
        found: set[Node] = set()
        todo = [earlier for node in nodes for earlier in self._before.get(node, ())]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo.extend(self._before[node])
        return found


class Walk:
    """One call of ``backward`` or ``grad``.

    Args:
        graph: where it starts and what can be reached from there.
        inputs: edges whose gradients are wanted; empty: all leaves.
        accumulate: run the nodes of ``inputs`` (``backward``) instead of returning what they get.
        keep_graph: what the nodes saved stays for another call.
        retained: tensors whose ``.grad`` is kept, by the node that made them.

    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Edge],
        *,
        accumulate: bool,
        keep_graph: bool,
        retained: Mapping[Node, list[tuple[int, torch.Tensor]]],
    ) -> None:
        self.number = next(_NUMBERS)
        self.keep_graph = keep_graph
        self.restricted = bool(inputs)
        self.node: Node | None = None
        """The node that is running."""
        self._checks_nan = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        self.callbacks: list[Callable[[], Any]] = []
        """Run at the end; each may add more."""
        self._roots = graph.roots
        self._retained = retained
        self._missing = graph.missing
        self._needed: set[Node] = set()
        self._wanted: dict[Node, list[tuple[int, int]]] = {}
        for position, (node, output) in enumerate(inputs):
            if accumulate:
                self._needed.add(node)
            else:
                self._wanted.setdefault(node, []).append((output, position))
        self._needed |= graph.all_before({node for node, _ in inputs})
        self._captured: list[Gradient] = [None] * len(inputs)
        self._waiting: dict[Node, list[Gradient]] = {}
        self._ready = _Ready()

    def will_run(self, node: Node) -> bool:
        """Return whether this call runs ``node``."""
        if not self.restricted:
            return node in self._missing
        if is_accumulator(node) and node in self._wanted:
            msg = (
                "A leaf node was passed to _will_engine_execute_node but we are currently running "
                "autograd.grad(). This is currently not supported."
            )
            raise RuntimeError(msg)
        return self._takes_part(node)

    def run(self, gradients: Gradients) -> list[Gradient]:
        """Start with ``gradients`` at the roots; return what the wanted inputs got."""
        if len(self._roots) == 1:
            ((node, output),) = self._roots
            inputs: list[Gradient] = [None] * len(node._input_metadata)
            inputs[output] = gradients[0]
            self._ready.push(node, inputs)
        else:
            self._send(self._roots, gradients)
        while self._ready:
            node, inputs = self._ready.pop()
            self.node = node
            try:
                self._evaluate(node, tuple(inputs))
            except BaseException:
                if torch.is_anomaly_enabled():
                    _tell_forward(node)
                raise
            finally:
                self.node = None
        if self._waiting:
            msg = "could not compute gradients for some functions"
            raise RuntimeError(msg)
        for callback in self.callbacks:  # grows while it runs
            callback()
        return self._captured

    def _takes_part(self, node: Node) -> bool:
        return not self.restricted or node in self._needed or node in self._wanted

    def _evaluate(self, node: Node, gradients: Gradients) -> None:
        retained = self._retained.get(node, ())
        runs = not self.restricted or node in self._needed
        if not runs:
            gradients = run_tensor_hooks(node, gradients, retained)
        for output, position in self._wanted.get(node, ()):
            # Of a node that runs as well, torch takes the gradient of before the tensor's hooks.
            self._captured[position] = gradients[output]
        if not runs:
            return
        gradients = run_tensor_hooks(node, gradients, retained)
        results = run_node(node, gradients)
        if not self.keep_graph:
            free(node)
        if self._checks_nan:
            _check_nan(node, results)
        self._send(node.next_functions, results)

    def _send(self, edges: Sequence[Edge], gradients: Gradients) -> None:
        for (node, output), gradient in zip(edges, gradients, strict=True):
            if node is None:
                continue
            self._missing[node] -= 1
            if not self._takes_part(node):
                continue
            inputs = self._waiting.get(node)
            if inputs is None:
                inputs = self._waiting[node] = [None] * len(node._input_metadata)
            inputs[output] = add_gradients(inputs[output], gradient)
            if self._missing[node] == 0:
                del self._waiting[node]
                self._ready.push(node, inputs)


def _check_nan(node: Node, results: Gradients) -> None:
    for index, result in enumerate(results):
        if result is None:
            continue
        with torch.no_grad(), torch._C.DisableTorchFunction():
            bad = bool(torch.isnan(result).any())
        if bad:
            msg = f"Function '{node.name()}' returned nan values in its {index}th output."
            raise RuntimeError(msg)


def _tell_forward(node: Node) -> None:
    lines = node.metadata.get("traceback_")
    if lines:
        warnings.warn(
            f"Error detected in {node.name()}. Traceback of forward call that caused the error:\n"
            + "".join(lines),
            stacklevel=4,
        )


class _Ready:
    """Nodes that can run, the last made first; equal ones in the order of torch's queue.

    Leaves are all equal (the highest number). A heap with the moves of libstdc++'s
    ``priority_queue``, so that hooks of several parameters run in torch's order.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Node, list[Gradient]]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, node: Node, inputs: list[Gradient]) -> None:
        item = (node._sequence_nr(), node, inputs)
        self._heap.append(item)
        self._rise(len(self._heap) - 1, item)

    def pop(self) -> tuple[Node, list[Gradient]]:
        heap = self._heap
        _, node, inputs = heap[0]
        item = heap.pop()
        if heap:
            hole, child, size = 0, 2, len(heap)
            while child < size:
                if heap[child][0] < heap[child - 1][0]:
                    child -= 1
                heap[hole] = heap[child]
                hole, child = child, 2 * (child + 1)
            if child == size:
                heap[hole] = heap[child - 1]
                hole = child - 1
            self._rise(hole, item)
        return node, inputs

    def _rise(self, hole: int, item: tuple[int, Node, list[Gradient]]) -> None:
        heap = self._heap
        while hole > 0 and heap[(hole - 1) // 2][0] < item[0]:
            heap[hole] = heap[(hole - 1) // 2]
            hole = (hole - 1) // 2
        heap[hole] = item


class Walks(threading.local):
    """The walks of each thread, the innermost last: hooks may call backward again."""

    def __init__(self) -> None:
        self.running: list[Walk] = []
