"""The torch modes that are active at a fork: ours are dropped, the user's are kept."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import _pop_mode as pop_function_mode
from torch.overrides import _push_mode as push_function_mode
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as push_dispatch_mode

if TYPE_CHECKING:
    from collections.abc import Iterator


class ActiveModes:
    """Takes all modes off the stacks of this thread; :meth:`user_modes` puts the user's back.

    Private functions of torch, the same from 2.6 to 2.14; the public way to leave a mode is to
    leave the frame that entered it, which in a forked child never happens.
    """

    def __init__(self) -> None:
        self._function = [pop_function_mode() for _ in range(torch._C._len_torch_function_stack())][
            ::-1
        ]
        self._dispatch = [pop_dispatch_mode() for _ in range(torch._C._len_torch_dispatch_stack())][
            ::-1
        ]

    @contextlib.contextmanager
    def user_modes(self) -> Iterator[None]:
        """Have the user's modes active, e.g. ``torch.set_default_device("cuda")``."""
        function = [mode for mode in self._function if not _is_ours(mode)]
        dispatch = [mode for mode in self._dispatch if not _is_ours(mode)]
        for mode in function:
            push_function_mode(mode)
        for mode in dispatch:
            push_dispatch_mode(mode)
        try:
            yield
        finally:
            for _ in function:
                pop_function_mode()
            for _ in dispatch:
                pop_dispatch_mode()


def _is_ours(mode: Any) -> bool:
    return type(mode).__module__.partition(".")[0] == "cudassert_ipy"
