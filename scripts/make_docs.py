"""Make docs/assertions.md from the catalogue of assertions."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cudassert_ipy.decode.catalog import base_name, catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudassert_ipy.decode.catalog import KnownAssertion, ValidRange

PAGE = Path(__file__).parents[1] / "docs" / "assertions.md"

INTRODUCTION = """\
# CUDA device-side asserts of PyTorch: what each message means

You are here because of `CUDA error: device-side assert triggered`. Look in the log, above the
traceback, for a line like this one, and search this page for the text between the backticks:

```
/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [4,0,0], thread: [31,0,0] Assertion `t >= 0 && t < n_classes` failed.
```

`python -m cudassert_ipy explain FILE` does that for you: in a log, a traceback or a notebook.

Nothing found? Texts with numbers (`index out of bounds: 0 <= tmp4 < 32000`) come from
[code that torch.compile made](#torchcompile-index-out-of-bounds-in-a-compiled-kernel): the numbers
are yours. A sentence in plain words may be
[somebody's own check](#torch_assert_async-with-a-message-somebodys-own-check). A file that is not in
the table belongs to your own or a third party's kernel: its source says what was checked. And with
no such line at all, the error may not be an assert: `explain` tells.

The line in the Python traceback is only where Python noticed. To find the line that did it, run the
code with `CUDA_LAUNCH_BLOCKING=1` set before Python starts, or run it on the CPU, where most of
these mistakes are ordinary exceptions. The process cannot use the GPU any more: restart it.

Collected from the strings in stock wheels (torch 1.0 to 2.15), PyTorch's source and public logs;
not checked on a GPU. CPU errors are those of torch 2.13, unless the operation is older. Versions
are those in which a message was seen; it may be in neighboring ones too.

This page is made from `cudassert_ipy/decode/catalog.toml` by `make docs`.
"""  # noqa: E501

NEGATIVES = {
    "forbidden": "not allowed: -1 is not the last one here",
    "count from the end": "allowed down to -size, counting from the end",
    "depends": "depends on the operation",
}


def page() -> str:
    """Return the whole page."""
    rows = catalog().rows
    families = [list(group) for _, group in itertools.groupby(rows, lambda row: row.family)]
    parts = [INTRODUCTION, "\n".join(_start(families))]
    parts += ["\n".join(_section(family)) for family in families]
    parts.append("\n".join(_index(families)))
    return "\n".join(parts)


# What public reports are about most, in their order.
COMMON = (
    *("nll_loss", "embedding", "index", "scatter_gather", "vectorized_gather"),
    *("multinomial_values", "bce_input", "nll_loss2d", "compiled_index"),
)


def _start(families: list[list[KnownAssertion]]) -> Iterator[str]:
    by_name = {family[0].family: family[0] for family in families}
    yield "## The usual ones\n"
    yield "| Assertion | Meaning |"
    yield "| --- | --- |"
    for name in COMMON:
        first = by_name[name]
        yield f"| {_code(first.expression)} | [{first.title}](#{anchor(first.title)}) |"
    yield "\n[All messages](#all-messages) are at the end of this page.\n"


def _index(families: list[list[KnownAssertion]]) -> Iterator[str]:
    yield "## All messages\n"
    yield "| Assertion | File | Meaning |"
    yield "| --- | --- | --- |"
    for family in families:
        link = f"[{family[0].title}](#{anchor(family[0].title)})"
        known = dict.fromkeys((text, row.path) for row in family for text in row.expressions)
        for expression, path in known:
            yield f"| {_code(expression)} | {base_name(path)} | {link} |"
    yield ""


def _section(family: list[KnownAssertion]) -> Iterator[str]:
    first = family[0]
    yield f"## {first.title}\n"
    yield f"{first.meaning}\n"
    for row in family:
        yield from _messages(row)
    yield ""
    for name, label in (
        ("operations", "Operations"),
        ("operand", "What is checked"),
        ("requirement", "What must hold"),
        ("valid_range", "Valid range"),
        ("special", "Allowed besides"),
        ("negatives", "Negative ones"),
        ("cpu_errors", "On the CPU"),
    ):
        yield from _fact(label, name, family)
    yield "\nTypical causes, most frequent first, and what to do:\n"
    for number, (cause, remedy) in enumerate(zip(first.causes, first.remedies, strict=True), 1):
        yield f"{number}. {_sentence(cause)} → {remedy}."
    yield ""


def _messages(row: KnownAssertion) -> Iterator[str]:
    paths = [path for path in (row.path, *row.also_in) if path]
    files = ", ".join(f"`{base_name(path)}`" for path in paths) or "generated code"
    kernels = ", ".join(f"`{name}`" for name in row.functions if row.path)
    place = f"{files}{': ' if kernels else ''}{kernels}"
    for expression in row.expressions:
        yield f"- {_code(expression)} — {place}; torch {_versions(row)}"


def _fact(label: str, name: str, family: list[KnownAssertion]) -> Iterator[str]:
    """Yield what the rows of a family say, once if it is the same for all of them."""
    texts = {row.key: _text(name, getattr(row, name)) for row in family}
    if not any(texts.values()):
        return
    if len(set(texts.values())) == 1:
        yield f"* **{label}:** {texts[family[0].key]}"
        return
    for text in dict.fromkeys(texts.values()):
        same = ", ".join(_code(row.expression) for row in family if texts[row.key] == text)
        if text:
            yield f"* **{label}** ({same}): {text}"


def _text(name: str, value: str | tuple[str, ...] | ValidRange | None) -> str:
    if name == "valid_range":
        return _range(value) if value else ""
    if name == "negatives":
        return NEGATIVES.get(value, "")
    if name == "cpu_errors":
        return " · ".join(_code(item) if ": " in item else item for item in value)
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return value


def _range(valid: ValidRange) -> str:
    bounds = f"`{valid.low} <= value`" if valid.low else ""
    if valid.high:
        bounds = f"`{valid.low} <= value <= {valid.high}`"
    return f"{bounds}, where size is {valid.size}" if valid.size else bounds


def _versions(row: KnownAssertion) -> str:
    if row.until == row.since:
        return row.since
    return f"{row.since} to {row.until}" if row.until else f"{row.since} and later"


def _code(text: str) -> str:
    """Return ``text`` as code that a Markdown table can hold."""
    if not text:
        return "(nothing: ``` Assertion `` failed. ```)"
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _sentence(text: str) -> str:
    """Return ``text`` with a capital letter, unless it begins with code."""
    return text[:1].upper() + text[1:] if text.split(" ", 1)[0].isalpha() else text


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
