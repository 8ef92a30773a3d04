"""A real JupyterLab and a headless Chromium, and the few things that tests do with them.

The server has its own configuration, data and runtime directories, so that neither the settings
nor the running servers of whoever runs the tests matter.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SCREENSHOTS = Path(__file__).parents[1] / "screenshots"
CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CONFIG = {
    "LabApp": {
        # The helpers ask `window.jupyterapp` for the kernel's status.
        "expose_app_in_browser": True,
    }
}
SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # Without windowing every cell is in the page, also those scrolled out of sight.
    "notebook-extension/tracker": {"windowingMode": "none"},
}


def find_chromium() -> str | None:
    """Return the path of an installed Chromium or Chrome."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    missing = None
    if find_chromium() is None:
        missing = "NO CHROMIUM: browser tests are skipped (Debian: apt-get install chromium)"
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(300))
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


@dataclass(frozen=True)
class LabServer:
    """A running JupyterLab; notebooks live in ``root``."""

    url: str
    token: str
    root: Path
    log: Path

    def page_url(self, notebook: str) -> str:
        return f"{self.url}/lab/tree/{notebook}?reset&token={self.token}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not come up:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """Start one JupyterLab for the whole session; end it and its kernels afterwards."""
    home = tmp_path_factory.mktemp("lab")
    home.chmod(0o700)
    root = home / "notebooks"
    root.mkdir()
    for plugin, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    environment = {
        key: value
        for key, value in os.environ.items()
        # ipykernel leaves fd 1 and 2 alone where it sees pytest; users' kernels do not.
        if not key.startswith(("JUPYTER", "CUDA", "PYTEST"))
    }
    for variable, directory in (
        ("JUPYTER_CONFIG_DIR", "config"),
        ("JUPYTER_DATA_DIR", "data"),
        ("JUPYTER_RUNTIME_DIR", "runtime"),
        ("JUPYTERLAB_SETTINGS_DIR", "settings"),
        ("JUPYTERLAB_WORKSPACES_DIR", "workspaces"),
        ("IPYTHONDIR", "ipython"),
    ):
        (home / directory).mkdir(mode=0o700, exist_ok=True)
        environment[variable] = str(home / directory)
    environment["OMP_NUM_THREADS"] = "1"
    (home / "config" / "jupyter_lab_config.json").write_text(json.dumps(CONFIG))
    port, token, log = _free_port(), secrets.token_hex(16), home / "server.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyterlab",
                "--no-browser",
                "--allow-root",
                f"--ServerApp.port={port}",
                "--ServerApp.port_retries=0",
                "--ServerApp.ip=127.0.0.1",
                f"--IdentityProvider.token={token}",
                f"--ServerApp.root_dir={root}",
            ],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(f"{url}/api?token={token}", server, log)
        yield LabServer(url, token, root, log)
    finally:
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(5)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start one headless Chromium for the whole session."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(), args=list(CHROMIUM_ARGUMENTS)
        )
        yield chromium
        chromium.close()


class Notebook:
    """One notebook open in JupyterLab. Cells are counted from 0, markdown cells included."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.path = path

    def cell(self, index: int) -> Any:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def run_cell(self, index: int, *, wait: bool = True, timeout: float = 60) -> None:
        """Run one cell as a user does: click into it, Ctrl+Enter."""
        self.cell(index).locator(".cm-content").first.click()
        self.page.keyboard.press("Control+Enter")
        if wait:
            self.wait_for_idle(timeout=timeout)

    def run_all(self, *, wait: bool = True, timeout: float = 60) -> None:
        """Run > Run All Cells."""
        self.page.locator(".lm-MenuBar-item", has_text="Run").first.click()
        self.page.locator(".lm-Menu-item", has_text="Run All Cells").first.click()
        if wait:
            self.wait_for_idle(timeout=timeout)

    def wait_for_idle(self, *, timeout: float = 60) -> None:
        """Wait until the kernel is idle and no cell waits or runs, for 0.3 s on end."""
        self.page.wait_for_function(
            """() => {
                const panel = window.jupyterapp?.shell.currentWidget;
                const kernel = panel?.sessionContext?.session?.kernel;
                const waiting = [...document.querySelectorAll('.jp-Notebook .jp-InputPrompt')]
                    .some(prompt => prompt.textContent.includes('*'));
                const idle = kernel?.status === 'idle' && !waiting;
                if (!idle) { window.idleSince = null; return false; }
                window.idleSince ??= performance.now();
                return performance.now() - window.idleSince > 300;
            }""",
            timeout=timeout * 1000,
        )
        self.page.evaluate("() => { window.idleSince = null; }")

    def prompt(self, index: int) -> str:
        """Return the input prompt of a cell, e.g. ``[3]:``."""
        return str(self.cell(index).locator(".jp-InputPrompt").inner_text()).strip()

    def output(self, index: int) -> str:
        """Return what a person reads under a cell: its outputs as text."""
        return str(self.cell(index).locator(".jp-Cell-outputWrapper").inner_text())

    def whole_output(self, index: int) -> str:
        """Return the output of a cell with what is folded away."""
        return str(self.cell(index).locator(".jp-Cell-outputWrapper").text_content())

    def wait_for_output(self, index: int, text: str, *, timeout: float = 60) -> None:
        """Wait until ``text`` stands somewhere in the output of a cell, in any case."""
        outputs = self.cell(index).locator(".jp-Cell-outputWrapper")
        outputs.filter(has_text=text).first.wait_for(timeout=timeout * 1000)

    def button(self, index: int, label: str) -> Any:
        """Return the last widget button with exactly this label in the output of a cell."""
        exactly = re.compile(rf"^\s*{re.escape(label)}\s*$")
        return self.cell(index).locator("button.jupyter-button", has_text=exactly).last

    def click_button(self, index: int, label: str, *, timeout: float = 30) -> None:
        """Click the widget button with this label in the output of a cell."""
        self.button(index, label).click(timeout=timeout * 1000)

    def set_theme(self, theme: str) -> None:
        """Choose ``light`` or ``dark``."""
        name = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[theme]
        self.page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})",
            name,
        )
        light = "true" if theme == "light" else "false"
        self.page.locator(f'body[data-jp-theme-light="{light}"]').wait_for(state="attached")

    def set_width(self, width: int, height: int = 900) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def screenshot(self, name: str, *, cell: int | None = None) -> Path:
        """Write ``tests/screenshots/NAME.png``, of one cell if asked."""
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        if cell is None:
            self.page.screenshot(path=path)
            return path
        # The notebook scrolls inside the page, so the window has to be as high as the cell.
        size = self.page.viewport_size
        height = int(self.cell(cell).bounding_box()["height"])
        self.set_width(size["width"], max(height + 250, size["height"]))
        self.cell(cell).scroll_into_view_if_needed()
        self.page.wait_for_timeout(200)
        self.cell(cell).screenshot(path=path)
        self.set_width(size["width"], size["height"])
        return path

    def save(self) -> nbformat.NotebookNode:
        """Save and return the notebook as it is on the disk."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.path, as_version=4)


class NotebookOpener:
    """Opens notebooks in pages of their own and closes them at the end of the test."""

    def __init__(self, lab: LabServer, browser: Any) -> None:
        self._lab = lab
        self._browser = browser
        self._pages: list[Any] = []

    def __call__(self, sources: list[str], *, name: str = "notebook") -> Notebook:
        """Write a notebook with these code cells, open it and wait for its kernel."""
        path = self._lab.root / f"{name}-{secrets.token_hex(3)}.ipynb"
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
        page = self._browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(30_000)
        self._pages.append(page)
        page.goto(self._lab.page_url(path.name))
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        notebook = Notebook(page, path)
        notebook.wait_for_idle()
        # The file browser would take a third of the page, more of a narrow one.
        page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        return notebook

    def close(self) -> None:
        """End the kernels and close the pages; how each looked last is kept for a failed test."""
        SCREENSHOTS.mkdir(exist_ok=True)
        for number, page in enumerate(self._pages):
            page.screenshot(path=SCREENSHOTS / f"last_page_{number}.png")
            page.evaluate(
                "() => window.jupyterapp?.serviceManager.sessions.shutdownAll().catch(() => null)"
            )
            page.close()


@pytest.fixture
def open_notebook(lab: LabServer, browser: Any) -> Iterator[NotebookOpener]:
    """Return a function that opens a notebook made of the given code cells."""
    opener = NotebookOpener(lab, browser)
    yield opener
    opener.close()
