"""Measure everything: a table with goals, or with ``--json`` one flat object of ratios."""

from __future__ import annotations

import argparse
import json
import platform
import sys

from benchmarks import cell, explain, load_ext, replay

BENCHMARKS = {
    "load_ext.vs_autoreload": load_ext,
    "cell.vs_bare": cell,
    "replay.vs_restart": replay,
    "explain.vs_scan": explain,
}


def main() -> int:
    """Return 0; 1 if a figure misses its goal and ``--strict`` was given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one flat JSON object only")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]}; there are: {', '.join(BENCHMARKS)}")
    chosen = options.names or list(BENCHMARKS)
    if not options.json:
        print(f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}")
        print(f"{'figure':<24} {'ratio':>8} {'goal':>8}")
    figures = {}
    for name in chosen:
        benchmark = BENCHMARKS[name]
        figures[name] = round(benchmark.measure(), 3)
        if not options.json:
            verdict = "" if figures[name] <= benchmark.GOAL else "  missed"
            print(f"{name:<24} {figures[name]:>8.3f} {benchmark.GOAL:>8.2f}{verdict}", flush=True)
    if options.json:
        print(json.dumps(figures))
    missed = any(figures[name] > BENCHMARKS[name].GOAL for name in chosen)
    return int(options.strict and missed)


if __name__ == "__main__":
    sys.exit(main())
