"""Does the demo learn, in how long, and from a warm start that leaves something to learn?

Runs ``ecorl run --config demo`` for three seeds, each with empty caches (task and kernels are made
within the measured time). The held-out gain is paired: the same prompts before and after.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ecorl.bench.command import run_benchmark
from ecorl.bench.demo_run import DemoRun, run_demo
from ecorl.bench.figures import Figure, Target, missing
from ecorl.bench.install import Installation, install_gap, measure_install
from ecorl.bench.stats import gain_in_errors
from ecorl.records import Provenance
from ecorl.report.model import PairedGain

SEEDS = (42, 1337, 2025)
MEASURED = Provenance.MEASURED
WARM_START = Target(low=0.05, high=0.30)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    seeds = SEEDS[:1] if options.quick else SEEDS
    runs = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="ecorl-bench-demo-") as folder:
            runs.append(run_demo(seed, Path(folder)))
        print(f"seed {seed}: {runs[-1].run_s:.1f} s", file=sys.stderr)
    figures = [
        _run_s(runs),
        *(f for name in ("reward", "correct") for f in _gains(name, runs)),
        _correct_before(runs),
        _rank_flips(runs),
        _wait_share(runs),
        Figure(
            "demo.faults",
            sum(run.n_faults for run in runs),
            "1",
            MEASURED,
            {str(run.seed): run.n_faults for run in runs},
            Target(high=0),
            "faults in the ledgers of all seeds",
        ),
        *_install(options.install, runs[0]),
    ]
    return {"preset": "demo", "seeds": list(seeds), "install": options.install}, figures


def _run_s(runs: Sequence[DemoRun]) -> Figure:
    return Figure(
        "demo.run_s",
        runs[0].run_s,
        "s",
        MEASURED,
        {str(run.seed): run.run_s for run in runs},
        Target(high=180),
        f"one whole ecorl run, seed {runs[0].seed}, caches empty; all seeds in spread",
    )


def _gains(name: str, runs: Sequence[DemoRun]) -> list[Figure]:
    """Gain over its standard error, and the gain itself, both of the worst seed."""
    found = {run.seed: run.gains.get(name) for run in runs}
    spread = {str(seed): _plain(gain) for seed, gain in found.items()}
    errors = [gain_in_errors(gain) if gain else None for gain in found.values()]
    plain = [gain.gain if gain else None for gain in found.values()]
    counts = sorted({gain.n_pairs for gain in found.values() if gain})
    note = f"worst seed; paired over {'/'.join(map(str, counts))} held-out prompts"
    return [
        _worst(f"demo.{name}_gain_se", errors, spread, Target(low=3), note),
        _worst(f"demo.{name}_gain", plain, spread, None, note),
    ]


def _worst(
    id: str,
    values: Sequence[float | None],
    spread: Mapping[str, object],
    target: Target | None,
    note: str,
) -> Figure:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return missing(id, "1", "a seed has no such evaluation, or no spread in it", target)
    return Figure(id, min(known), "1", MEASURED, spread, target, note)


def _plain(gain: PairedGain | None) -> dict[str, object] | None:
    if gain is None:
        return None
    return {
        "before": gain.mean_before,
        "after": gain.mean_after,
        "gain": gain.gain,
        "standard_error": gain.standard_error,
        "n": gain.n_pairs,
    }


def _correct_before(runs: Sequence[DemoRun]) -> Figure:
    shares: dict[str, object] = {}
    margins: list[tuple[float, float]] = []
    for run in runs:
        gain = run.gains.get("correct")
        share = gain.mean_before if gain else None
        shares[str(run.seed)] = share
        if share is not None:
            margins.append((min(share - 0.05, 0.30 - share), share))
    if len(margins) < len(runs):
        return missing("demo.correct_before", "1", "a seed has no such evaluation", WARM_START)
    note = "right answers before training; of the seed that is nearest to a limit, or beyond it"
    return Figure("demo.correct_before", min(margins)[1], "1", MEASURED, shares, WARM_START, note)


def _rank_flips(runs: Sequence[DemoRun]) -> Figure:
    id, limit = "demo.rank_flip_share", Target(high=0.03)
    shares = {str(run.seed): run.flips.share for run in runs if run.flips}
    if len(shares) < len(runs):
        return missing(id, "1", "a run did not count rank flips", limit)
    note = "held-out pairs that INT8 and float order differently, worst seed"
    return Figure(id, max(shares.values()), "1", Provenance.EMULATED, shares, limit, note)


def _wait_share(runs: Sequence[DemoRun]) -> Figure:
    shares = [run.wait_share for run in runs]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return missing("demo.barrier_wait_share", "1", "a run without recorded waits")
    return Figure(
        "demo.barrier_wait_share",
        statistics.median(known),
        "1",
        MEASURED,
        {str(run.seed): run.wait_share for run in runs},
        None,
        "waits at the barrier over training time, median of the seeds; the wait is for the "
        "C-simulation on this host, not for a card",
    )


def _install(wanted: bool, run: DemoRun) -> list[Figure]:
    """Installation from a clone, and with it the way from the clone to the report."""
    limit = Target(high=600)
    why = install_gap() if wanted else "only with --install: it downloads all packages anew"
    if why is not None:
        return [
            missing("demo.install_s", "s", why),
            missing("demo.clone_to_report_s", "s", why, limit),
        ]
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-install-") as folder:
        took: Installation = measure_install(Path(folder))
    note = "make install in a fresh clone, pip's cache off"
    total_s = took.clone_s + took.install_s + run.run_s
    parts = {"clone_s": took.clone_s, "install_s": took.install_s, "run_s": run.run_s}
    return [
        Figure("demo.install_s", took.install_s, "s", MEASURED, None, None, note),
        Figure("demo.clone_to_report_s", total_s, "s", MEASURED, parts, limit, f"{note}; one run"),
    ]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--install", action="store_true", help="measure the installation too")


if __name__ == "__main__":
    sys.exit(run_benchmark("demo", measure, options=_options))
