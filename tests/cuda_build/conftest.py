"""Only where torch is a CUDA build and no driver is there: ``make test-cuda-build``."""

from __future__ import annotations

import pytest

from tests.cuda_build import fake_device

if not fake_device.available():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def device():
    return fake_device.FakeDevice()
