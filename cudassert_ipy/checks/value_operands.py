"""Operands whose values are amounts: probabilities, rates, repeats, masks, asserted conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudassert_ipy.checks.operand import Arguments, Operand, is_integral

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def bce(arguments: Arguments) -> Iterator[Operand]:
    """Yield input and target of ``binary_cross_entropy``: 0 to 1, not NaN (Loss.cu)."""
    for name, given in (("input", arguments["self"]), ("target", arguments["target"])):
        yield Operand(
            *(given, name, "probability", 0, 1),
            requirement=f"0 <= {name} <= 1, and not NaN",
            assertions=(f"bce_{name}",),
        )


def bernoulli(arguments: Arguments) -> Iterator[Operand]:
    """Yield the probabilities of ``bernoulli(input)`` or ``bernoulli_(p)`` (Distributions.cu).

    A number ``p`` is checked on the host.
    """
    import torch

    name = "p" if "p" in arguments else "input"
    given = arguments.get("p", arguments["self"])
    if isinstance(given, torch.Tensor):
        yield Operand(
            *(given, name, "probability", 0, 1),
            requirement=f"0 <= {name} <= 1, and not NaN",
            assertions=("bernoulli",),
        )


def multinomial(arguments: Arguments) -> Iterator[Operand]:
    """Yield the weights of ``multinomial``: each finite and >= 0, each row with a sum > 0.

    One draw, or draws without replacement, are checked by ``_assert_async``, the others inside
    their kernels (Distributions.cpp, MultinomialKernel.cu).
    """
    given = arguments["self"]
    if not given.is_floating_point() or given.dim() not in (1, 2):
        return
    asynchronous = not arguments["replacement"] or arguments["num_samples"] == 1
    yield Operand(
        *(given, "input", "probability", 0, None),
        requirement="every probability is finite, not NaN, and >= 0",
        finite=True,
        assertions=("multinomial_async", "multinomial_negative")[not asynchronous :],
    )

    def bad() -> Tensor:
        empty: Tensor = given.sum(-1, keepdim=True) <= 0
        return empty.expand_as(given)

    yield Operand(
        *(given, "input", "probability", None, None),
        requirement="the probabilities of every row have a sum > 0",
        assertions=("multinomial_async_sum", "multinomial_cumulative")[not asynchronous :],
        bad=bad,
    )


def poisson(arguments: Arguments) -> Iterator[Operand]:
    """Yield the rates of ``poisson`` (Distributions.cu)."""
    yield Operand(
        *(arguments["self"], "input", "probability", 0, None),
        requirement="rate >= 0, and not NaN",
        assertions=("poisson",),
    )


def masked_scatter(arguments: Arguments) -> Iterator[Operand]:
    """Yield the mask of ``masked_scatter``: not more True than ``source`` has elements."""
    import torch

    mask, source = arguments["mask"], arguments["source"]
    if mask.dtype is not torch.bool:
        return
    mask = mask if mask.shape == arguments["self"].shape else mask.expand_as(arguments["self"])
    room = source.numel()

    def bad() -> Tensor | None:
        if int(mask.sum()) <= room:
            return None
        beyond: Tensor = mask & (mask.reshape(-1).cumsum(0).reshape(mask.shape) > room)
        return beyond

    yield Operand(
        *(mask, "mask", "count", None, None),
        requirement=f"mask has at most as many True as source has elements ({room})",
        assertions=("masked_scatter",),
        bad=bad,
    )


def repeats(arguments: Arguments) -> Iterator[Operand]:
    """Yield the counts of ``repeat_interleave``, and their sum where ``output_size`` tells it."""
    import torch

    counts, total = arguments["repeats"], arguments["output_size"]
    if not is_integral(counts):
        return
    yield Operand(
        *(counts, "repeats", "count", 0, None),
        requirement="repeats >= 0",
        assertions=("repeat_interleave", "repeat_interleave_before_2_14"),
    )
    if total is None or "self" in arguments:  # there one count may stand for all
        return

    def bad() -> Tensor | None:
        if int(counts.sum()) == total:
            return None
        return torch.ones_like(counts, dtype=torch.bool)

    yield Operand(
        *(counts, "repeats", "count", None, None),
        requirement=f"the sum of repeats is output_size ({total})",
        assertions=("repeat_interleave_size",),
        bad=bad,
    )


def bincount(arguments: Arguments) -> Iterator[Operand]:
    """Yield the values of ``bincount``; torch checks them on the host (SummaryOps.cu)."""
    given = arguments["self"]
    if is_integral(given):
        yield Operand(
            *(given, "input", "index", 0, None),
            requirement="input >= 0",
        )


def assert_async(arguments: Arguments) -> Iterator[Operand]:
    """Yield the condition of ``torch._assert_async``; NaN is not zero (TensorCompare.cu)."""
    given = arguments["self"]
    if given.numel() != 1:
        return
    key = "assert_async_message" if arguments.get("assert_msg") else "assert_async_empty"
    yield Operand(
        *(given, "input", "input", None, None),
        requirement="the asserted value is not zero",
        assertions=(key, "assert_async"),
        bad=lambda: given == 0,
    )
