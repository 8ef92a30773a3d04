"""Notebook files: every shape that outputs come in, and hostile ones."""

from __future__ import annotations

import codecs
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudassert_ipy.decode import document
from cudassert_ipy.decode.catalog import catalog
from cudassert_ipy.decode.document import read_document
from cudassert_ipy.decode.notebook_file import cell_outputs
from cudassert_ipy.model import MIME_TYPE, Diagnosis, Failure
from cudassert_ipy.report.bundle import bundle

LINE = catalog().by_key("nll_loss").render((0, 0, 0), (7, 0, 0))
STREAM = {"output_type": "stream", "name": "stderr", "text": LINE + "\n"}
ASSERT = "CUDA error: device-side assert triggered"
ERROR = {
    "output_type": "error",
    "ename": "RuntimeError",
    "evalue": f"{ASSERT}\nCUDA kernel errors might be asynchronously reported",
    "traceback": ["Traceback", f"\x1b[0;31mRuntimeError\x1b[0m: {ASSERT}\nCUDA kernel errors"],
}


def notebook(*cells, **more):
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, **more}).encode()


def cell(*outputs, count=None):
    return {
        "cell_type": "code",
        "source": f"'{LINE}'",
        "outputs": outputs,
        "execution_count": count,
    }


def read(data, name="a.ipynb"):
    return read_document(io.BytesIO(data), name)


def test_first_cell_with_the_error_is_named():
    """The assertion is in cell 3, the exception in cell 5, its echo in cell 6."""
    data = notebook(
        cell(STREAM, count=3), cell(count=4), cell(ERROR, count=5), cell(ERROR, count=6)
    )

    found = read(data)

    assert (found.place, found.failure.assertions[0].count) == ("cell [3]", 1)
    assert found.failure.code == 710


@pytest.mark.parametrize("count", [10**30, -1, True, "7", 1.5])
def test_odd_execution_counts_are_not_shown(count):
    """What is no sensible prompt number is not repeated."""
    assert read(notebook(cell(STREAM, count=count))).place == "cell 1 from the top"


def test_message_that_the_traceback_says_already_counts_once():
    """A child's assertion in an exception's text stands in ``evalue`` and in the traceback."""
    value = f"{LINE}\n{ASSERT}"
    error = ERROR | {"evalue": value, "traceback": [f"RemoteError\x1b[0m: {value}"]}

    assert read(notebook(cell(error))).failure.assertions[0].count == 1


@pytest.mark.parametrize("traceback", [[], None, ["hidden"]])
def test_error_without_traceback_is_read(traceback):
    """Some front ends keep the name and the value only."""
    assert read(notebook(cell(ERROR | {"traceback": traceback}))).failure.code == 710


def test_notebook_of_format_3():
    """Worksheets, ``pyerr``, ``pyout`` and prompt numbers of old notebooks."""
    outputs = [
        {"output_type": "stream", "stream": "stderr", "text": [LINE + "\n"]},
        {"output_type": "pyerr", "ename": "RuntimeError", "evalue": ASSERT, "traceback": []},
        {"output_type": "pyout", "html": "<b>CUDA error: misaligned</b> address", "text": "7"},
    ]
    old = {"cell_type": "code", "input": "x", "prompt_number": 8, "outputs": outputs}
    data = json.dumps({"nbformat": 3, "worksheets": [{"cells": [old]}, {"cells": 3}, 4]}).encode()

    found = read(data, "-")

    assert (found.place, found.failure.code) == ("cell [8]", 710)
    assert found.failure.assertions[0].known


@pytest.mark.parametrize("plain", ["", "<IPython.core.display.HTML object>"])
@pytest.mark.parametrize("key", ["text/html", "html"])
def test_result_that_only_html_shows_is_read(plain, key):
    """Old versions showed tracebacks as HTML; the plain text beside it says nothing."""
    page = "<pre>RuntimeError: <b>CUDA</b> error: device-side assert triggered<br>x</pre>"
    data = {"text/plain": plain, "text/html": page} if "/" in key else {}
    output = {"output_type": "display_data", "data": data, "html": page, "text": plain}

    assert read(notebook(cell(output))).failure.code == 710


def test_html_beside_plain_text_does_not_count_again():
    """One result in two forms is one."""
    output = {"data": {"text/plain": [LINE], "text/html": f"<pre>{LINE}</pre>"}}

    assert read(notebook(cell(output))).failure.assertions[0].count == 1


def test_bundle_of_this_tool_is_no_evidence():
    """The panel repeats what CUDA printed; alone it is no sign of an error."""
    failure = Failure(kind="device_assert", code=710, message=ASSERT, context="dead")
    shown = {"output_type": "display_data", "data": bundle(Diagnosis(failure=failure))}
    told = {"output_type": "display_data", "data": {MIME_TYPE: {}, "text/plain": LINE}}

    assert read(notebook(cell(STREAM, shown, told))).failure.assertions[0].count == 1
    assert read(notebook(cell(shown, told))).failure.kind == "not_cuda"


def test_output_widget_is_read():
    """What ran ``with out:`` is kept in the state of the widget, not in the cell."""
    view = {"data": {"application/vnd.jupyter.widget-view+json": {"model_id": "a1"}}}
    state = {"a1": {"state": {"outputs": [STREAM, view, 3]}}, "b": 4, "c": {"state": []}}
    widgets = {"application/vnd.jupyter.widget-state+json": {"state": state}}
    data = notebook(cell(view, count=9), metadata={"widgets": widgets})

    assert read(data).place == "cell [9]"


def test_nested_lists_of_text_and_outputs_are_read():
    """Lists inside lists, as broken converters write them."""
    output = {"output_type": "stream", "text": [[LINE[:40]], [[LINE[40:], 3, None]], "\n"]}

    assert read(notebook(cell([[output]]))).failure.assertions[0].known


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_mark_in_front_of_a_notebook(encoding):
    """Editors on Windows write one; the notebook is recognized without its name as well."""
    data = notebook(cell(STREAM, count=2)).decode().encode(encoding)

    assert data[:2] in (codecs.BOM_UTF16, codecs.BOM_UTF8[:2])
    assert read(data, "-").place == "cell [2]"


def test_long_notebook_is_recognized_by_its_beginning():
    """``nbformat`` stands at the end of a file, often megabytes away."""
    big = {"output_type": "stream", "text": "x" * 3_000_000}

    assert read(notebook(cell(big), cell(STREAM, count=2)), "-").place == "cell [2]"


def test_other_json_is_read_as_the_text_it_is():
    """A log of JSON lines may begin like a notebook."""
    data = json.dumps({"metadata": 1, "log": "x"}) + f"\n{LINE}\n"

    assert read(data.encode(), "log.json").failure.kind == "device_assert"


@pytest.mark.parametrize(("limit", "value"), [("MAX_NOTEBOOK", 100), ("MAX_VALUES", 5)])
def test_too_large_a_notebook_is_read_as_text(monkeypatch, limit, value):
    """A notebook has to be held in memory, in which ``{}`` takes 64 bytes: both are limited."""
    monkeypatch.setattr(document, limit, value)
    data = notebook(cell({"output_type": "stream", "text": "x" * 200}), cell(STREAM))

    for name in ("a.ipynb", "-"):
        found = read(data, name)
        assert (found.failure.kind, found.place) == ("device_assert", "")
        assert "too large" in found.notes[0]


@pytest.mark.parametrize("odd", [b'"\xff"', b"9" * 5000, b"-" + b"9" * 5000, b"[NaN, 1e999]"])
def test_damage_elsewhere_in_a_notebook_does_not_matter(odd):
    """A byte that is no UTF-8 and a number longer than Python converts."""
    data = notebook(cell(STREAM, count=2)).replace(b'"metadata"', b'"x": ' + odd + b', "metadata"')

    assert odd in data
    assert read(data).place == "cell [2]"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(LINE),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "cells",
                    "worksheets",
                    "outputs",
                    "text",
                    "data",
                    "text/html",
                    "traceback",
                    "html",
                    "evalue",
                    "ename",
                    "metadata",
                    "widgets",
                    "state",
                    "execution_count",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(JSON, JSON, JSON)
def test_any_json_is_read_or_refused(outputs, entry, metadata):
    """No content raises anything but ``ValueError``, and a valid outside is always read."""
    cells = [{"outputs": outputs}, entry, {"outputs": [entry]}]
    found = cell_outputs(json.dumps({"cells": cells, "metadata": metadata}).encode())

    assert all(isinstance(item.text, bytes) for item in found)
    read(json.dumps({"cells": cells, "worksheets": entry}).encode())
    for data in (json.dumps(entry).encode(), b'{"cells": ' + LINE.encode()):
        try:
            cell_outputs(data)
        except ValueError:
            continue
