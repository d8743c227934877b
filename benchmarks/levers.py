"""What is each lever on a step's energy worth, and how soon does ``ecorl plan`` answer?

Placement, clocks, overlap, FP8 in training and timing, alone and together, at a step at most 2 %
longer, in four jobs: PPO and GRPO of a 70 B policy on 32 H100 and of an 8 B one on 8. All is
modelled: clocks by published figures, nothing is set. Timing is replayed along recorded grids
(``--traces``); with ``--write`` what was found goes into the package, where plans read it.

A job of a week trains from many starts on along a recording, by the default controller, which
knows no more than the past (`ecorl.controllers.horizon`). It pauses and goes on, or changes its
width, as long as it is done in time. Energy per token stays the same. What is saved hangs on the
machines that pause: given back, they emit nothing of this job's; kept, they draw idle power, and
timing costs joules. Both are replayed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.studies.carbon.control.scenario import filled
from benchmarks.studies.carbon.traces import WHY_MISSING, add_traces_option, recorded_grids
from ecorl.bench.machine import repository
from ecorl.bench.rounds import TimeBox
from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.catalogue import build
from ecorl.controllers.planning.baselines import raced
from ecorl.controllers.planning.comparison import start_times
from ecorl.controllers.problem.table import GearTable, scaled_table
from ecorl.controllers.problem.training import HOUR_S, Kept, TrainingProblem
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.operate.levers import known_timings
from ecorl.operate.levers.choice import Lever
from ecorl.operate.levers.known_timings import SLACKS, TimingSaving, timings_toml
from ecorl.operate.levers.study import LeverStudy, SavedShare, lever_study
from ecorl.records import Algorithm, Provenance, Stage
from ecorl.scheduler.tables import Float64
from ecorl.sim.scenario import Scenario

FIGURES = FigureTable("levers")

LENGTH = 1024.0
CLUSTERS = {"70b": 32, "8b": 8}
"""H100s by the policy's size."""

DEVICES = (("u55c", 4), ("l4", 8), ("a100_sxm", 8))
"""Second devices to choose from."""

_LEAST_PLANS = 3

CONTROLLER = "stochastic"

NODE_W, NODE_IDLE_W = 7_750.0, 1_800.0
"""Power of a node of eight H100 that trains and of one that waits, W: that of the model behind the
project's carbon studies, with processors, fans and memory."""

JOB_DAYS = 7.0
"""Length of a job that runs without a pause, days. Invented: a usual run of some days."""

EVERY_DAYS = 30.0
"""From one start to the next, days."""

N_WIDTHS = 4
"""Widths between which the controller may choose, evenly spaced up to all workers."""

EXPONENT = 0.97
"""Growth of the throughput with the number of workers, as in the project's carbon studies."""

DAY_S = 86_400.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    add_traces_option(parser)
    parser.add_argument("--write", action="store_true", help="keep what timing saves for plans")


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    studies = {
        f"{algorithm}-{size}": _study(algorithm, size)
        for size in CLUSTERS
        for algorithm in (Algorithm.GRPO, Algorithm.PPO)
    }
    for name, study in studies.items():
        _print(name, study)
    timings = _timings(options)
    if options.write and timings:
        Path(known_timings.__file__).with_name(known_timings.FILE).write_text(
            timings_toml(timings), "utf-8"
        )
    figures = [
        *(_lever_figure(lever, studies) for lever in Lever),
        *_timing_figures(timings),
        *_together(studies, timings),
        _plan_seconds(3 if options.quick else 15, TimeBox(options.box_s or 30.0)),
    ]
    config = {
        "length": LENGTH,
        "clusters": dict(CLUSTERS),
        "devices": [list(row) for row in DEVICES],
        "jobs": {name: _data(study) for name, study in studies.items()},
        "timings": [{k: getattr(one, k) for k in one.__slots__} for one in timings],
    }
    return config, figures


def _study(algorithm: Algorithm, size: str) -> LeverStudy:
    """Price the levers of one job, all second devices to choose from."""
    sizes = {Stage.GENERATION: size, Stage.REFERENCE: size, Stage.REWARD: "8b", Stage.CRITIC: "8b"}
    first, *beside = (
        Scenario(
            "levers", algorithm=algorithm, sizes=sizes, n_gpus=CLUSTERS[size], card=card, n_cards=n
        ).setting
        for card, n in DEVICES
    )
    return lever_study(first, LENGTH, beside=beside)


def _print(name: str, study: LeverStudy) -> None:
    print(f"{name}: {study.step.time_s:.1f} s and {study.step.energy_j / 1e3:,.0f} kJ a step")
    rows = [
        *((str(lever), saved) for lever, saved in study.alone.items()),
        *study.beyond.items(),
        ("all levers", study.together),
    ]
    for title, saved in rows:
        print(f"  {title:30s} {_per_cent(saved.value)}  [{_per_cent(saved.low)}, "
              f"{_per_cent(saved.high)}]")  # fmt: skip
    order = ", then ".join(f"{lever} ({_per_cent(added).strip()})" for lever, added in study.order)
    print(f"  order: {order}")
    for one, other, beyond in study.between[:2]:
        print(f"  {one} with {other}: {100 * beyond:+.1f} points beyond their sum")
    for device in study.devices:
        worth = "cannot: " + device.why_not
        if device.saved_share is not None:
            worth = f"{_per_cent(device.saved_share).strip()} of the energy at best"
        print(f"  {device.n} x {device.name}: {worth}")


def _per_cent(share: float) -> str:
    return f"{100 * share:6.1f} %"


# ---------------------------------------------------------------- figures


def _lever_figure(lever: Lever, studies: Mapping[str, LeverStudy]) -> Figure:
    known = {name: study.alone[lever] for name, study in studies.items() if lever in study.alone}
    why = None if known else next(iter(studies.values())).missing[lever]
    return _saved("levers.{lever}_saved_share", known, why=why, lever=lever)


def _saved(key: str, known: Mapping[str, SavedShare], **more: Any) -> Figure:
    """The mean share over the jobs, with its interval and the share of each."""
    if not known:
        return FIGURES.figure(key, None, **more)
    value, low, high = (
        statistics.fmean(getattr(one, end) for one in known.values())
        for end in ("value", "low", "high")
    )
    by_job = {name: one.value for name, one in known.items()}
    return FIGURES.figure(key, value, {"low": low, "high": high, "by_job": by_job}, **more)


def _timings(options: argparse.Namespace) -> list[TimingSaving]:
    """Replay the jobs along the recorded grids; nothing where there is none."""
    grids = recorded_grids(options)
    slacks = SLACKS[:1] if options.quick else SLACKS
    return [
        timing_saving(name, filled(grid.series), slack)
        for name, grid in grids.items()
        for slack in slacks
    ]


def _at(timings: Sequence[TimingSaving], slack: float) -> dict[str, TimingSaving]:
    return {one.grid: one for one in timings if one.slack == slack}


def _timing_figures(timings: Sequence[TimingSaving]) -> list[Figure]:
    """Shares of the CO2e at each slack, mean over the grids; that of the 2 % first."""
    found = []
    for slack in SLACKS:
        at = _at(timings, slack)
        words = {"slack": slack, "at": "" if slack == SLACKS[0] else f"_{slack:g}"}
        value, spread = None, None
        if at:
            value = statistics.fmean(one.saved_share for one in at.values())
            spread = {
                "by_grid": {name: one.saved_share for name, one in at.items()},
                "with_widths": {name: one.width_saved_share for name, one in at.items()},
                "machines_kept": {name: one.kept_saved_share for name, one in at.items()},
            }
        why = "left out by --quick" if timings else WHY_MISSING
        found.append(
            FIGURES.figure("levers.timing_saved_share{at}", value, spread, why=why, words=words)
        )
    return found


def _together(studies: Mapping[str, LeverStudy], timings: Sequence[TimingSaving]) -> list[Figure]:
    together = {name: study.together for name, study in studies.items()}
    alone, at, both = _saved("levers.all_saved_share", together), _at(timings, SLACKS[0]), None
    assert alone.value is not None  # there is a job
    if at:
        timed = statistics.fmean(one.saved_share for one in at.values())
        both = 1.0 - (1.0 - alone.value) * (1.0 - timed)
    return [alone, FIGURES.figure("levers.all_co2e_saved_share", both, why=WHY_MISSING)]


def _plan_seconds(n: int, box: TimeBox) -> Figure:
    """Time the command as a user types it, at least three times."""
    command = [sys.executable, "-m", "ecorl.cli", "plan"]
    taken_s: list[float] = []
    for i in range(n + 1):
        if i > _LEAST_PLANS and not box.has_room(taken_s[-1]):
            break
        start_s = time.perf_counter()
        subprocess.run(command, cwd=repository(), stdout=subprocess.DEVNULL, check=True)
        taken_s.append(time.perf_counter() - start_s)
    return FIGURES.median("plan.seconds", taken_s[1:])  # the first finds cold files


def _data(study: LeverStudy) -> dict[str, object]:
    found = study.all
    return {
        "time_s": study.step.time_s,
        "energy_j": study.step.energy_j,
        "shares": {str(stage): share for stage, share in study.step.shares().items()},
        "alone": {str(k): [v.value, v.low, v.high] for k, v in study.alone.items()},
        "beyond": {name: [v.value, v.low, v.high] for name, v in study.beyond.items()},
        "order": [[str(lever), added] for lever, added in study.order],
        "interactions": [[str(a), str(b), beyond] for a, b, beyond in study.between],
        "devices": {one.name: one.saved_share for one in study.devices},
        "clocks": list(found.clocks),
        "overlapped_s": found.overlapped_s,
    }


# ---------------------------------------------------------------- timing


def timing_table(n_widths: int) -> GearTable:
    """Make the table of a job's widths in BF16, a node being a worker.

    Args:
        n_widths: how many widths, evenly spaced up to eight nodes.
    """
    widths = tuple(sorted({round(8 * (i + 1) / n_widths) for i in range(n_widths)}))
    return scaled_table(
        widths, {Gear.BF16: 1.0}, {Gear.BF16: NODE_W}, exponent=EXPONENT, overhead=1.0,
        provenance=Provenance.MODELLED, source="nodes of eight H100 at 7.75 kW",
    )  # fmt: skip


def timing_saving(grid: str, series: Series, slack: float) -> TimingSaving:
    """Replay jobs along a recording.

    Args:
        grid: name of the recording.
        series: the intensities, g/kWh, without missing values, in intervals of an hour.
        slack: time that there is over the time that a job takes without a pause.

    Raises:
        ConfigError: when the recording is too short.
    """
    one, several = timing_table(1), timing_table(N_WIDTHS)
    starts = start_times(series, slack * JOB_DAYS * DAY_S + HOUR_S, None, EVERY_DAYS)
    at_once = np.array([raced(_problem(one, at, slack), series).carbon_g for at in starts])

    def emitted(table: GearTable, idle_w: float) -> Float64:
        return np.array([_played_g(_problem(table, at, slack, idle_w), series) for at in starts])

    given_back, wide, kept = emitted(one, 0.0), emitted(several, 0.0), emitted(one, NODE_IDLE_W)
    alone = 1.0 - given_back / at_once
    shares = [1.0 - float(one.sum() / at_once.sum()) for one in (given_back, wide, kept)]
    return TimingSaving(
        grid=grid,
        slack=slack,
        saved_share=shares[0],
        low=float(alone.min()),
        high=float(alone.max()),
        width_saved_share=shares[1],
        kept_saved_share=shares[2],
        n_starts=len(starts),
    )


def _played_g(problem: TrainingProblem, series: Series) -> float:
    return play(build(CONTROLLER, problem), problem, Knowledge(series)).carbon_g


def _problem(
    table: GearTable, start_s: float, slack: float, idle_w: float = 0.0
) -> TrainingProblem:
    work_s = JOB_DAYS * DAY_S
    most = float(table.tokens_per_s.max())
    return TrainingProblem(
        table,
        tokens=most * work_s,
        start_s=start_s,
        # A whole number of epochs; the last hour is not always full.
        deadline_s=start_s + HOUR_S * np.ceil(slack * work_s / HOUR_S),
        epoch_s=HOUR_S,
        idle_w=idle_w,
        kept=Kept.DONE,
    )


if __name__ == "__main__":
    sys.exit(run_benchmark("levers", measure, options=add_options))
