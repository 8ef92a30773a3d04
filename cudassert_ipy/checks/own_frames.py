"""Keep ``torch.compile`` from compiling this package's own code."""

from __future__ import annotations

import sys

_done = False


def spare_own_frames() -> bool:
    """Tell Dynamo, once it is loaded, to leave the frames of this package alone.

    While a mode is on, Dynamo runs compiled functions eagerly, but it compiles the Python code of
    the mode (26 s for one check of ``x[index]``, torch 2.13). Returns whether it was told.
    ``torch._dynamo.trace_rules.add`` is not documented; seen in torch 2.2 to 2.14.
    """
    global _done
    if _done or "torch._dynamo" not in sys.modules:
        return _done
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        return False  # it is being imported just now
    _done = True
    if hasattr(rules, "add"):
        rules.add(__package__.partition(".")[0])
    return True
