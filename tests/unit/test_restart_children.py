"""Child processes at a restart: found, ended, and no dead ones left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: the children of the test process are not ours to end.
SCRIPT = """
import os, signal, subprocess, sys, time
from pathlib import Path
from cudassert_ipy.restart.children import children, end_children

def ours():
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(os.getpid()):
            found.append(fields[0])
    return found

STUBBORN = "trap '' TERM; echo 1; while :; do sleep 0.1; done"
kinds = {
    "dead": [sys.executable, "-c", "pass"],
    "polite": ["sleep", "60"],
    "stubborn": ["sh", "-c", STUBBORN],
    "parent": ["sh", "-c", "sleep 60 & echo 1; wait"],
}
started = [subprocess.Popen(kinds[name], stdout=subprocess.PIPE) for name in sys.argv[1:]]
for name, child in zip(sys.argv[1:], started):
    child.stdout.readline() if name != "polite" else None
if "dead" in sys.argv:
    while "Z" not in ours():
        time.sleep(0.01)
pids = {child.pid for child in started}
before = end_children(grace=0.3)
print(len({child.pid for child in before} & pids), len(children()), ours())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("kinds", "ended"),
    [
        (["polite"], 1),
        (["stubborn"], 1),
        (["parent"], 1),
        (["dead"], 0),
        (["dead", "polite", "stubborn", "parent"], 3),
        ([], 0),
    ],
)
def test_no_child_is_left_not_even_dead(kinds, ended):
    """Children that obey, ignore or ended before are gone and collected: no zombie survives."""
    command = [sys.executable, "-c", SCRIPT, *kinds]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert shown.stdout == f"{ended} 0 []\n", shown.stderr
