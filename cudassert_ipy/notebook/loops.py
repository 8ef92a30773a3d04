"""Replays of the body of a loop: what is said of them, and what they leave open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudassert_ipy import messages
from cudassert_ipy.notebook.cell_names import names_moved_on
from cudassert_ipy.notebook.inert import Inert

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudassert_ipy.model import Finding, Outcome, Replay
    from cudassert_ipy.replay.loop_body import LoopBody


def label(body: LoopBody) -> str:
    """Return what is shown while ``body`` runs."""
    if body.batches:
        return messages.LOOP_PROGRESS_BATCHES.format(count=len(body.batches))
    return messages.LOOP_PROGRESS_ONCE


def about(text: str, seconds: float | None) -> str:
    """Return a label with the time that its replay may take, if it is worth saying."""
    if seconds is None or seconds < 1.0:
        return text
    return messages.LOOP_PROGRESS_ABOUT.format(label=text, seconds=duration(seconds))


def duration(seconds: float) -> str:
    """Return seconds for people: ``40 s``, ``12 min``, ``3 h``."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{round(seconds / 3600)} h"


def outcome(body: LoopBody, replay: Replay) -> str:
    """Return what a replay of ``body`` without a finding came to."""
    if replay.outcome != "clean":
        return messages.LOOP_BROKE_OFF.format(loop=body.header)
    if body.batches:
        return messages.LOOP_CLEAN_BATCHES.format(count=len(body.batches), loop=body.header)
    return messages.LOOP_CLEAN_ONCE.format(loop=body.header)


def estimate(body: LoopBody, result: Any) -> float | None:
    """Return the seconds that the whole loop may take, by those of its last batches."""
    if not body.batches or result.replay.outcome != "clean":
        return None
    return float(result.cell_seconds) / len(body.batches) * body.total


def offer(seconds: float, limit: float) -> str:
    """Return that the whole cell was not replayed, and how it can be."""
    return messages.LOOP_WHOLE_OFFERED.format(seconds=duration(seconds), limit=duration(limit))


def with_note(result: Any, said: Sequence[str], outcome: Outcome | None = None) -> Any:
    """Return a replay's result with more in its note, and another outcome where one is given."""
    note = " ".join([*said, *([result.replay.note] if result.replay.note else [])])
    changed = replace(result.replay, note=note, outcome=outcome or result.replay.outcome)
    return replace(result, replay=changed)


def carried_into(body: LoopBody, finding: Finding | None) -> tuple[str, ...]:
    """Return the variables that the loop moves on and that the line of ``finding`` goes by.

    The body has run to its end, or half of it, before it is run again: what it carries from one
    round to the next (``position += 1``) is then not what it was. An operand that is proven to be
    in the batch does not depend on it.
    """
    if finding is None or finding.dataset_indices or len(finding.frames) <= len(body.outer):
        return ()
    line = finding.frames[len(body.outer)].line
    given = body.targets if body.anew else ()
    inert = Inert(body.variables, set(body.code.co_names))
    return names_moved_on(body.statements, line, given, inert)
