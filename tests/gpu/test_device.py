"""What a real device prints and does, compared with what this project says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cudassert_ipy.decode.failure import decode_text

EMBEDDING = """
    import torch
    import torch.nn.functional as F
    weight = torch.zeros(1000, 128, device="cuda")
    ids = torch.tensor([3, 1000, 7], device="cuda")
    F.embedding(ids, weight).sum().item()
"""
CROSS_ENTROPY = """
    import torch
    import torch.nn.functional as F
    logits = torch.zeros(8, 10, device="cuda")
    labels = torch.full((8,), 10, device="cuda")
    F.cross_entropy(logits, labels).item()
"""
INDEX = """
    import torch
    table = torch.zeros(10, 5, device="cuda")
    table[torch.tensor([1, 10], device="cuda")].sum().item()
"""


@pytest.mark.parametrize(
    ("code", "operation"),
    [(EMBEDDING, "embedding"), (CROSS_ENTROPY, "cross_entropy"), (INDEX, "[")],
    ids=["embedding", "cross_entropy", "index"],
)
def test_what_a_device_prints_is_decoded(run_python: Any, code: str, operation: str) -> None:
    """The text of a real death is a known assertion that names the operation."""
    done = run_python(code)
    assert done.status != 0
    failure = decode_text(done.err)
    assert failure.kind == "device_assert"
    assert failure.context == "dead"
    (assertion,) = failure.assertions
    assert assertion.known
    assert any(operation in name for name in assertion.operations)


def test_error_code_and_asynchrony(run_python: Any) -> None:
    """The error has code 710, comes at `.item()`, and with blocking launches at the operation."""
    code = """
        import json, torch
        import torch.nn.functional as F
        weight = torch.zeros(1000, 128, device="cuda")
        ids = torch.tensor([3, 1000, 7], device="cuda")
        stage = "launch"
        try:
            rows = F.embedding(ids, weight)
            stage = "item"
            rows.sum().item()
        except RuntimeError as error:
            print(json.dumps([stage, getattr(error, "error_code", None), str(error)]))
    """
    stage, error_code, text = json.loads(run_python(code).out.splitlines()[0])
    assert (stage, error_code) == ("item", 710)
    assert "CUDA_LAUNCH_BLOCKING" in text
    stage, _, text = json.loads(run_python(code, CUDA_LAUNCH_BLOCKING="1").out.splitlines()[0])
    assert stage == "launch"
    assert "asynchronously" not in text


def test_the_guard_raises_before_the_launch(run_python: Any) -> None:
    """Under the guard the mistake is an OperandError and the device goes on."""
    done = run_python("""
        import torch
        import torch.nn.functional as F
        import cudassert_ipy
        weight = torch.zeros(1000, 128, device="cuda")
        ids = torch.tensor([3, 1000, 7], device="cuda")
        try:
            with cudassert_ipy.guard():
                F.embedding(ids, weight)
        except cudassert_ipy.OperandError as error:
            print(list(error.finding.bad_values))
        logits, labels = torch.zeros(2, 10, device="cuda"), torch.tensor([-100, 3], device="cuda")
        with cudassert_ipy.guard():
            print(F.cross_entropy(logits, labels).item() > 0)
    """)
    assert done.out.split("\n")[:2] == ["[1000]", "True"], done.err


def test_the_story_on_the_device(run_python: Any) -> None:
    """Step 4 of scripts/gpu-check: every cell of the story ends as it should."""
    pytest.importorskip("ipykernel")
    done = run_python(
        """
        import runpy, sys
        sys.path.insert(0, "scripts/gpu_steps")
        sys.argv = ["step4_story.py", "cuda"]
        runpy.run_path("scripts/gpu_steps/step4_story.py", run_name="__main__")
        """,
        timeout=150,
    )
    facts = json.loads(done.out.splitlines()[-1])
    assert facts.get("all_as_expected"), facts
    assert facts["replay"]["finding"]["bad_values"] == [1000]
    assert facts["guarded"]["context"] == "alive"
