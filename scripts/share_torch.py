"""Let another virtual environment use this one's torch: `share_torch.py OTHER_VENV`.

Links torch, numpy and what torch requires, one entry per top-level name, into a directory of the
other environment that a .pth file adds to its path. Nothing else of this environment is visible
there, and 200 MB to 5 GB are not installed twice.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

SHARED = ("torch", "numpy")


def with_requirements(names: tuple[str, ...]) -> dict[str, metadata.Distribution]:
    """Return the distributions named and, transitively, those they require."""
    found: dict[str, metadata.Distribution] = {}
    todo = list(names)
    while todo:
        distribution = metadata.distribution(todo.pop())
        key = distribution.metadata["Name"].lower()
        if key in found:
            continue
        found[key] = distribution
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
    return found


def top_level(distribution: metadata.Distribution) -> set[str]:
    """Return the names in site-packages that the distribution owns."""
    names = {file.parts[0] for file in distribution.files or ()}
    return {name for name in names if name not in ("..", "__pycache__") and ".pth" not in name}


def main() -> None:
    """Fill OTHER_VENV/lib/python3.X/shared-torch and put it on that environment's path."""
    other = Path(sys.argv[1]).absolute()
    site_packages = next(other.glob("lib/python3*/site-packages"))
    shared = site_packages.parent / "shared-torch"
    shared.mkdir()
    for distribution in with_requirements(SHARED).values():
        for name in top_level(distribution):
            link = shared / name
            if not link.is_symlink():
                link.symlink_to(Path(str(distribution.locate_file(name))).absolute())
    (site_packages / "shared-torch.pth").write_text(f"{shared}\n")


if __name__ == "__main__":
    main()
