"""An IPython shell in this process, given back as it was."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell


def installed(shell):
    """Everything the extension could leave behind in a shell."""
    return {
        "attributes": sorted(vars(shell)),
        "events": {name: len(calls) for name, calls in shell.events.callbacks.items()},
        "transforms": len(shell.input_transformer_manager.cleanup_transforms),
        "magics": [sorted(shell.magics_manager.magics[kind]) for kind in ("line", "cell")],
        "registry": sorted(shell.magics_manager.registry),
        "configurables": len(shell.configurables),
    }


@pytest.fixture
def bare_shell(tmp_path, monkeypatch):
    """Return a shell without the extension."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    # IPython itself loads some of its magics when they are first used.
    for magic, argument in (
        ("load_ext", "cudassert_ipy"),
        ("cuda_debug", ""),
        ("reload_ext", "cudassert_ipy"),
        ("unload_ext", "cudassert_ipy"),
        ("pinfo", "1"),
    ):
        shell.run_line_magic(magic, argument)
    for source in ("1 / 0", "1 +", "%nonsense", "1"):  # and some attributes
        shell.run_cell(source)
    yield shell
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(bare_shell):
    """Return a shell with the extension; after the test nothing of it is left."""
    before = installed(bare_shell)
    bare_shell.run_line_magic("load_ext", "cudassert_ipy")
    yield bare_shell
    bare_shell.run_line_magic("unload_ext", "cudassert_ipy")
    assert installed(bare_shell) == before


@pytest.fixture
def simulated(shell):
    """Return a shell whose torch has a simulated device."""
    shell.run_line_magic("cuda_debug", "simulator on")
    return shell
