"""Tests for the oldest supported versions; they run in .venv-colab (`make test` makes it)."""

from __future__ import annotations

import IPython

# Under a newer IPython these tests would say nothing about Colab, so they are not even collected.
collect_ignore_glob = [] if IPython.version_info[0] == 7 else ["test_*.py"]
