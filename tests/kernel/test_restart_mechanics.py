"""The restart in place, on real ipykernel through jupyter_client, without the extension."""

from __future__ import annotations

import os
import queue
import re
import signal
import time
from pathlib import Path

import jupyter_client
import pytest

from tests.kernel.test_restart_terminal import Terminal

pytestmark = pytest.mark.kernel

HERE = Path(__file__).parent


class Reply:
    """What one request brought: reply content, output texts in order, status changes."""

    def __init__(self, reply, outputs):
        self.reply = reply
        self.outputs = outputs

    @property
    def status(self):
        return self.reply["status"] if self.reply else None

    @property
    def text(self):
        text = "".join(
            message["content"].get("text", "")
            or message["content"].get("data", {}).get("text/plain", "")
            or "\n".join(message["content"].get("traceback", []))
            for message in self.outputs
        )
        return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Kernel:
    def __init__(self, manager, client):
        self.manager = manager
        self.client = client
        self.log: list[dict] = []

    @property
    def pid(self):
        return self.manager.provisioner.pid

    def send(self, code):
        return self.client.execute(code, allow_stdin=False)

    def collect(self, *ids, timeout=30.0, idles=1):
        """Wait for the reply and ``idles`` idle messages of each request; keep all of iopub."""
        replies, seen = {}, dict.fromkeys(ids, 0)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self.client.get_shell_msg(timeout=0.02)
                replies[message["parent_header"].get("msg_id")] = message["content"]
            except queue.Empty:
                pass
            try:
                message = self.client.get_iopub_msg(timeout=0.02)
            except queue.Empty:
                message = None
            if message is not None:
                self.log.append(message)
                parent = message["parent_header"].get("msg_id")
                state = message["content"].get("execution_state")
                if parent in seen and state == "idle":
                    seen[parent] += 1
            if all(seen[i] >= idles and i in replies for i in ids):
                break
        else:
            raise AssertionError(f"no answer: {seen}, replies {list(replies.values())}")
        return [Reply(replies[i], self.outputs(i)) for i in ids]

    def collect_idle(self, request, idles):
        """Wait until a request that was answered has been idle so often."""
        deadline = time.monotonic() + 30
        while self.idle_count(request) < idles:
            assert time.monotonic() < deadline
            try:
                self.log.append(self.client.get_iopub_msg(timeout=0.1))
            except queue.Empty:
                continue

    def idle_count(self, request):
        return sum(
            message["content"].get("execution_state") == "idle"
            for message in self.log
            if message["parent_header"].get("msg_id") == request
        )

    def outputs(self, request):
        kinds = ("stream", "execute_result", "display_data", "error")
        return [
            message
            for message in self.log
            if message["parent_header"].get("msg_id") == request and message["msg_type"] in kinds
        ]

    def all_text(self):
        return Reply(None, [m for m in self.log if m["msg_type"] == "stream"]).text

    def run(self, code, **options):
        return self.collect(self.send(code), **options)[0]

    def restart_by_button(self, call):
        """Run a cell that restarts afterwards and wait until the new process is done."""
        request = self.send(call)
        reply = self.collect(request, idles=2)[0]
        assert reply.status == "ok", reply.text
        return reply


@pytest.fixture
def kernel(monkeypatch, tmp_path_factory, tmp_path):
    base = tmp_path_factory.mktemp("jupyter")
    runtime = base / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime))
    environment = os.environ | {
        "IPYTHONDIR": str(base / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": "1",
        "CUDASSERT_DISABLE": "1",
    }
    environment.pop("CUDA_LAUNCH_BLOCKING", None)
    environment.pop("PYTEST_CURRENT_TEST", None)  # ipykernel would not redirect its descriptors
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment, cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    running = Kernel(manager, client)
    assert running.run("%load_ext restart_probe").status == "ok"
    yield running
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_magic_restarts_within_its_cell(kernel):
    """The new process has the same pid, runs the set-up and answers the cell it was called from."""
    pid = kernel.pid
    port = kernel.manager.shell_port
    kernel.run("x = 1")
    reply = kernel.run("probe.magic(cells=probe.cells('x = 41', 'x += 1; x', first=1))")
    assert reply.status == "ok"
    assert reply.reply["execution_count"] == 3
    assert "0/2 Running cell [1] again" in reply.text
    assert "Set-up done: 2 cells ran again." in reply.text
    after = kernel.run("import os; print(os.getpid(), os.environ.get('CUDA_LAUNCH_BLOCKING'), x)")
    assert after.text == f"{pid} 1 42\n"
    assert after.reply["execution_count"] == 4
    assert kernel.manager.shell_port == port


def test_button_routes_output_to_the_original_cell(kernel):
    """A scheduled restart answers its cell first; what follows appears under the same cell."""
    pid = kernel.pid
    kernel.run("print('one')")
    reply = kernel.restart_by_button(
        "probe.button(cells=probe.cells('y = 7', \"print('noise'); y\"), replay=True,"
        " failing=probe.RecordedCell(source='boom()', execution_count=9))"
    )
    assert reply.reply["execution_count"] == 3
    assert "0/3 Running cell [1] again" in reply.text
    assert "2/3 Replaying cell [9]" in reply.text
    assert "replayed boom()" in reply.text
    assert "noise" not in reply.text
    after = kernel.run("import os; (os.getpid(), y)")
    assert f"({pid}, 7)" in after.text
    assert after.reply["execution_count"] == 4


def test_numbers_and_history_go_on(kernel):
    """Cells that ran again keep their numbers in In and Out; the others keep their text in In."""
    kernel.run("'not run again'")
    kernel.run("6 * 7")
    kernel.run("probe.magic(cells=probe.cells('6 * 7', first=3))")
    assert kernel.run("print(In[2], In[3], Out, _i3, len(In))").text == (
        "'not run again' 6 * 7 {3: 42} 6 * 7 6\n"
    )
    failed = kernel.run("1 / 0")
    assert "Cell In[6], line 1" in failed.text
    history = kernel.run("%history -n 2-4").text
    assert "2: 'not run again'" in history
    assert "4: probe.magic(" in history


def test_setup_stops_at_first_failure(kernel):
    """A set-up cell that fails stops the rest, and the note names the cell and the error."""
    reply = kernel.run("probe.magic(cells=probe.cells('a = 1', '1 / 0', 'b = 1'))")
    assert reply.status == "ok"
    assert "failed with ZeroDivisionError: division by zero" in reply.text
    assert "Stopped: cell [2] failed this time. 1 cell after it did not run." in reply.text
    assert kernel.run("print('a' in dir(), 'b' in dir())").text == "True False\n"


def test_awaiting_and_magic_cells_run_again(kernel):
    """Top-level await, magics, syntax errors and input() behave in a set-up cell as in a cell."""
    kernel.run(
        "probe.magic(cells=probe.cells('import asyncio\\nawait asyncio.sleep(0.01)\\nz = 3',"
        " '%%capture out\\nprint(5)', first=1))"
    )
    assert kernel.run("print(z, repr(out.stdout))").text == "3 '5\\n'\n"
    reply = kernel.run("probe.magic(cells=probe.cells('input()', first=1))")
    assert "StdinNotImplementedError" in reply.text
    reply = kernel.run("probe.magic(cells=probe.cells('x =', first=1))")
    assert "SyntaxError" in reply.text


@pytest.mark.parametrize("form", ["button", "magic"])
@pytest.mark.parametrize("gap", [0.0, 0.2])
def test_queued_cells_are_aborted(kernel, form, gap):
    """Cells behind the restart are answered 'aborted', read already or not; none stays busy."""
    for round_ in range(3):
        first = kernel.send(f"import time; time.sleep(0.5); probe.{form}()")
        time.sleep(gap)
        queued = [kernel.send(f"q = {number}") for number in range(round_ + 1)]
        replies = kernel.collect(first, *queued)
        assert [reply.status for reply in replies] == ["ok", *["aborted"] * len(queued)]
        if form == "button":
            kernel.collect_idle(first, 2)
        assert kernel.run("'q' in dir()").text == "False"


def test_requests_sent_while_away_run_afterwards(kernel):
    """A cell sent while the kernel is being replaced runs after the resume, in the new process."""
    first = kernel.send("probe.magic(cells=probe.cells('import time; time.sleep(1); w = 5'))")
    time.sleep(0.6)
    late = kernel.send("w + 1")
    replies = kernel.collect(first, late)
    assert [reply.status for reply in replies] == ["ok", "ok"]
    assert replies[1].text == "6"
    assert replies[1].reply["execution_count"] == 3


def test_environment_is_the_one_at_start(kernel):
    """What the kernel and cells put into os.environ is gone; blocking is set, then taken back."""
    assert kernel.run("import os; os.environ['ADDED'] = '1'; os.environ['PAGER']").text == "'cat'"
    names = "[os.environ.get(n) for n in ('ADDED', 'CUDA_LAUNCH_BLOCKING', 'OMP_NUM_THREADS')]"
    shown = f"import os, sys; print({names}, len(sys.orig_argv))"
    kernel.run("probe.magic()")
    first = kernel.run(shown).text
    assert first.startswith("[None, '1', '1']")
    kernel.run("probe.magic()")
    assert kernel.run(shown).text == first, "options pile up"
    kernel.run("probe.magic(blocking=False)")
    assert kernel.run(shown).text == first.replace("'1', '1'", "None, '1'")


def test_children_and_timers_end(kernel):
    """Child processes are ended and a running interval timer does not kill the new process."""
    child = kernel.run(
        "import subprocess, signal; c = subprocess.Popen(['sleep', '300'])\n"
        "signal.signal(signal.SIGALRM, lambda *a: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1.5)\n"
        "from cudassert_ipy.restart.children import children\n"
        "print([x.name for x in children()], c.pid)"
    ).text
    names, _, pid = child.strip().rpartition(" ")
    assert names == "['sleep']"
    kernel.run("probe.magic()")
    assert not Path(f"/proc/{pid}").exists(), "not even as a zombie"
    time.sleep(1.6)
    assert kernel.run("1 + 1").text == "2"


def test_descriptors_and_loggers_work_after(kernel):
    """Text from C code and child processes is shown, and a logger made in the set-up still logs."""
    setup = "import logging; logging.basicConfig(level='INFO'); logging.info('first')"
    restarted = kernel.run(f"probe.magic(cells=probe.cells({setup!r}))")
    assert "first" not in restarted.text
    kernel.run("import os; os.system('echo from a child; echo and this >&2')")
    time.sleep(0.3)
    kernel.run("logging.info('late')")
    # ipykernel's reader ends at its first text if descriptor 1 is a pipe without a reader.
    kernel.run("os.system('echo second; echo second >&2')")
    time.sleep(0.3)
    kernel.run("pass")
    assert kernel.all_text().count("second") == 2
    assert "from a child" in kernel.all_text()
    assert "and this" in kernel.all_text()
    assert "INFO:root:late" in kernel.all_text()


def test_interrupt_works_after_and_during(kernel):
    """The stop button ends a set-up cell, awaiting or not, and works on cells after it."""
    for source in ("import time; time.sleep(60)", "import asyncio; await asyncio.sleep(60)"):
        request = kernel.send(f"probe.magic(cells=probe.cells({source!r}, 'n = 1'))")
        time.sleep(2.0)
        kernel.manager.interrupt_kernel()
        reply = kernel.collect(request, timeout=10)[0]
        assert "Stopped: cell [1] failed" in reply.text, reply.text
    request = kernel.send("import time; time.sleep(60)")
    time.sleep(0.5)
    kernel.manager.interrupt_kernel()
    assert kernel.collect(request, timeout=10)[0].reply["ename"] == "KeyboardInterrupt"


@pytest.mark.parametrize("form", ["button", "magic"])
def test_interrupt_on_the_way_does_not_kill(kernel, form):
    """SIGINT at any moment around the exec: the kernel lives, answers, and can be interrupted."""
    pid = kernel.pid
    for tenth in range(1, 9):
        request = kernel.send(f"probe.{form}(cells=probe.cells('g = 1'))")
        time.sleep(tenth / 10)
        os.kill(pid, signal.SIGINT)
        kernel.collect(request, timeout=15)
        assert Path(f"/proc/{pid}").exists()
        if form == "button":
            kernel.collect_idle(request, 2)
        assert kernel.run(f"{tenth} + 1").text == f"{tenth + 1}"
    for source in ("import time; time.sleep(60)", "import asyncio; await asyncio.sleep(60)"):
        request = kernel.send(source)
        time.sleep(0.5)
        os.kill(pid, signal.SIGINT)
        # ipykernel's own handler for awaiting cells does not wake its loop up: a message does.
        kernel.client.comm_info()
        reply = kernel.collect(request, timeout=10)[0].reply
        assert reply["ename"] in ("KeyboardInterrupt", "CancelledError")


def test_interrupt_on_the_way_does_not_kill_a_terminal(tmp_path):
    """Ctrl-C at any moment around the exec: the terminal lives, and Ctrl-C works on its cells."""
    running = Terminal(tmp_path)
    pid = running.child.pid
    for tenth in (1, 2, 3, 4, 6):
        running.child.sendline("again()")
        time.sleep(tenth / 10)
        os.kill(pid, signal.SIGINT)
        time.sleep(1.5)
        assert running.child.isalive()
        running.child.sendline("6 * 7")
        running.child.expect_exact(": 42")
    running.child.sendline("import time; print('be' 'gun'); time.sleep(60)")
    running.child.expect_exact("begun")
    running.child.sendintr()
    running.child.expect_exact("KeyboardInterrupt")
    running.child.sendline("6 * 7")
    running.child.expect_exact(": 42", timeout=10)
    running.child.close(force=True)


def test_interrupt_before_the_setup_cancels_it(kernel):
    """SIGINT between the load and the first set-up cell: no set-up cell runs, nor the replay."""
    reply = kernel.run("probe.magic(cells=probe.cells('g = 1'), extra={'interrupt': True})")
    assert "Stopped: cell [1] failed this time." in reply.text
    assert kernel.run("'g' in dir()").text == "False"
    for cells in ("('g = 1')", "()"):
        reply = kernel.run(
            f"probe.magic(cells=probe.cells{cells}, extra={{'interrupt': True, 'cancels': True}},"
            " replay=True, failing=probe.RecordedCell(source='boom()'))"
        )
        assert "Cancelled after 0 of" in reply.text
        assert "replayed" not in reply.text
    code = "import signal; signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert kernel.run(code).text == "True", "a cell has the handler that raises"
    kernel.run("probe.magic(cells=probe.cells('g = 1'))")
    assert kernel.run("g").text == "1", "one interrupt cancels one resume"


def test_restart_from_a_removed_directory(kernel, tmp_path):
    """A current directory that is gone does not keep the next process from starting."""
    kernel.run("import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)")
    assert kernel.run("probe.magic(cells=probe.cells('c = 1'))").status == "ok"
    assert kernel.run("import os; print(os.getcwd(), c)").text == f"{tmp_path} 1\n"
    # The start directory is gone as well; a plain file in it may still have been open.
    kernel.run("import os, shutil; shutil.rmtree(os.getcwd())")
    assert kernel.run("probe.magic(cells=probe.cells('c = 2'))").status == "ok"
    assert kernel.run("c").text == "2"
    tmp_path.mkdir()


def test_directory_and_path_go_on(kernel, tmp_path):
    """The new process starts where the old one did and knows what was added to sys.path."""
    (tmp_path / "sub").mkdir()
    kernel.run("%cd sub")
    kernel.run("probe.handle.start.sys_path = ('/added', *probe.handle.start.sys_path)")
    kernel.run("get_ipython().run_line_magic('cd', '/')")
    kernel.run("probe.magic()")
    assert kernel.run("import os; print(os.getcwd())").text.strip() == str(tmp_path)
    assert kernel.run("import sys; sys.path.index('/added')").text == "0"


def test_subshells_are_made_again(kernel):
    """The page's subshell ids exist in the new process, so that its widgets still answer."""
    session, control = kernel.client.session, kernel.client.control_channel

    def ask(kind):
        control.send(session.msg(kind))
        while True:
            message = kernel.client.get_control_msg(timeout=10)
            if message["msg_type"] == kind.replace("request", "reply"):
                return message["content"]

    made = ask("create_subshell_request")["subshell_id"]
    kernel.run("probe.magic()")
    assert ask("list_subshell_request")["subshell_id"] == [made]
    message = session.msg("execute_request", {"code": "21 * 2", "silent": False})
    message["header"]["subshell_id"] = made
    kernel.client.shell_channel.send(message)
    assert kernel.collect(message["header"]["msg_id"])[0].text == "42"


@pytest.mark.parametrize("form", ["button", "magic"])
def test_failing_exec_leaves_the_kernel_alive(kernel, form):
    """When the system refuses the exec the kernel says so and goes on: output, history, files."""
    kernel.run("keep = 1; probe.handle.start.environment['BIG'] = 'x' * 4_000_000")
    reply = kernel.run(f"probe.{form}()")
    if form == "magic":
        assert reply.reply["ename"] == "RestartError"
        assert "goes on as it was: Argument list too long" in reply.reply["evalue"]
    else:
        time.sleep(1.5)
        assert "Argument list too long" in kernel.run("print(probe.failures)").text
    assert kernel.run("keep").text == "1"
    shown = kernel.run("import os; os.system('echo still here')")
    time.sleep(0.3)
    kernel.run("pass")
    assert "still here" in kernel.all_text(), shown
    assert kernel.run("get_ipython().history_manager.session_number > 0").text == "True"
    left = list(Path(os.environ["JUPYTER_RUNTIME_DIR"]).glob("cudassert-*"))
    assert left == []


def test_can_exec_is_an_allow_list(kernel):
    """ipykernel's own kernel may be replaced; a subclass of it may not."""
    assert kernel.run("print(probe.leaving.can_exec(get_ipython()))").text == "None\n"
    code = (
        "class Other(type(get_ipython().kernel)): pass\n"
        "class Shell: kernel = Other.__new__(Other)\n"
        "print(probe.leaving.can_exec(Shell))"
    )
    assert kernel.run(code).text == "this kernel (__main__.Other) is not ipykernel's own\n"


def test_resume_by_hand_runs_after_its_cell(kernel):
    """A handoff taken up after a restart by hand runs in this kernel, with numbers of its own."""
    call = "probe.by_hand('import asyncio; await asyncio.sleep(0.01); h = 4', 'h + 1')"
    reply = kernel.collect(kernel.send(call), idles=2)[0]
    assert "1/2 Running cell [2] again" in reply.text
    assert "Set-up done: 2 cells ran again." in reply.text
    after = kernel.run("print(h, Out, In[3][:6])")
    assert after.text == "4 {4: 5} import\n"
    assert after.reply["execution_count"] == 9
    assert "not unique" not in kernel.all_text()


def test_text_on_descriptor_2_before_the_exec_arrives(kernel):
    """What C code printed just before the restart, and what a capture gives back, is shown."""
    kernel.run(
        "import os\ndef last():\n    os.write(2, b'last words')\nprobe.handle._before_exec = last"
    )
    reply = kernel.run("import os; os.write(1, b'early words'); probe.magic()")
    assert "early words" in reply.text
    assert "last words" in reply.text
