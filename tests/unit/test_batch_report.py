"""What the panel says about a rule that check_batch found broken."""

import pytest
import torch

from cudassert_ipy import OperandError, check_batch
from cudassert_ipy.model import Diagnosis, Replay
from cudassert_ipy.report.view import one_line, view


def diagnosis_of(batch, rules):
    with pytest.raises(OperandError) as caught:
        check_batch(batch, rules)
    replay = Replay(where="cpu", state="guard", outcome="raised")
    return Diagnosis(finding=caught.value.finding, replay=replay, context="alive")


def test_a_broken_rule_is_no_claim_about_a_gpu():
    """The user's own rule says what is valid; no kernel would have asserted on it."""
    text = one_line(diagnosis_of({"ids": torch.tensor([7])}, {"ids": 5}))
    assert "GPU" not in text
    by_model = diagnosis_of({"input": torch.tensor([7])}, torch.nn.Embedding(5, 2))
    assert "A GPU would have asserted on it." in one_line(by_model)


def test_the_next_step_is_to_mend_the_values():
    """The line that calls check_batch is not what is wrong."""
    (step,) = view(diagnosis_of({"ids": torch.tensor([7])}, {"ids": 5})).steps
    assert "".join(part.text for part in step) == (
        'Fix the values of batch["ids"], then run the cell again.'
    )
