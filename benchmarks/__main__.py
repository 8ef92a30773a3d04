"""Measure everything: a table with goals, or with ``--json`` one flat object of figures."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import cell, checkpoint, explain, load_ext, replay, small_step, tensor_row

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One figure: how it is measured and what it should be.

    Attributes:
        measure: returns the figure.
        goal: the largest good figure, or the smallest where ``at_least``.

    """

    measure: Callable[[], float]
    goal: float
    at_least: bool = False

    def is_met(self, figure: float) -> bool:
        """Whether ``figure`` reaches the goal."""
        return figure >= self.goal if self.at_least else figure <= self.goal

    @property
    def goal_text(self) -> str:
        """The goal with the direction it is to be met from."""
        return f"{'>=' if self.at_least else '<='} {self.goal:g}"


BENCHMARKS = {
    "load_ext.vs_autoreload": Benchmark(load_ext.measure, load_ext.GOAL),
    "cell.vs_bare": Benchmark(cell.measure, cell.GOAL),
    "replay.vs_restart": Benchmark(replay.measure, replay.GOAL),
    "replay.overhead_small_step": Benchmark(small_step.measure, small_step.GOAL),
    "checkpoint.ms_per_gb": Benchmark(checkpoint.measure, checkpoint.GOAL),
    "stats.float32_1e6": Benchmark(tensor_row.float32_1e6, tensor_row.GOAL),
    "stats.float32_1e8": Benchmark(tensor_row.float32_1e8, tensor_row.GOAL),
    "stats.int64_1e6": Benchmark(tensor_row.int64_1e6, tensor_row.GOAL),
    "stats.vs_lovely_1e6": Benchmark(
        tensor_row.vs_lovely_1e6, tensor_row.LOVELY_GOAL, at_least=True
    ),
    "explain.vs_scan": Benchmark(explain.measure, explain.GOAL),
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
        print(f"{'figure':<27} {'measured':>9} {'goal':>9}")
    figures = {}
    for name in chosen:
        benchmark = BENCHMARKS[name]
        figures[name] = round(benchmark.measure(), 3)
        if not options.json:
            verdict = "" if benchmark.is_met(figures[name]) else "  missed"
            print(f"{name:<27} {figures[name]:>9.3f} {benchmark.goal_text:>9}{verdict}", flush=True)
    if options.json:
        print(json.dumps(figures))
    missed = any(not BENCHMARKS[name].is_met(figures[name]) for name in chosen)
    return int(options.strict and missed)


if __name__ == "__main__":
    sys.exit(main())
