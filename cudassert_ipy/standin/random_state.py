"""Random numbers of the stand-in device: drawn from the CPU's default generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy.standin.patches import own

if TYPE_CHECKING:
    from cudassert_ipy.standin.context import Context
    from cudassert_ipy.standin.patches import Patches


def install_random_state(context: Context, patches: Patches) -> None:
    """Replace seeds, states and generators, so that seeding works as on the CPU."""
    get_state, set_state = torch.get_rng_state, torch.set_rng_state
    generator = torch.default_generator

    def manual_seed(seed: int) -> None:
        generator.manual_seed(int(seed))

    def get_rng_state(device: Any = "cuda") -> Any:  # noqa: ARG001
        context.use()
        return get_state()

    def set_rng_state(new_state: Any, device: Any = "cuda") -> None:  # noqa: ARG001
        context.use()
        set_state(new_state)

    names = {
        "manual_seed": manual_seed,
        "manual_seed_all": own(manual_seed),
        "seed": lambda: generator.seed() and None,
        "seed_all": lambda: generator.seed() and None,
        "initial_seed": own(generator.initial_seed),
        "get_rng_state": get_rng_state,
        "get_rng_state_all": lambda: [get_rng_state() for _ in range(context.policy.device_count)],
        "set_rng_state": set_rng_state,
        "set_rng_state_all": lambda new_states: set_rng_state(next(iter(new_states))),
    }
    for name, value in names.items():
        patches.replace(torch.cuda, name, value)
        patches.replace(torch.cuda.random, name, value)
    patches.replace(torch.cuda, "default_generators", (generator,) * context.policy.device_count)
    patches.set(torch, "Generator", _generator_class(context))


def _generator_class(context: Context) -> type:
    """Return the class that stands for ``torch.Generator``."""
    original = torch.Generator

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original)

    class Generator(original, metaclass=Kind):  # type: ignore[misc, valid-type]
        """A CPU generator that says which device it was made for."""

        def __new__(cls, device: Any = "cpu") -> Any:
            index = context.index_of(device)
            self = super().__new__(cls, "cpu" if index is not None else device)
            self._index = index
            return self

        def __init__(self, device: Any = "cpu") -> None:
            pass

        @property
        def device(self) -> torch.device:
            """The device it was made for."""
            if self._index is None:
                named: torch.device = super().device
                return named
            return torch.device("cuda", self._index)

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator
