"""Kernels that end with the test."""

from __future__ import annotations

import pytest

from tests.kernel.driver import FAILING, SETUP, Kernel


@pytest.fixture
def start_kernel(tmp_path_factory):
    """Start kernels that end with the test."""
    kernels = []
    runtime = tmp_path_factory.mktemp("runtime")
    runtime.chmod(0o700)

    def start(
        *,
        load: bool = True,
        simulator: bool = True,
        buttons: bool = False,
        arguments: list[str] | None = None,
        **environment: str,
    ) -> Kernel:
        environment.setdefault("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        environment.setdefault("JUPYTER_RUNTIME_DIR", str(runtime))
        # Kernels that are killed leave the file of what CUDA printed: not in the machine's own.
        environment.setdefault("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        if simulator:
            environment["CUDASSERT_SIMULATOR"] = "1"
        if buttons:
            environment["JPY_SESSION_NAME"] = "test.ipynb"
        kernel = Kernel(environment, arguments)
        kernels.append(kernel)
        if load:
            assert kernel.run("%load_ext cudassert_ipy").status == "ok"
        return kernel

    yield start
    for kernel in kernels:
        kernel.close()


@pytest.fixture
def dead_kernel(start_kernel):
    """Return a kernel whose cell 3 died of a bad embedding index."""
    kernel = start_kernel()
    assert kernel.run(SETUP).status == "ok"
    outcome = kernel.run(FAILING)
    assert outcome.status == "error", outcome.stdout
    return kernel
