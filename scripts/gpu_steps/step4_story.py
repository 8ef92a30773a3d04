"""The whole story with a real kernel, headless: what each cell showed and how long it took."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

from common import DEVICE, answer

NEEDED = ("ipykernel", "jupyter_client", "ipywidgets", "jinja2", "rich")
DIAGNOSIS = "application/vnd.cudassert.diagnosis.v1+json"
SETUP = """\
import torch, os
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(1000, 128), nn.Flatten(), nn.Linear(128 * 16, 10)).cuda()
batch = {"ids": torch.randint(0, 1000, (32, 16)), "labels": torch.randint(0, 10, (32,))}
batch["ids"][7, 3] = 1000
ids = batch["ids"].cuda()
labels = batch["labels"].cuda()
model(ids.clamp(max=999)).sum().backward()"""
FAILING = """\
logits = model(ids)
loss = F.cross_entropy(logits, labels)
loss.backward()
print(loss.item())"""
ALIVE = "print(os.environ.get('CUDA_LAUNCH_BLOCKING'), torch.ones(3, device='cuda').sum().item())"
GUARDED = "%%cuda_debug\n" + FAILING
CELLS = (
    # name, source, what the reply must say
    ("load", "%load_ext cudassert_ipy", "ok"),
    ("setup", SETUP, "ok"),
    ("failing", FAILING, "error"),
    ("innocent", "torch.ones(3, device='cuda').sum().item()", "error"),
    ("cpu", "batch['ids'].sum().item()", "ok"),
    ("status", "%cuda_debug status", "ok"),
    ("replay", "%cuda_debug replay", "ok"),
    ("restart", "%cuda_debug restart", "ok"),
    ("alive", ALIVE, "ok"),
    ("guarded", GUARDED, "error"),
    ("alive_after_guard", ALIVE, "ok"),
    ("unguarded", "%%cuda_debug --no-guard\n" + FAILING, "error"),
)


def tell(result: Any, expected: str) -> dict[str, Any]:
    """Return the facts of one cell: status, seconds, and the diagnosis if it showed one."""
    facts: dict[str, Any] = {
        "status": result.status,
        "as_expected": result.status == expected,
        "seconds": round(result.seconds, 3),
    }
    errors = [str(output["evalue"])[:300] for output in result.outputs if "evalue" in output]
    if errors:
        facts["error_text"] = errors[-1]
    for output in result.outputs:
        diagnosis = output.get("data", {}).get(DIAGNOSIS)
        if diagnosis is None:
            continue
        finding, replay, failure = (diagnosis[key] for key in ("finding", "replay", "failure"))
        facts["context"] = diagnosis["context"]
        facts["kind"] = failure and failure["kind"]
        facts["known"] = failure and [row["known"] for row in failure["assertions"]]
        facts["finding"] = finding and {
            key: finding[key] for key in ("expression", "line", "bad_values", "batch_rows")
        }
        facts["replay"] = replay and {
            key: replay[key] for key in ("where", "state", "outcome", "seconds", "substituted")
        }
    return facts


def main() -> None:
    """Run the cells one after the other in one kernel."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        answer(error=f"not run: these packages are missing: {', '.join(missing)}")
        return
    # The same client as the benchmarks; this process has the repository on its path.
    from benchmarks.kernels import kernel

    cells = CELLS
    if DEVICE != "cuda":
        cells = (CELLS[0], ("simulator", "%cuda_debug simulator on", "ok"), *CELLS[1:])
    facts: dict[str, Any] = {}
    with kernel() as running:
        for name, source, expected in cells:
            result = running.run(source, status=None)
            facts[name] = tell(result, expected)
            print(f"----- {name}\n{json.dumps(result.outputs)[:20_000]}")
    facts["all_as_expected"] = all(cell["as_expected"] for cell in facts.values())
    answer(**facts)


if __name__ == "__main__":
    sys.exit(main())
