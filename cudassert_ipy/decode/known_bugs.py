"""Bugs of PyTorch that look like a mistake in the user's data, by version.

One possibility to name when the data turned out to be good; never more than that. Every row cites
the thread where the bug was confirmed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cudassert_ipy import messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudassert_ipy.model import Failure, Kind

_INDEX_KINDS: frozenset[Kind] = frozenset({"device_assert", "illegal_memory_access"})


class KnownBug(NamedTuple):
    """One bug: in which versions, how it shows, and what to say of it."""

    versions: re.Pattern[str]
    """Matches the whole version, local part included."""
    kinds: frozenset[Kind]
    operations: tuple[str, ...]
    """Ends of the names of operations that it needs; empty: any."""
    expressions: re.Pattern[str] | None
    """What an assertion's expression must look like; None: any, or no assertion."""
    text: str
    thread: str


KNOWN_BUGS = (
    # Asserts were compiled out by mistake; pull request 39157 restored them in 1.5.1.
    KnownBug(
        re.compile(r"1\.5\.0(?:\+.*)?"),
        frozenset({"illegal_memory_access", "launch_failure"}),
        (),
        None,
        messages.BUG_NO_ASSERTS,
        "pytorch/pytorch#38771",
    ),
    # Builds for CUDA 11 only; pull request 55292 fixed it for 1.9, thread 57505 explains it.
    KnownBug(
        re.compile(r"1\.8\.[01](?:\+cu11\d)?"),
        _INDEX_KINDS,
        (),
        None,
        messages.BUG_RANDPERM,
        "pytorch/pytorch#55027",
    ),
    # Thread 67167 is the same bug without an assertion; 72120 says that 1.10.1 has the fix.
    KnownBug(
        re.compile(r"1\.10\.0(?:\+.*)?"),
        _INDEX_KINDS,
        ("cross_entropy", "nll_loss"),
        None,
        messages.BUG_NLL_BACKWARD,
        "pytorch/pytorch#71550",
    ),
    # Fixed by pull request 160894 before the release.
    KnownBug(
        re.compile(r"2\.9\.0\.dev202508\d\d(?:\+.*)?"),
        frozenset({"device_assert"}),
        (),
        re.compile(r"index out of bounds: .*\bks\d"),
        messages.BUG_INDUCTOR,
        "pytorch/pytorch#161244",
    ),
    KnownBug(
        re.compile(r"2\.11\.0(?:\+.*)?"),
        frozenset({"device_assert"}),
        (),
        re.compile(r"index out of bounds: .*\bks\d"),
        messages.BUG_INDUCTOR,
        "pytorch/pytorch#186536",
    ),
)


def possible_bugs(
    torch_version: str | None, failure: Failure, *, operations: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return what may be said of known bugs that fit; empty where the version is not known.

    Args:
        torch_version: as in ``torch.__version__``.
        failure: what went wrong.
        operations: names of operations that ran, beside those that the assertions name.

    """
    if torch_version is None:
        return ()
    names = [*operations, *(name for item in failure.assertions for name in item.operations)]
    return tuple(
        messages.POSSIBLE_BUG.format(
            bug=bug.text.format(version=torch_version[:40], thread=bug.thread)
        )
        for bug in KNOWN_BUGS
        if failure.kind in bug.kinds
        and bug.versions.fullmatch(torch_version)
        and (not bug.operations or any(name.endswith(bug.operations) for name in names))
        and (
            bug.expressions is None
            or any(bug.expressions.match(item.expression) for item in failure.assertions)
        )
    )
