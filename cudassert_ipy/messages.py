"""Every text that a user sees, in one place. Standard library only.

Rules: what happened, then what it means, then what to do. Short, true, no blame, no jargon that is
not explained. Templates use ``str.format`` names.
"""

from __future__ import annotations

# --- shared vocabulary ---------------------------------------------------------------------------

CONTEXT_DEAD = "This kernel's CUDA context is dead: every later CUDA call fails until the kernel restarts."
CONTEXT_ALIVE = "The CUDA context is alive; no restart is needed."
LOST = "Every tensor on the GPU is lost."
KEPT = "All CPU variables are still here."
SIMULATED = "simulated device: teaching and test double, not evidence about a GPU"
