"""Autograd graphs of before the fork: what they saved, and their hooks, are out of reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from cudassert_ipy import messages
from cudassert_ipy.replay.iterators import NeedsParentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def forbid_old_graphs(tensors: Iterable[torch.Tensor], used: Callable[[str], None]) -> None:
    """Make backward through the graphs of ``tensors`` raise :class:`NeedsParentError`.

    Such a graph keeps values in C++ (``SavedVariable``), where nothing can replace them: on a
    device the child would have to read device memory. And the hooks of its tensors do not show, so
    that our own backward would pass over them. Forward through such graphs works. ``used`` is told
    the reason when backward gets there, whether or not the cell catches the error.
    """

    def refuse(*_: Any) -> NoReturn:
        used(messages.REPLAY_OLD_GRAPH)
        raise NeedsParentError(messages.REPLAY_OLD_GRAPH)

    with torch._C.DisableTorchFunction():
        for node in {tensor.grad_fn for tensor in tensors}:
            if node is not None:
                node.register_prehook(refuse)
