"""The user's settings, as traitlets: ``%config CudaDebug`` lists them with their help."""

from __future__ import annotations

from traitlets import Bool, Enum, Float, Int, Unicode
from traitlets.config import Configurable


class CudaDebug(Configurable):
    """Settings of cudassert_ipy."""

    capture = Bool(
        True,
        help="Read what CUDA prints to file descriptors 2 and 1, which is where assertions appear.",
    ).tag(config=True)
    fence = Bool(
        True,
        help="At the end of a cell that used CUDA, wait briefly for the device, so that a failure "
        "is charged to the cell that caused it. Off: the device is asked once, without waiting.",
    ).tag(config=True)
    fence_seconds = Float(
        2.0, help="The fence gives up silently after this many seconds: work is still running."
    ).tag(config=True)
    copies = Bool(
        True,
        help="After each good cell, copy small integer and boolean CUDA tensors to the host, so "
        "that a replay knows their values after the context has died.",
    ).tag(config=True)
    copies_mb = Int(64, help="Host memory for those copies, in MiB.").tag(config=True)
    show_values = Bool(
        True, help="Show tensor values in outputs. Off keeps them out of the saved notebook."
    ).tag(config=True)
    replay_on = Enum(
        ("auto", "cpu", "gpu"),
        "auto",
        help="Where the failing cell is replayed after a restart: on the CPU, guarded on the GPU, "
        "or the CPU for cells under 30 s and the GPU otherwise.",
    ).tag(config=True)
    replay_seconds = Float(120.0, help="Time limit of a replay, in seconds.").tag(config=True)
    handoff = Unicode(
        "", help="Internal: what the process before a restart in place left for this one."
    ).tag(config=True)
