"""The random generators of the host: Python's, NumPy's and torch's on the CPU."""

from __future__ import annotations

import base64
import ctypes
import random
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of the generators whose libraries are imported; taking one takes microseconds.

    Attributes:
        python: ``random.getstate()``.
        numpy: ``numpy.random.get_state()`` of the global legacy generator, or None.
        torch: bytes of ``torch.get_rng_state()``, or None.

    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...] | None
    torch: bytes | None

    @classmethod
    def take(cls) -> RandomState:
        """Return the states as they are now. Imports no library that is not in use.

        Except ``numpy.random`` where NumPy is: from 2.3 on it is loaded, and so seeded, at first
        use, which must not be in a parent and a child each for itself.
        """
        numpy_random = import_module("numpy.random") if "numpy" in sys.modules else None
        torch = sys.modules.get("torch")
        return cls(
            random.getstate(),
            None if numpy_random is None else numpy_random.get_state(legacy=True),
            _torch_state(torch) if torch is not None and hasattr(torch, "get_rng_state") else None,
        )

    def restore(self) -> None:
        """Set the generators to these states."""
        random.setstate(self.python)
        if self.numpy is not None:
            import numpy as np

            np.random.set_state(self.numpy)
        if self.torch is not None:
            import torch

            state = torch.frombuffer(bytearray(self.torch), dtype=torch.uint8)
            torch.default_generator.set_state(state)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        version, words, gauss = self.python
        data: dict[str, Any] = {"python": [version, list(words), gauss]}
        if self.numpy is not None:
            name, keys, position, has_gauss, cached = self.numpy
            key_list = [int(key) for key in keys]
            data["numpy"] = [str(name), key_list, int(position), int(has_gauss), float(cached)]
        if self.torch is not None:
            data["torch"] = base64.b64encode(self.torch).decode("ascii")
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RandomState:
        """Read what :meth:`to_dict` wrote. Raises ``ValueError`` for anything else."""
        try:
            version, words, gauss = data["python"]
            encoded = data.get("torch")
            numpy = data.get("numpy")
            return cls(
                (version, tuple(words), gauss),
                None if numpy is None else _numpy_state(*numpy),
                None if encoded is None else base64.b64decode(encoded),
            )
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"not a random state: {error}"
            raise ValueError(msg) from error


def _numpy_state(
    name: str, keys: list[int], position: int, has_gauss: int, cached: float
) -> tuple[Any, ...]:
    import numpy as np

    return (name, np.array(keys, dtype=np.uint32), position, has_gauss, cached)


def _torch_state(torch: Any) -> bytes:
    # Through the address: `.numpy()` and `bytes()` would go through whatever modes are active.
    state = torch.default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())
