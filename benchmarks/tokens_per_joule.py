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

from benchmarks.harness import Figure, FigureTable, run_benchmark
from ecorl.bench.stats import spread_of
from ecorl.bench.tokens_per_joule.arms import ADAPTIVE, CLOCKS, GEARS, PLACEMENTS
from ecorl.bench.tokens_per_joule.benchmark import run_plan
from ecorl.bench.tokens_per_joule.plan import DEFAULT_SEEDS, BenchPlan, default_config
from ecorl.bench.tokens_per_joule.reading.quality import first_reached
from ecorl.bench.tokens_per_joule.result import BenchResult
from ecorl.bench.tokens_per_joule.running.folder import BenchFolder
from ecorl.bench.tokens_per_joule.summary import energy_provenance, is_bound, over_seeds
from ecorl.bench.tokens_per_joule.telling.energy_tables import at_target
from ecorl.records import Provenance

FLAGS = {"--full": "all placements, with gears and supervised training"}
"""Options without a value, and what the help says of them."""

FIGURES = FigureTable("tokens_per_joule")
_NOT_HERE = "not among the placements of this pass: make bench-long has all"
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


# ---------------------------------------------------------------- figures


def bench_figures(result: BenchResult) -> list[Figure]:
    """Make the figures: tokens per joule of each placement, and what else is asked.

    Args:
        result: of the benchmark.
    """
    return [
        *(_rate(result, placement) for placement in PLACEMENTS),
        _idle_share(result),
        _joules_to_reward(result),
        _known_truth(result),
    ]


def _why(result: BenchResult, arm: str) -> str:
    missing = (run.missing for run in result.runs if run.arm == arm and run.missing)
    return next(missing, "no energy is known")


def _rate(result: BenchResult, placement: str) -> Figure:
    """Output tokens over all joules, those of a simulated card among them where there is one."""
    key = "tpj.{placement}"
    if not any(arm.name == placement for arm in result.arms):
        return FIGURES.figure(key, None, why=_NOT_HERE, placement=placement)
    runs = result.of(placement)
    has_card = any(run.card is not None for run in runs)
    alone = over_seeds(result, placement, lambda run: run.tokens_per_j)
    found, origin = alone, energy_provenance(runs)
    if has_card:
        found = over_seeds(result, placement, lambda run: run.tokens_per_j_with_card)
        origin = Provenance.MODELLED
    if found is None or origin is None:
        return FIGURES.figure(key, None, why=_why(result, placement), placement=placement)
    spread, beside = spread_of(found.values), ""
    if has_card:
        spread |= {"this_machine_alone": None if alone is None else alone.median}
        beside = "; with the simulated card in its modelled time, and what runs beside its "
        beside += "simulation as slow as it was"
    if is_bound(runs):
        beside += "; at most, since joules are missing"
    words = {"placement": placement, "found": found, "beside": beside}
    return FIGURES.figure(key, found.median, spread, provenance=origin, words=words)


def _idle_share(result: BenchResult) -> Figure:
    """Of the baseline: what of its joules was drawn while no stage ran."""
    key, base = "tpj.idle_share", result.baseline
    by_arm = {a.name: over_seeds(result, a.name, lambda run: run.idle_share) for a in result.arms}
    found, origin = by_arm.get(base), energy_provenance(result.of(base))
    if found is None or origin is None:
        lacks = is_bound(result.of(base))
        return FIGURES.figure(key, None, why="joules are missing" if lacks else _why(result, base))
    others = {name: one.median for name, one in by_arm.items() if one is not None}
    spread = {**spread_of(found.values), **others}
    return FIGURES.figure(key, found.median, spread, provenance=origin, base=base)


def _joules_to_reward(result: BenchResult) -> Figure:
    """Of the baseline: joules up to the first evaluation at or above the target."""
    key, base = "tpj.joules_to_reward", result.baseline
    target = result.target("reward")
    if target is None or target.value is None:
        return FIGURES.figure(key, None, why="no target" if target is None else target.why)
    found = over_seeds(result, base, at_target(target, lambda point: point.energy_j))
    points = [p for run in result.of(base) if (p := first_reached(run, target)) is not None]
    origin = energy_provenance(result.of(base))
    if found is None or origin is None:
        why = "no energy is known" if points else f"{base} did not reach it"
        return FIGURES.figure(key, None, why=why)
    time = over_seeds(result, base, at_target(target, lambda point: point.time_s))
    told = {"held_out_reward": target.value, "s_measured": None if time is None else time.median}
    with_card = {
        f"{arm.name} with the simulated card (modelled)": one.median
        for arm in result.arms
        if (one := over_seeds(result, arm.name, at_target(target, lambda p: p.with_card_j)))
        is not None
    }
    is_least = any(point.at_least for point in points)
    beside = "; at least, since joules are missing" if is_least else ""
    spread = {**spread_of(found.values), **told, **with_card}
    words = {"base": base, "target": target, "found": found, "beside": beside}
    return FIGURES.figure(key, found.median, spread, provenance=origin, words=words)


def _known_truth(result: BenchResult) -> Figure:
    key, truth = "tpj.known_truth_error", result.known_truth
    if truth is None or truth.error is None:
        return FIGURES.figure(key, None, why=None if truth is None else truth.why)
    return FIGURES.figure(key, truth.error, {"found": truth.found, "true": truth.true})


def figure_settings(result: BenchResult) -> dict[str, object]:
    """What the figures depend on, and the runs that they are made of, plain data.

    Args:
        result: of the benchmark.
    """
    names = ("tokens_per_j", "tokens_per_j_with_card", "samples_per_s", "bubble", "idle_share")
    rows = [
        {
            "arm": run.arm,
            "seed": run.seed,
            "missing": run.missing or None,
            **{name: getattr(run, name) for name in names},
        }
        for run in (*result.runs, *result.supervised)
    ]
    plan = {key: value for key, value in result.plan.items() if key != "config"}
    return {
        **plan,
        "config_digest": result.stand.digest,
        "driver": result.stand.driver,
        "unit": result.stand.unit,
        "runs": rows,
        "idle": [
            {"device": r.device_id, "when": r.when, "power_w": r.power_w,
             "provenance": None if r.provenance is None else str(r.provenance)}
            for r in result.idle
        ],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_benchmark("tokens_per_joule", measure, flags=FLAGS))
