"""What works in a child forked from a process with a live or a dead CUDA context.

The child closes the device files, gives every CUDA tensor host memory by `.data`, and then tries
forward, torch's own backward (refused after any backward in the parent, is the claim) and a walk
over the graph in Python.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from typing import Any

from common import DEVICE, answer, attempt, close_device_files, die_and_read

CHILD_LIMIT = 20.0


def host_copies(torch: Any) -> dict[int, Any]:
    """Return, by storage, copies in pageable host memory of all tensors on the device."""
    copies = {}
    for tensor in all_tensors(torch):
        storage = tensor.untyped_storage()
        if storage._cdata not in copies:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            copies[storage._cdata] = whole.cpu().untyped_storage().clone()
    return copies


def all_tensors(torch: Any) -> list[Any]:
    """Return all tensors on the device that gc knows, with gradients and bases."""
    found: dict[int, Any] = {}
    for candidate in gc.get_objects():
        # Not isinstance: it asks lazy proxies for their class.
        if issubclass(type(candidate), torch.Tensor) and candidate.device.type == DEVICE:
            extra = (candidate.grad if candidate.is_leaf else None, candidate._base)
            for tensor in (candidate, *extra):
                if tensor is not None:
                    found[id(tensor)] = tensor
    return list(found.values())


def replace(torch: Any, copies: dict[int, Any]) -> dict[str, int]:
    """Give every device tensor the host copy of its storage."""
    tensors = all_tensors(torch)
    for tensor in tensors:
        storage = tensor.untyped_storage()
        # A destructor in this child may call CUDA: never free what was on the device.
        keep_for_ever.append(storage)
        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        host = copies.get(storage._cdata)
        if host is None:
            host = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
        tensor.data = torch.empty(0, dtype=tensor.dtype).set_(host, offset, size, stride)
    left = sum(tensor.is_cuda for tensor in tensors)
    return {"replaced": len(tensors), "left_on_device": left}


keep_for_ever: list[Any] = []


def walk_backward(torch: Any, loss: Any) -> None:
    """Compute gradients by calling the nodes of the graph from Python, without the engine."""
    waiting: dict[Any, int] = {}
    todo = [loss.grad_fn]
    while todo:
        node = todo.pop()
        for following, _ in node.next_functions:
            if following is not None:
                waiting[following] = waiting.get(following, 0) + 1
                if waiting[following] == 1:
                    todo.append(following)
    gradients: dict[Any, list[Any]] = {loss.grad_fn: [torch.ones_like(loss)]}
    ready = [loss.grad_fn]
    while ready:
        node = ready.pop()
        if hasattr(node, "variable"):
            (gradient,) = gradients.pop(node)
            leaf = node.variable
            leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
            continue
        results = node(*gradients.pop(node))
        results = results if isinstance(results, tuple) else (results,)
        for (following, slot), result in zip(node.next_functions, results, strict=False):
            if following is None:
                continue
            slots = gradients.setdefault(following, [])
            slots.extend([None] * (slot + 1 - len(slots)))
            if result is not None:
                # A node may give the broadcast shape; the engine reduces it too.
                reduced = result.sum_to_size(following._input_metadata[slot].shape)
                slots[slot] = reduced if slots[slot] is None else slots[slot] + reduced
            waiting[following] -= 1
            if waiting[following] == 0:
                ready.append(following)


def child(torch: Any, model: Any, ids: Any, copies: dict[int, Any]) -> dict[str, Any]:
    """Do in the child what a replay does; return the facts."""
    facts: dict[str, Any] = {"device_files_closed": close_device_files()}
    started = time.perf_counter()
    facts.update(replace(torch, copies))
    gc.freeze()  # not before: gc.get_objects() leaves frozen objects out
    facts["replace_ms"] = round((time.perf_counter() - started) * 1000, 1)
    torch.set_num_threads(1)
    host_ids = ids.clamp(max=999)
    for parameter in model.parameters():
        parameter.grad = None
    losses = []
    facts["forward"] = attempt(lambda: losses.append(model(host_ids).square().mean()))
    if losses:
        facts["loss"] = float(losses[0].detach())
        facts["torch_backward"] = attempt(losses[0].backward)
        for parameter in model.parameters():
            parameter.grad = None
        again = model(host_ids).square().mean()
        facts["walk_backward"] = attempt(lambda: walk_backward(torch, again))
        facts["gradients"] = [
            None if p.grad is None else round(float(p.grad.norm()), 6) for p in model.parameters()
        ]
    facts["bad_index"] = attempt(lambda: model(ids))
    return facts


def fork(torch: Any, model: Any, ids: Any, copies: dict[int, Any]) -> dict[str, Any]:
    """Fork, let the child try, and read its facts; a crash or a hang is a fact too."""
    reading, writing = os.pipe()
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(CHILD_LIMIT))
        os.close(reading)
        facts = attempt(lambda: json.dumps(child(torch, model, ids, copies)))
        os.write(writing, facts.get("value", json.dumps({"error": facts})).encode())
        os._exit(0)
    fork_ms = round((time.perf_counter() - started) * 1000, 2)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read()
    _, status = os.waitpid(pid, 0)
    result = {"fork_ms": fork_ms, "exit": os.waitstatus_to_exitcode(status)}
    return {**result, **(json.loads(text) if text else {"error": "the child gave no answer"})}


def main() -> None:
    """Train one step on the device, then fork with the context alive and dead."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Flatten(), nn.Linear(64 * 8, 10)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    ids = torch.randint(0, 1000, (16, 8), device=DEVICE)
    ids[3, 2] = 1000
    good = ids.clamp(max=999)
    model(good).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    expected = model(good).square().mean()
    expected.backward()
    gradients = [round(float(p.grad.norm()), 6) for p in model.parameters()]
    copies = host_copies(torch)
    facts = {"loss_on_device": float(expected.detach()), "gradients_on_device": gradients}
    facts["live"] = fork(torch, model, ids, copies)
    facts["parent_after_fork"] = attempt(lambda: float(model(good).sum()))
    facts["death"] = attempt(lambda: die_and_read(torch))
    facts["dead"] = fork(torch, model, ids, copies)
    answer(**facts)
    os._exit(0)  # with a dead context, destructors may abort


if __name__ == "__main__":
    main()
