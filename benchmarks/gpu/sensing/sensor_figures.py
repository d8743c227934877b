"""Figures of what NVML's instruments say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from benchmarks.gpu.figures import MEASURED, figure, known
from benchmarks.gpu.sensing.sensors import CpuUse, Lag, LengthRow, PhaseRow
from benchmarks.gpu.sensing.tracer import LoadTrace
from benchmarks.gpu.sensing.traces import quantile, refresh_intervals, refresh_period
from benchmarks.harness.figures import Figure, missing
from ecorl.bench.stats import median, spread_of
from ecorl.drivers.instruments import Instrument

BENCHMARK = "nvml"


def slug(name: object) -> str:
    """An instrument's name as a part of an id, e.g. ``field186_gpu``.

    Args:
        name: e.g. ``nvml:field186:gpu``.
    """
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_").removeprefix("nvml_")


def answer_figures(answers: Mapping[Instrument, float | str]) -> list[Figure]:
    """Which instruments of power answer at all.

    Args:
        answers: power, W, or the name of the error, by instrument.
    """
    figures = []
    for instrument, answer in answers.items():
        id = f"{BENCHMARK}.answers.{slug(instrument)}_w"
        if isinstance(answer, str):
            figures.append(missing(id, "W", f"it answers {answer}"))
        else:
            note = "one reading of an idle GPU: the instrument answers"
            figures.append(Figure(id, answer, "W", MEASURED, note=note))
    return figures


def call_figures(trace: LoadTrace, arm: str, note: str) -> list[Figure]:
    """How long each call takes.

    Args:
        trace: with the time of each call.
        arm: of the ids, e.g. ``idle``.
        note: what else was going on.
    """
    figures = []
    for name, times in trace.call_s.items():
        id = f"{BENCHMARK}.call_{arm}.{slug(name)}"
        if not times:
            figures.append(missing(f"{id}.median_s", "s", f"no answer: {trace.errors[name]}"))
            continue
        values = list(times)
        spread = {"n": len(values), "p10": quantile(values, 0.1), "p90": quantile(values, 0.9),
                  "max": max(values), "errors": dict(trace.errors[name])}  # fmt: skip
        figures += [
            Figure(f"{id}.median_s", median(values), "s", MEASURED, spread, note=note),
            Figure(f"{id}.p99_s", quantile(values, 0.99), "s", MEASURED, spread, note=note),
        ]
    return figures


def refresh_figures(trace: LoadTrace) -> list[Figure]:
    """How often each instrument's value changes under a load that changes all the while.

    Args:
        trace: of readings far closer than that.
    """
    figures = []
    for name, points in trace.points.items():
        id, intervals = f"{BENCHMARK}.refresh.{slug(name)}_s", refresh_intervals(points)
        if len(intervals) < 4:
            figures.append(missing(id, "s", f"{len(intervals)} changes were seen"))
            continue
        polls = [b.t_s - a.t_s for a, b in pairwise(points)]
        spread = {"n": len(intervals), "p10": quantile(intervals, 0.1),
                  "p90": quantile(intervals, 0.9), "mean_period_s": refresh_period(points),
                  "poll_s": median(polls), "errors": dict(trace.errors[name])}  # fmt: skip
        note = (
            "median time between changes of the value, load of random bursts, polled all the time"
        )
        figures.append(Figure(id, median(intervals), "s", MEASURED, spread, note=note))
    return figures


def lag_figures(lags: Mapping[str, Lag]) -> list[Figure]:
    """How late each instrument follows a load that is switched on.

    Args:
        lags: by instrument.
    """
    figures = []
    for name, lag in lags.items():
        id = f"{BENCHMARK}.lag.{slug(name)}"
        for kind, values, what in (
            ("delay_s", lag.delay_s, "until a tenth of the rise is shown"),
            ("rise_s", lag.rise_s, "from a tenth to nine tenths of the rise"),
        ):
            figures.append(figure(f"{id}.{kind}", values, "s", f"load switched on; {what}"))
    return figures


def length_figures(rows: Sequence[LengthRow]) -> list[Figure]:
    """Integral over counter minus 1 by the length of the load.

    Args:
        rows: by length.
    """
    figures = []
    for row in rows:
        note = (
            f"integral over counter minus 1, steady loads of {row.length_s:g} s, its window alone"
        )
        for name, gaps in row.gaps.items():
            id = f"{BENCHMARK}.gap.{row.length_s:g}s.{slug(name)}"
            figures.append(figure(id, gaps, "1", note))
        for kind, values in (
            ("poll_s", [c.poll_s for c in row.checks]),
            ("refresh_s", [c.refresh_s for c in row.checks]),
        ):
            kept = known(values)
            id = f"{BENCHMARK}.sampler.{row.length_s:g}s.{kind}"
            if kept:
                figures.append(figure(id, kept, "s", "as a run's own check tells it"))
    return figures


def phase_figures(rows: Sequence[PhaseRow]) -> list[Figure]:
    """Worst error of a single phase of periodic work, by period and instrument.

    Args:
        rows: by period.
    """
    figures = []
    for number, row in enumerate(rows):
        period = "own" if number == 0 else f"{1e3 * row.period_s:.0f}ms"
        for name in row.energy_j:
            id = f"{BENCHMARK}.phase.{period}.{slug(name)}"
            found = row.worst(name)
            if found is None:
                figures.append(missing(id, "1", "an energy of a phase is not known"))
                continue
            spread = {**spread_of(found), "by_phase": found, "period_s": row.period_s,
                      "mean_j": sum(known(row.energy_j[name])) / len(found)}  # fmt: skip
            note = "largest share by which a phase of the same bursts differs from the mean of all"
            figures.append(Figure(id, max(map(abs, found)), "1", MEASURED, spread, note=note))
    return figures


def cpu_figures(use: CpuUse, loaded: float | None) -> list[Figure]:
    """What sampling costs the processor.

    Args:
        use: while nothing else is done.
        loaded: share of the sampling process beside loads, or None.
    """
    idle_note = "CPU time over wall-clock, of one core"
    figures = []
    for name, value, note in (
        ("sampler_cpu_share", use.sampler, f"{idle_note}: the sampling process, every 0.1 s"),
        ("sampler_cpu_share_loaded", loaded, f"{idle_note}: the same beside loads"),
        ("receiver_cpu_share", use.receiver, f"{idle_note}: a process that only receives"),
        ("nothing_cpu_share", use.without, f"{idle_note}: the same process without a sampler"),
    ):
        id = f"{BENCHMARK}.{name}"
        if value is None:
            figures.append(missing(id, "1", "the sampling process was not found"))
        else:
            figures.append(Figure(id, value, "1", MEASURED, note=note))
    return figures
