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

from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.harness.command import default_path
from benchmarks.harness.figures import Result, write_result
from benchmarks.studies.demo_run import DemoRun, install_gap, measure_install, run_demo
from ecorl.bench.machine import Machine, commit, describe_machine
from ecorl.bench.rounds import TimeBox
from ecorl.bench.stats import gain_in_errors
from ecorl.report.model import PairedGain

FLAGS = {
    "--install": "measure the installation too",
    "--long": "ten seeds, two threads and AVX2, instead of the rest",
}
"""Options without a value, and what the help says of them."""

FIGURES = FigureTable("demo")
SEEDS = (42, 1337, 2025)
LONG_SEEDS = (11, 42, 1337, 2025, 7, 1, 2, 3, 4, 5)
"""The first five are those of which the demo was seen to fail or hold; the others were drawn up
before any of them was run."""
VARIED_SEEDS = (11, 42, 1337)


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
AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
VARIANTS = (
    # The trainer sets its own number of threads, so the variable alone would change nothing.
    Variant("2 threads", ("trainer.num_threads=2",), {"OMP_NUM_THREADS": "2"}),
    Variant("AVX2", (), AVX2),
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
    seeds = [run.seed for run in runs]
    figures = [
        _of_all("demo.run_s", runs, lambda run: run.run_s, lambda all_s: all_s[0], seed=seeds[0]),
        *_gains("reward", runs),
        *_gains("correct", runs),
        _of_all("demo.correct_before", runs, _correct_before, _nearest_to_a_limit),
        _of_all(
            "demo.rank_flip_share", runs, lambda run: run.flips.share if run.flips else None, max
        ),
        _of_all("demo.barrier_wait_share", runs, lambda run: run.wait_share, statistics.median),
        _of_all("demo.faults", runs, lambda run: run.n_faults, sum),
        *_install(options.install, runs[0]),
    ]
    return {"preset": "demo", "seeds": seeds, "install": options.install}, figures


def _of_all(
    key: str,
    runs: Sequence[DemoRun],
    value: Callable[[DemoRun], float | None],
    pick: Callable[[list[float]], float],
    shown: Callable[[DemoRun], object] | None = None,
    **words: object,
) -> Figure:
    """Make the figure of all seeds, which is missing where one of them has no value.

    Args:
        key: of the figure.
        runs: one a seed.
        value: of a run.
        pick: the value that stands for all.
        shown: what the spread shows of a run; the value by default.
        **words: of the note.
    """
    known = [found for run in runs if (found := value(run)) is not None]
    if len(known) < len(runs):
        return FIGURES.figure(key, None, words=words)
    spread = {str(run.seed): (shown or value)(run) for run in runs}
    return FIGURES.figure(key, pick(known), spread, words=words)


def _gains(name: str, runs: Sequence[DemoRun]) -> list[Figure]:
    """Gain over its standard error, and the gain itself, both of the worst seed."""
    counts = sorted({run.gains[name].n_pairs for run in runs if name in run.gains})
    words = {"name": name, "counts": "/".join(map(str, counts))}

    def of(figure: Callable[[PairedGain], float | None]) -> Callable[[DemoRun], float | None]:
        return lambda run: figure(run.gains[name]) if name in run.gains else None

    def shown(run: DemoRun) -> object:
        return _plain(run.gains.get(name))

    return [
        _of_all("demo.{name}_gain_se", runs, of(gain_in_errors), min, shown, **words),
        _of_all("demo.{name}_gain", runs, of(lambda gain: gain.gain), min, shown, **words),
    ]


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


def _correct_before(run: DemoRun) -> float | None:
    return run.gains["correct"].mean_before if "correct" in run.gains else None


def _nearest_to_a_limit(shares: Sequence[float]) -> float:
    """The share of right answers that lies nearest to a limit of its target, or beyond it."""
    return min(shares, key=lambda share: min(share - 0.05, 0.30 - share))


def _install(wanted: bool, run: DemoRun) -> list[Figure]:
    """Installation from a clone, and with it the way from the clone to the report."""
    ids = ("demo.install_s", "demo.clone_to_report_s")
    why = install_gap() if wanted else "only with --install: it downloads all packages anew"
    if why is not None:
        return FIGURES.all_missing(ids, why)
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-install-") as folder:
        parts = {**measure_install(Path(folder)), "run_s": run.run_s}
    return [
        FIGURES.figure(ids[0], parts["install_s"]),
        FIGURES.figure(ids[1], sum(parts.values()), parts),
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
    gains = {name: run.gains.get(name) for name in ("reward", "correct")}
    return {
        "run_s": run.run_s,
        "train_s": run.train_s,
        "n_faults": run.n_faults,
        "rank_flip_share": run.flips.share if run.flips else None,
        **{
            name: gain and {**(_plain(gain) or {}), "gain_se": gain_in_errors(gain)}
            for name, gain in gains.items()
        },
    }


LONG_KINDS: tuple[tuple[str, str, str | None, Callable[[list[float]], float]], ...] = (
    ("demo.long_reward_gain_se", "reward", "gain_se", min),
    ("demo.long_correct_gain_se", "correct", "gain_se", min),
    ("demo.long_correct_before", "correct", "before", _nearest_to_a_limit),
    ("demo.long_rank_flip_share", "rank_flip_share", None, max),
    ("demo.long_run_s", "run_s", None, max),
    ("demo.long_faults", "n_faults", None, sum),
)
"""Figures of the long pass: id, key of a run's row, key of the number in what stands there, and
what makes one number of those of all runs."""


def long_figures(labels: Sequence[str], rows: Rows) -> list[Figure]:
    """The worst run of each kind; without a value until all runs are done.

    Args:
        labels: of all runs of the pass.
        rows: of those that are done.

    Returns:
        Figures whose spread holds all runs that are done.
    """
    done, figures = {label: rows[label] for label in labels if label in rows}, []
    runs = f"{len(labels)} runs: seeds as the machine stands, with 2 threads, with AVX2"
    for id, key, inner, worst in LONG_KINDS:
        spread = {label: row[key] for label, row in done.items()}
        found = [told[inner] if told and inner else told for told in spread.values()]
        known = [value for value in found if value is not None]
        value = worst(known) if len(known) == len(labels) else None
        why = f"{len(done)} of {len(labels)} runs are done, {len(known)} of them have this figure"
        figures.append(FIGURES.figure(id, value, spread, why=why, runs=runs))
    return figures


if __name__ == "__main__":
    name = "demo_long" if "--long" in sys.argv[1:] else "demo"
    sys.exit(run_benchmark(name, measure, flags=FLAGS))
