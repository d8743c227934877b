"""What is each lever on a step's energy worth, and how soon does ``ecorl plan`` answer?

Placement, clocks, overlap, FP8 in training and timing, alone and together, at a step at most 2 %
longer, in four jobs: PPO and GRPO of a 70 B policy on 32 H100 and of an 8 B one on 8. All is
modelled: clocks by published figures, nothing is set. Timing is replayed along recorded grids
(``--traces``); with ``--write`` what was found goes into the package, where plans read it.
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

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure
from benchmarks.harness.table import FigureTable
from benchmarks.studies.carbon.control.scenario import filled
from benchmarks.studies.carbon.traces import WHY_MISSING, add_traces_option, recorded_grids
from benchmarks.studies.lever_timing import timing_saving
from ecorl.bench.machine import repository
from ecorl.bench.rounds import TimeBox
from ecorl.operate.levers import known_timings
from ecorl.operate.levers.choice import Lever
from ecorl.operate.levers.known_timings import SLACKS, TimingSaving, timings_toml
from ecorl.operate.levers.study import LeverStudy, SavedShare, lever_study
from ecorl.records import Algorithm, Stage
from ecorl.sim.scenario import Scenario

FIGURES = FigureTable("levers")

LENGTH = 1024.0
CLUSTERS = {"70b": 32, "8b": 8}
"""H100s by the policy's size."""

DEVICES = (("u55c", 4), ("l4", 8), ("a100_sxm", 8))
"""Second devices to choose from."""

_LEAST_PLANS = 3


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
            FIGURES.figure("levers.timing_saved_share{at}", value, spread, why=why, **words)
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


if __name__ == "__main__":
    sys.exit(run_benchmark("levers", measure, options=add_options))
