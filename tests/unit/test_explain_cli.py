"""``python -m cudassert_ipy explain``: exit codes, inputs, output."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cudassert_ipy.decode.catalog import catalog

LINE = catalog().by_key("nll_loss").render((0, 0, 0), (7, 0, 0))
LOG = f"step 1\n{LINE}\nRuntimeError: CUDA error: device-side assert triggered\n".encode()


def run(*arguments, data=b"", cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "cudassert_ipy", "explain", *arguments],
        input=data,
        capture_output=True,
        timeout=60,
        cwd=cwd,
    )


def notebook(*outputs):
    cell = {"cell_type": "code", "source": f"x = '{LINE}'", "outputs": list(outputs)}
    return json.dumps(
        {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    ).encode()


STREAM = {"output_type": "stream", "name": "stderr", "text": [LINE + "\n", "more\n"]}


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_log_from_standard_input(arguments):
    """A fatal error in the input: exit 0 and the failure as JSON."""
    result = run(*arguments, "--json", data=LOG)

    failure = json.loads(result.stdout)
    assert (result.returncode, failure["version"], failure["kind"]) == (0, 1, "device_assert")
    assert failure["assertions"][0]["known"] is True


def test_log_from_a_file_with_a_space_in_its_name(tmp_path):
    """A file is read as bytes; invalid UTF-8 does not matter."""
    path = tmp_path / "my train.log"
    path.write_bytes(b"\xff\xfe-ish \xe9\n" + LOG.replace(b"step", b"st\xe9p"))
    path.write_bytes(path.read_bytes()[2:])

    assert json.loads(run(str(path), "--json").stdout)["code"] == 710


def test_input_without_a_cuda_error_is_status_1_and_still_json():
    """1 means exactly: no CUDA error in there."""
    result = run("--json", data=b"all is well\nIndexError: index out of range in self\n")

    failure = json.loads(result.stdout)
    assert (result.returncode, failure["kind"]) == (1, "not_cuda")
    assert failure["message"] == "IndexError: index out of range in self"


def test_empty_input_holds_no_cuda_error():
    """An empty log is a usable input; that it is empty is said."""
    result = run("--json")

    assert (result.returncode, result.stderr) == (1, b"standard input: it is empty\n")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("missing.log", None, "No such file"),
        ("core", bytes(range(256)) * 20, "not text"),
        ("model.pt", b"PK\x03\x04" + bytes(range(256)) * 20, "packed (zip)"),
        ("bad.ipynb", b"{not json", "not a notebook"),
        ("list.ipynb", b"[]", "not a notebook"),
        ("deep.ipynb", b'{"cells": ' + b"[" * 200_000, "not a notebook"),
        (".", None, "directory"),
    ],
)
def test_unusable_input_is_status_2_with_the_reason(tmp_path, name, data, reason):
    """Input that cannot be read gets one line on stderr and nothing on stdout."""
    if data is not None:
        (tmp_path / name).write_bytes(data)

    result = run(name, "--json", cwd=tmp_path)

    assert (result.returncode, result.stdout) == (2, b"")
    assert reason in result.stderr.decode()
    assert result.stderr.count(b"\n") == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_powershell_log_in_utf16_is_read(encoding):
    """PowerShell's ``>`` writes UTF-16 with a byte order mark."""
    result = run("--json", data=LOG.decode().replace("\n", "\r\n").encode(encoding))

    assert json.loads(result.stdout)["kind"] == "device_assert"


def test_outputs_of_a_notebook_are_read_and_its_sources_are_not(tmp_path):
    """Only what a cell printed counts; what its source quotes does not."""
    path = tmp_path / "a.ipynb"
    path.write_bytes(notebook(STREAM))
    assert run(str(path), "--json").returncode == 0

    path.write_bytes(notebook())
    assert run(str(path), "--json").returncode == 1


def test_traceback_of_a_notebook_is_read():
    """An error output alone is enough, colors and all; a notebook is recognized on stdin too."""
    error = {
        "output_type": "error",
        "ename": "AcceleratorError",
        "evalue": "CUDA error: misaligned address\nhint",
        "traceback": ["\x1b[31mAcceleratorError\x1b[0m: CUDA error: misaligned address\nhint"],
    }

    assert json.loads(run("--json", data=notebook(error)).stdout)["code"] == 716


@pytest.mark.parametrize(
    ("count", "place"), [(7, "cell [7]:"), (None, "cell 3 from the top:"), ("<b>", "cell 3 from")]
)
def test_text_for_people_names_the_cell_of_a_notebook(count, place):
    """The cell is called by its prompt number, or counted; an alive context is not accused."""
    memory = {"output_type": "stream", "text": "RuntimeError: CUDA error: out of memory\n"}
    cells = [
        {"cell_type": "markdown", "source": "x"},
        {"cell_type": "code", "execution_count": 3, "outputs": [memory]},
        {"cell_type": "code", "execution_count": count, "outputs": [STREAM]},
        {"cell_type": "code", "execution_count": 8, "outputs": [STREAM]},
    ]
    data = json.dumps({"nbformat": 4, "cells": cells}).encode()

    first = run(data=data).stdout.decode().partition("\n")[0]
    assert first.startswith(place)
    assert "Device-side assert in `cross_entropy`" in first  # the first line is the verdict
    assert json.loads(run("--json", data=data).stdout)["kind"] == "device_assert"


def test_log_has_no_cell():
    """Nothing is put in front of the explanation of a log."""
    assert b"cell" not in run(data=LOG).stdout.partition(b"\n")[0]


def test_odd_entries_of_a_notebook_are_skipped():
    """A notebook from elsewhere may hold anything."""
    odd = {"text": 3, "data": [], "traceback": [2]}
    cells = [3, {"outputs": 3}, {"outputs": [1, odd]}]
    data = json.dumps({"nbformat": 4, "cells": cells})

    assert run("--json", data=data.encode()).returncode == 1


def test_text_for_people_names_operation_and_requirement():
    """Without --json the report is text."""
    result = run(data=LOG)

    assert result.returncode == 0
    assert "cross_entropy" in result.stdout.decode()
    assert "n_classes" in result.stdout.decode()


def test_reader_that_stops_reading_is_no_error():
    """``explain | head -0``: no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cudassert_ipy", "explain", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdin.write(LOG)
    process.stdin.close()

    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0


def test_wrong_usage_is_status_2_with_the_usage():
    """An unknown option gets the accepted ones."""
    result = run("--jsn", "--x\x1b[31m")

    assert result.returncode == 2
    assert b"--json" in result.stderr
    assert b"\x1b" not in result.stderr


def test_explain_imports_no_torch():
    """A log is explained without the seconds that importing torch takes."""
    program = (
        "import sys; sys.stdin = open('/dev/null');"
        "from cudassert_ipy.__main__ import main; main(['explain', '--json']); main(['explain']);"
        "sys.stderr.write(str(sorted({'torch', 'numpy', 'IPython'} & set(sys.modules))))"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert result.stderr.endswith("[]")


# --- several files, other inputs, other outputs --------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """Return a directory with a log that has an error, one that has none, and one of bytes."""
    (tmp_path / "bad.log").write_bytes(LOG)
    (tmp_path / "good.log").write_bytes(b"all is well\n")
    (tmp_path / "core").write_bytes(bytes(range(256)) * 20)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["bad.log", "good.log"], 0),
        (["good.log", "bad.log"], 0),
        (["good.log", "good.log"], 1),
        (["core", "bad.log"], 2),
        (["good.log", "missing.log"], 2),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"], ["--markdown"]])
def test_status_of_several_files_is_that_of_grep(files, names, status, form):
    """2 if any input was unusable, else 0 if anything was found, else 1."""
    assert run(*form, *names, cwd=files).returncode == status


def test_unusable_file_does_not_stop_the_others(files):
    """Its reason is on stderr; the others are explained under their names, each on its own."""
    result = run("core", "missing*.log", ".", "bad.log", "good.log", cwd=files)

    assert result.stderr.decode().splitlines() == [
        "cannot explain core: it is not text",
        "cannot explain missing*.log: no file matches",
        "cannot explain .: Is a directory",
    ]
    shown = result.stdout.decode()
    assert shown.index("== bad.log ==") < shown.index("cross_entropy") < shown.index("== good.log")
    assert shown.endswith("== good.log ==\nNo CUDA error found in this text.\n")


def test_json_of_several_files_is_an_array(files):
    """One object for each usable file, in order; the failure in it is that of one file alone."""
    (files / "a.ipynb").write_bytes(notebook(STREAM))
    result = run("--json", "bad.log", "core", "a.ipynb", "good.log", cwd=files)

    records = json.loads(result.stdout)
    assert [list(record) for record in records] == [["file", "place", "failure"]] * 3
    assert [record["file"] for record in records] == ["bad.log", "a.ipynb", "good.log"]
    assert [record["place"] for record in records] == [None, "cell 1 from the top", None]
    assert records[0]["failure"] == json.loads(run("--json", "bad.log", cwd=files).stdout)


def test_one_file_has_no_heading(files):
    """A heading is for telling files apart."""
    assert run("bad.log", cwd=files).stdout.decode().startswith("\N{BALLOT X} Device-side assert")


def test_options_may_stand_between_the_files(files):
    """``explain a.log --json b.log`` is as good as the other orders."""
    shown = run("good.log", "--json", "bad.log", cwd=files).stdout

    assert [record["file"] for record in json.loads(shown)] == ["good.log", "bad.log"]


def test_markdown_and_json_exclude_each_other(files):
    """Nobody gets a mixture."""
    result = run("--json", "--markdown", "bad.log", cwd=files)

    assert (result.returncode, result.stdout) == (2, b"")
    assert b"not allowed with" in result.stderr


def test_markdown_of_several_files(files):
    """Each report has the name of its file in its title, as code."""
    shown = run("--markdown", "bad.log", "good.log", cwd=files).stdout.decode()

    assert [line for line in shown.splitlines() if line.startswith("#")] == [
        "### CUDA error report: `bad.log`",
        "### CUDA error report: `good.log`",
    ]


def test_markdown_names_the_versions_in_the_log():
    """What collect_env printed stands in the report."""
    log = b"PyTorch version: 2.1.0+cu118\nNvidia driver version: 535.104.05\n" + LOG

    shown = run("--markdown", data=log).stdout.decode()

    assert "torch 2.1.0+cu118, driver 535.104.05" in shown
