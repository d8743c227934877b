"""Does the demo learn, in how long, and from a warm start that leaves something to learn?

Runs ``ecorl run --config demo`` for three seeds, or as many of them as the time box has room for,
each with empty caches (task and kernels are made within the measured time). The held-out gain is
paired: the same prompts before and after.

``--long`` asks whether a seed or a CPU's rounding decides: ten seeds, and three of them with two
threads and with vector instructions held to AVX2 too. Its figures and its file are its own
(``demo_long.json``). The file is written after every run, and a pass that was cut off goes on from
there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.command import default_path, run_benchmark
from benchmarks.harness.figures import Figure, Result, Target, missing, write_result
from benchmarks.studies.demo_run import DemoRun, run_demo
from benchmarks.studies.install import Installation, install_gap, measure_install
from ecorl.bench.machine import Machine, commit, describe_machine
from ecorl.bench.rounds import TimeBox
from ecorl.bench.stats import gain_in_errors
from ecorl.records import Provenance
from ecorl.report.model import PairedGain

SEEDS = (42, 1337, 2025)
LONG_SEEDS = (11, 42, 1337, 2025, 7, 1, 2, 3, 4, 5)
"""The first five are those of which the demo was seen to fail or hold; the others were drawn up
before any of them was run."""
VARIED_SEEDS = (11, 42, 1337)
MEASURED = Provenance.MEASURED
WARM_START = Target(low=0.05, high=0.30)
GAIN_SE = Target(low=3)
FLIPS = Target(high=0.03)


@dataclass(frozen=True, slots=True)
class Variant:
    """How a run's arithmetic is made to round otherwise.

    Attributes:
        overrides: settings of the run, ``key=value``.
        environment: variables of its process.
    """

    name: str
    overrides: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


AS_IT_STANDS = Variant("as it stands")
VARIANTS = (
    # The trainer sets its own number of threads, so the variable alone would change nothing.
    Variant("2 threads", ("trainer.num_threads=2",), {"OMP_NUM_THREADS": "2"}),
    Variant(
        "AVX2",
        (),
        {
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        },
    ),
)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Run the seeds of ``make bench``, or with ``--long`` all seeds and variants."""
    if options.long:
        return measure_long(options)
    runs: list[DemoRun] = []
    box = TimeBox(options.box_s)
    for seed in SEEDS[:1] if options.quick else SEEDS:
        if runs and not box.has_room(runs[-1].run_s):
            break
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
    return {
        "preset": "demo",
        "seeds": [run.seed for run in runs],
        "install": options.install,
    }, figures


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
        _worst(f"demo.{name}_gain_se", errors, spread, GAIN_SE, note),
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
            margins.append((_headroom(share), share))
    if len(margins) < len(runs):
        return missing("demo.correct_before", "1", "a seed has no such evaluation", WARM_START)
    note = "right answers before training; of the seed that is nearest to a limit, or beyond it"
    return Figure("demo.correct_before", min(margins)[1], "1", MEASURED, shares, WARM_START, note)


def _headroom(share: float) -> float:
    """How far a warm start is from the nearer limit; negative beyond it."""
    return min(share - 0.05, 0.30 - share)


def _rank_flips(runs: Sequence[DemoRun]) -> Figure:
    id = "demo.rank_flip_share"
    shares = {str(run.seed): run.flips.share for run in runs if run.flips}
    if len(shares) < len(runs):
        return missing(id, "1", "a run did not count rank flips", FLIPS)
    note = "held-out pairs that INT8 and float order differently, worst seed"
    return Figure(id, max(shares.values()), "1", Provenance.EMULATED, shares, FLIPS, note)


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


# ---------------------------------------------------------------- all seeds and variants

Rows = dict[str, dict[str, Any]]
"""What each run of the long pass showed, as plain data, by `_label`."""


def measure_long(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Run what no earlier pass of the same commit and machine has kept; keep each result at once.

    Args:
        options: ``json`` names the file, ``quick`` takes one seed and keeps nothing.
    """
    trials = [(seed, AS_IT_STANDS) for seed in LONG_SEEDS]
    trials += [(seed, variant) for variant in VARIANTS for seed in VARIED_SEEDS]
    if options.quick:
        trials = trials[:1]
    machine, labels = describe_machine(), [_label(*trial) for trial in trials]
    path = options.json or default_path("demo_long", machine.slug)
    rows = {} if options.quick else _kept(path, machine)
    for seed, variant in trials:
        label = _label(seed, variant)
        if label in rows:
            print(f"{label}: kept from an earlier pass", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix="ecorl-bench-demo-") as folder:
            run = run_demo(seed, Path(folder), variant.overrides, variant.environment)
        rows[label] = _row(run)
        print(f"{label}: {run.run_s:.1f} s", file=sys.stderr)
        if not options.quick:
            figures = long_figures(labels, rows)
            write_result(Result("demo_long", commit(), machine, figures, _settings(rows)), path)
    return _settings(rows), long_figures(labels, rows)


def _label(seed: int, variant: Variant) -> str:
    return str(seed) if variant is AS_IT_STANDS else f"{seed}, {variant.name}"


def _settings(rows: Rows) -> dict[str, object]:
    """What the figures depend on, and the runs that they are made of."""
    return {"preset": "demo", "variants": [asdict(v) for v in VARIANTS], "runs": rows}


def _kept(path: Path, machine: Machine) -> Rows:
    """Runs that an earlier pass of the same sources on the same machine has left."""
    sources = commit()
    if sources is None or sources.endswith("-dirty"):
        return {}  # nobody can say that the sources are the same
    try:
        result = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    found = {**result["config"], "commit": result["commit"], "device": result["device"]}
    rows: Rows = found.pop("runs")
    ours = {**_settings({}), "commit": sources, "device": asdict(machine)}
    plain = json.loads(json.dumps(ours))  # tuples are lists there
    del plain["runs"]
    return rows if all(found.get(key) == value for key, value in plain.items()) else {}


def _row(run: DemoRun) -> dict[str, Any]:
    return {
        "run_s": run.run_s,
        "train_s": run.train_s,
        "n_faults": run.n_faults,
        "rank_flip_share": run.flips.share if run.flips else None,
        **{name: _plain_in_errors(run.gains.get(name)) for name in ("reward", "correct")},
    }


def _plain_in_errors(gain: PairedGain | None) -> dict[str, object] | None:
    plain = _plain(gain)
    if gain is None or plain is None:
        return None
    return {**plain, "gain_se": gain_in_errors(gain)}


def long_figures(labels: Sequence[str], rows: Rows) -> list[Figure]:
    """The worst run of each kind; without a value until all runs are done.

    Args:
        labels: of all runs of the pass.
        rows: of those that are done.

    Returns:
        Figures whose spread holds all runs that are done.
    """
    done = {label: rows[label] for label in labels if label in rows}
    return [_long_figure(kind, done, len(labels)) for kind in LONG_KINDS]


def _long_figure(kind: LongKind, done: Rows, n_runs: int) -> Figure:
    spread = {label: row[kind.key] for label, row in done.items()}
    values = [kind.value(row[kind.key]) for row in done.values() if row[kind.key] is not None]
    known = [value for value in values if value is not None]
    if len(known) < n_runs:
        why = f"{len(done)} of {n_runs} runs are done, {len(known)} of them have this figure"
        return Figure(kind.id, None, kind.unit, None, spread, kind.target, why)
    note = f"{kind.note}; {n_runs} runs: seeds as the machine stands, with 2 threads, with AVX2"
    worst = kind.worst(known)
    return Figure(kind.id, worst, kind.unit, kind.provenance, spread, kind.target, note)


@dataclass(frozen=True, slots=True)
class LongKind:
    """One figure of the long pass.

    Attributes:
        key: of a run's row.
        value: the number in what stands under that key.
        worst: the number that stands for all runs.
    """

    id: str
    unit: str
    key: str
    value: Callable[[Any], float | None]
    worst: Callable[[Sequence[float]], float]
    target: Target | None
    note: str
    provenance: Provenance = MEASURED


def _same(value: Any) -> Any:
    return value


def _nearest_to_a_limit(shares: Sequence[float]) -> float:
    return min(shares, key=_headroom)


LONG_KINDS = (
    LongKind(
        "demo.long_reward_gain_se", "1", "reward", lambda gain: gain["gain_se"], min, GAIN_SE,
        "paired gain over its standard error, worst run",
    ),
    LongKind(
        "demo.long_correct_gain_se", "1", "correct", lambda gain: gain["gain_se"], min, GAIN_SE,
        "paired gain over its standard error, worst run",
    ),
    LongKind(
        "demo.long_correct_before", "1", "correct", lambda gain: gain["before"],
        _nearest_to_a_limit, WARM_START,
        "right answers before training; of the run that is nearest to a limit, or beyond it",
    ),
    LongKind(
        "demo.long_rank_flip_share", "1", "rank_flip_share", _same, max, FLIPS,
        "held-out pairs that INT8 and float order differently, worst run", Provenance.EMULATED,
    ),
    LongKind(
        "demo.long_run_s", "s", "run_s", _same, max, None, "longest whole run, caches empty",
    ),
    LongKind(
        "demo.long_faults", "1", "n_faults", _same, sum, Target(high=0),
        "faults in the ledgers of all runs",
    ),
)  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--install", action="store_true", help="measure the installation too")
    parser.add_argument(
        "--long", action="store_true", help="ten seeds, two threads and AVX2, instead of the rest"
    )


if __name__ == "__main__":
    name = "demo_long" if "--long" in sys.argv[1:] else "demo"
    sys.exit(run_benchmark(name, measure, options=_options))
