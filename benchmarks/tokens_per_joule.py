"""How many output tokens does a joule buy, by where rewards and reference are computed?

Three placements in ``make bench`` (nothing leaves; everything leaves while training goes on; the
learned policy: the two ends between which a choice lies, and what ecorl would choose), all five
with gears and supervised training in ``--full``. `ecorl bench tokens-per-joule` is the same on your
models; both are code of `ecorl.bench.tokens_per_joule`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure
from benchmarks.studies.tokens_per_joule import bench_figures, figure_settings
from ecorl.bench.tokens_per_joule.arms import ADAPTIVE, CLOCKS, GEARS, PLACEMENTS
from ecorl.bench.tokens_per_joule.benchmark import run_plan
from ecorl.bench.tokens_per_joule.plan import DEFAULT_SEEDS, BenchPlan, default_config
from ecorl.bench.tokens_per_joule.running.folder import BenchFolder

SHORT = ("gpu_only", "concurrent", "learned")
STEPS, WARM_UP, IDLE_S = 40, 8, 1.0
QUICK_STEPS, QUICK_WARM_UP = 10, 2


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    steps, warm_up = (QUICK_STEPS, QUICK_WARM_UP) if options.quick else (STEPS, WARM_UP)
    plan = BenchPlan(
        base=default_config(steps, warm_up),
        placements=tuple(PLACEMENTS) if options.full else SHORT[:2] if options.quick else SHORT,
        extras=(GEARS, ADAPTIVE, CLOCKS) if options.full else (),
        seeds=DEFAULT_SEEDS[:1] if options.quick else DEFAULT_SEEDS,
        warm_up=warm_up,
        idle_s=IDLE_S,
        supervised=options.full,
    )
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-tpj-") as name:
        folder = BenchFolder(Path(name) / "bench")
        result = run_plan(plan, folder, _say, options.box_s)
    return figure_settings(result), bench_figures(result)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--full", action="store_true", help="all placements, with gears and supervised training"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark("tokens_per_joule", measure, options=_options))
