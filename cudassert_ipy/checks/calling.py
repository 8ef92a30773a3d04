"""How a model is called with a batch, and where its scores are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from cudassert_ipy import messages
from cudassert_ipy.checks.paths import Path, Step
from cudassert_ipy.errors import CudassertError

if TYPE_CHECKING:
    from collections.abc import Callable


def call_model(
    model: Any, batch: Any, call: Callable[[Any, Any], Any] | None
) -> tuple[Any, list[Path] | None]:
    """Return the model's output and the paths it was given; None where only the user knows."""
    if call is not None:
        return call(model, batch), None
    names, required, takes_any = _signature(model)
    if isinstance(batch, Mapping):
        given = [key for key in batch if isinstance(key, str) and (takes_any or key in names)]
        if given and all(name in given for name in required):
            return model(**{key: batch[key] for key in given}), [(Step(key),) for key in given]
        if given:
            missing = ", ".join(name for name in required if name not in given)
            raise CudassertError(messages.MODEL_ARGUMENTS.format(names=missing))
        return model(batch), [()]
    if isinstance(batch, list | tuple) and batch:
        count = min(len(batch), max(1, len(required)))
        is_named = hasattr(type(batch), "_fields")
        fields = type(batch)._fields if is_named else range(len(batch))  # type: ignore[union-attr]
        steps = [Step(key, is_attribute=is_named) for key in fields]
        return model(*batch[:count]), [(step,) for step in steps[:count]]
    if len(required) > 1 and all(hasattr(batch, name) for name in required):
        paths: list[Path] = [(Step(name, is_attribute=True),) for name in required]
        return model(*(getattr(batch, name) for name in required)), paths
    return model(batch), [()]


def scores_of(output: Any) -> torch.Tensor | None:
    """Return the scores in a model's output: a tensor, or what is called ``logits``."""
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif not isinstance(output, torch.Tensor):
        output = getattr(output, "logits", None)
    return output if isinstance(output, torch.Tensor) else None


def _signature(model: Any) -> tuple[list[str], list[str], bool]:
    """Return the names of the arguments, those without a default, and whether any name will do."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], [], False  # a builtin or scripted function
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [p.name for p in named if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return [p.name for p in named], required, takes_any
