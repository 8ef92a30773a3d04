"""What to do by hand where a restart in place is not proven to work."""

from __future__ import annotations

from cudassert_ipy import messages


def steps(front_end: str, *, reason: str, pending: bool) -> str:
    """Return numbered steps, as text that is also Markdown.

    Args:
        front_end: ``terminal``, ``jupyter``, ``vscode``, ``colab`` or ``headless``; any other is
            treated as the last.
        reason: why a restart in place is not possible, without a full stop.
        pending: whether a handoff waits for the next ``%load_ext``; a terminal session has none.

    """
    items = list(messages.STEPS.get(front_end, messages.STEPS["headless"]))
    offered = pending and front_end != "terminal"
    items.append(messages.STEPS_PENDING if offered else messages.STEPS_BY_HAND)
    lines = [messages.STEPS_INTRO.format(reason=reason)]
    lines += [f"{number}. {item}" for number, item in enumerate(items, start=1)]
    return "\n".join(lines)
