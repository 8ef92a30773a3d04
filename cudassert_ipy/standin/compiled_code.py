"""Compiled code and CUDA graphs on the stand-in device: compiled code runs eagerly."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages
from cudassert_ipy.standin.unsupported import needs_device

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches


def install_compiled_code(context: Context, patches: Patches) -> None:
    """Make ``torch.compile`` eager and CUDA graphs capture without replaying."""
    _install_eager(context, patches)
    _install_graphs(context, patches)


def _install_eager(context: Context, patches: Patches) -> None:
    # A dispatch mode is not enough: it is off while it handles an operation, and what runs then is
    # compiled. Importing torch._dynamo takes a second, so it is left until somebody else does it.
    original = torch.compile

    def force_eager() -> None:
        from torch._dynamo import eval_frame

        # What torch.compiler.set_stance("force_eager") sets; seen in torch 2.6 to 2.14.
        kind = getattr(eval_frame, "DynamoStance", None)
        if kind is not None and eval_frame._stance.stance != "force_eager":
            patches.set(eval_frame, "_stance", kind("force_eager"))

    def compile_(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        if context.active:
            force_eager()
            context.policy.remark(messages.STANDIN_EAGER)
        return compiled

    patches.set(torch, "compile", compile_)
    if "torch._dynamo.eval_frame" in sys.modules:
        force_eager()


def _install_graphs(context: Context, patches: Patches) -> None:
    class CUDAGraph:
        """A graph whose capture runs, and is checked, like any other code."""

        def __init__(self, keep_graph: bool = False) -> None:
            pass

        def capture_begin(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
            context.thread.capturing = True

        def capture_end(self) -> None:
            context.thread.capturing = False

        def replay(self) -> None:
            raise needs_device(context, messages.STANDIN_GRAPH_REPLAY)

        def pool(self) -> tuple[int, int]:
            return 0, 1

        def instantiate(self) -> None:
            """Do nothing: there is no executable graph."""

        def reset(self) -> None:
            """Do nothing: there is nothing to free."""

        def register_generator_state(self, generator: Any) -> None:
            """Do nothing: draws are those of the capture."""

        def enable_debug_mode(self) -> None:
            """Do nothing: there is nothing to print."""

    class graph:  # noqa: N801
        """Context manager that captures into a graph."""

        def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **_: Any) -> None:
            self._graph, self._pool = cuda_graph, pool
            self._stream = torch.cuda.stream(torch.cuda.Stream() if stream is None else stream)

        def __enter__(self) -> None:
            torch.cuda.synchronize()
            self._stream.__enter__()
            self._graph.capture_begin(self._pool)

        def __exit__(self, *exception: object) -> None:
            self._graph.capture_end()
            self._stream.__exit__(*exception)

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        context.policy.remark(messages.STANDIN_EAGER)
        return callables

    CUDAGraph.__module__, CUDAGraph.__qualname__ = "torch.cuda", "CUDAGraph"
    cuda: dict[str, Any] = {
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "make_graphed_callables": make_graphed_callables,
        "is_current_stream_capturing": lambda: context.thread.capturing,
        "graph_pool_handle": lambda: (0, 1),
    }
    for name, value in cuda.items():
        patches.replace(torch.cuda, name, value)
        patches.replace(torch.cuda.graphs, name, value)
