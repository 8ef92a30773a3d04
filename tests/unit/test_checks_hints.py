"""The hint of a finding: a likely cause, and never one that the values speak against."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import cudassert_ipy
from cudassert_ipy.errors import OperandError

P = torch.full((2, 3), 0.5)
LOG_P = torch.zeros(5, 1, 4).log_softmax(2)
TWO = torch.tensor([5])


def ctc(*labels, length=3):
    return F.ctc_loss(LOG_P, torch.tensor([labels]), TWO, torch.tensor([length]))


HINTS = {
    "a NaN that became an integer": (
        lambda: P[torch.tensor([-(2**63)])],
        "what NaN becomes as an integer",
    ),
    "NaN": (lambda: torch.multinomial(P / 0 * 0, 1), "first NaN or infinity"),
    "logits": (lambda: F.binary_cross_entropy(P - 3, P), "BCEWithLogitsLoss"),
    "not the target's fault": (lambda: F.binary_cross_entropy(P, P + 3), ""),
    "negative, no ignore_index": (
        lambda: F.multi_margin_loss(P, torch.tensor([-1, 0])),
        "Negative labels are not allowed here.",
    ),
    "the blank is label 0": (lambda: ctc(1, 2, 4), "the last label is 3"),
    "padding is not the largest": (lambda: ctc(1, 9, 99, length=2), "needs 10"),
    "negative counts from the end": (
        lambda: P.take(torch.tensor([-7])),
        "count from the end, down to -6",
    ),
    "off by one": (lambda: P.gather(1, torch.tensor([[3]])), "the last index is 2"),
    "sum": (lambda: torch.multinomial(P * 0, 1), ""),
    "both sides": (lambda: P.gather(1, torch.tensor([[-1, 5]])), ""),
    "ignored marker": (
        lambda: F.cross_entropy(P, torch.tensor([-1, 0])),
        "-1 is not ignored here: ignore_index is -100",
    ),
    "another ignored marker": (
        lambda: F.cross_entropy(P, torch.tensor([-100, 0]), ignore_index=-1),
        "-100 is not ignored here: ignore_index is -1. Pass ignore_index=-100",
    ),
    "no label": (
        lambda: F.cross_entropy(P[:1].expand(40, 3), torch.tensor([1] + [255] * 39)),
        "255 often marks 'no label': pass ignore_index=255",
    ),
    "gray values": (
        lambda: F.cross_entropy(P, torch.tensor([0, 255])),
        "only 0 and 255, like the gray values",
    ),
    "255 and more": (
        lambda: F.cross_entropy(P[:1].expand(40, 3), torch.tensor([255] * 39 + [90])),
        "the largest label needs 256",
    ),
    "a label of 255 in 255 classes": (
        lambda: F.cross_entropy(P[:1, :1].expand(2, 255), torch.tensor([255, 3])),
        "Off by one: with 255 classes",
    ),
    "ignored class": (
        lambda: F.cross_entropy(P, torch.tensor([-1, 0]), ignore_index=0),
        "Negative labels are not allowed, except ignore_index",
    ),
}


@pytest.mark.parametrize("name", HINTS)
def test_the_hint_fits_the_values(name):
    """Each kind of mistake has its hint; where several fit there is none."""
    call, expected = HINTS[name]
    with cudassert_ipy.guard(), pytest.raises(OperandError) as caught:
        call()
    hint = caught.value.finding.hint
    assert expected in hint
    assert bool(hint) == bool(expected)
