"""What do the power sensors of a real NVIDIA GPU tell, how late, and at what cost?

There is no meter in the wall here. What can be known without one: how often a value changes, how
late it follows a load that is switched on, how far integral and counter lie apart, and whether the
same work is billed the same wherever it lies within the instrument's period: that is what an
instrument that looks at only a part of the time gets wrong. Beside that the time of each call, CPU
time of ecorl's sampler, power of an idle GPU. Nothing is set on the GPU. Not part of `make bench`:
it needs a GPU that nothing else uses, for some five minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

from benchmarks.gpu.facts import answer_figures, slug
from benchmarks.gpu.loads.bursts import Burner
from benchmarks.gpu.run.parts import NO_CUDA
from benchmarks.gpu.sensing import traces
from benchmarks.gpu.sensing.meter import CpuShare, EnergyMeter, Window, power_figure, window_facts
from benchmarks.gpu.sensing.tracer import COUNTER, LoadTrace, Tracer, readable
from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.harness.figures import known
from ecorl.bench.stats import median, spread_of
from ecorl.drivers.instruments import SCOPE_MEMORY, Instrument
from ecorl.errors import MissingToolError
from ecorl.telemetry.check import ReadingCheck

FIGURES = FigureTable("nvml")

SAMPLER_HOLD, SAMPLER_COUNTER = "ecorl:hold", "ecorl:counter"
"""Names of a run's own figures beside the instruments'."""

FINE_S = 0.01
"""Interval of the fine readings beside a load, s."""

Span = tuple[float, float]
"""Begin and end, monotonic s."""


DEFAULT_PERIOD_S = 0.1
"""Period of the first periodic load where the counter's own is not found, s."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each experiment takes.

    Attributes:
        idle_s: of each idle window, s.
        calls_s: reading alone, s.
        restless_s: reading during a load that always changes, s.
        steps: how often a load is switched on and off, and for how long each, s.
        lengths: lengths of loads and how often each, by the length in s.
        gap_s: pause between loads, s.
        phases: of periodic loads.
        window_s: length of a periodic load, s.
        periods_s: of further periodic loads, s, beside the counter's own period.
        duty: share of the period in which a periodic load runs.
    """

    idle_s: float
    calls_s: float
    restless_s: float
    steps: tuple[int, float]
    lengths: Mapping[float, int]
    gap_s: float
    phases: int
    window_s: float
    periods_s: tuple[float, ...]
    duty: float = 0.25


FULL = Plan(
    6.0, 4.0, 15.0, (5, 2.5), {0.2: 10, 0.5: 8, 1.0: 6, 2.0: 5, 5.0: 4, 10.0: 3}, 0.8, 8, 3.0,
    (0.2, 0.317),
)  # fmt: skip
"""The full pass. The last period has nothing to do with any instrument's."""

QUICK = Plan(1.0, 1.0, 3.0, (2, 1.5), {0.5: 3, 2.0: 3}, 0.5, 4, 1.0, ())


def read_during(
    load: Callable[[], object],
    uuid: str,
    instruments: tuple[Instrument, ...],
    *,
    is_costly: bool = False,
) -> LoadTrace:
    """Read the instruments as fast as it goes while a load runs.

    Args:
        load: runs for the whole time.
        uuid: of the GPU.
        instruments: that answer.
        is_costly: whether whole readings are taken too.
    """
    with Tracer(uuid, instruments, is_costly=is_costly) as tracer:
        load()
    return tracer.trace


def call_figures(trace: LoadTrace, arm: str, load: str) -> list[Figure]:
    """How long each call takes.

    Args:
        trace: with the time of each call.
        arm: of the ids, e.g. ``idle``.
        load: what else was going on.
    """
    figures, stem = [], "nvml.call_{arm}.{instrument}."
    for name, times in trace.call_s.items():
        values, words = list(times), {"arm": arm, "instrument": slug(name), "load": load}
        if not values:
            errors = trace.errors[name]
            figures.append(FIGURES.figure(stem + "median_s", None, words=words, errors=errors))
            continue
        spread = {"n": len(values), **_ends(values), "max": max(values),
                  "errors": dict(trace.errors[name])}  # fmt: skip
        p99_s = traces.quantile(values, 0.99)
        figures += [
            FIGURES.figure(stem + "median_s", median(values), spread, words=words),
            FIGURES.figure(stem + "p99_s", p99_s, spread, words=words),
        ]
    return figures


def _ends(values: Sequence[float]) -> dict[str, float]:
    return {"p10": traces.quantile(values, 0.1), "p90": traces.quantile(values, 0.9)}


def refresh_figures(trace: LoadTrace) -> list[Figure]:
    """How often each instrument's value changes under a load that changes all the while.

    Args:
        trace: of readings far closer than that.
    """
    figures, key = [], "nvml.refresh.{instrument}_s"
    for name, points in trace.points.items():
        intervals, instrument = traces.refresh_intervals(points), slug(name)
        if len(intervals) < 4:
            figures.append(FIGURES.figure(key, None, instrument=instrument, n=len(intervals)))
            continue
        polls = [b.t_s - a.t_s for a, b in pairwise(points)]
        spread = {"n": len(intervals), **_ends(intervals),
                  "mean_period_s": traces.refresh_period(points), "poll_s": median(polls),
                  "errors": dict(trace.errors[name])}  # fmt: skip
        figures.append(FIGURES.figure(key, median(intervals), spread, instrument=instrument))
    return figures


def lag_figures(
    uuid: str, instruments: tuple[Instrument, ...], burner: Burner, steps: tuple[int, float]
) -> list[Figure]:
    """How late each instrument of power follows a load that is switched on.

    Args:
        uuid: of the GPU.
        instruments: that answer.
        burner: the load.
        steps: how often, and how long on and off, s.
    """
    n_steps, length_s = steps
    spans: list[tuple[float, float, float]] = []
    with Tracer(uuid, instruments) as tracer:
        for _ in range(n_steps):
            time.sleep(length_s)
            spans.append((time.monotonic() - 0.3 * length_s, *burner.steady(length_s)))
    figures = []
    for one in instruments:
        stem, points = "nvml.lag.{instrument}.", tracer.trace.points[str(one)]
        seen = [step for span in spans if (step := traces.step_response(points, *span)) is not None]
        delays_s, rises_s = [s.delay_s for s in seen], [s.rise_s for s in seen]
        figures += [
            FIGURES.median(stem + "delay_s", delays_s, instrument=slug(one)),
            FIGURES.median(stem + "rise_s", rises_s, instrument=slug(one)),
        ]
    return figures


def length_figures(
    meter: EnergyMeter, instruments: tuple[Instrument, ...], burner: Burner, plan: Plan
) -> list[Figure]:
    """Integral over counter minus 1 over steady loads of several lengths.

    The window is that of the load alone, as that of a stage is, so that a reading that comes late
    costs what it costs there.

    Args:
        meter: with the sampler of a run.
        instruments: that are read beside it, each `FINE_S`.
        burner: the load.
        plan: the lengths.
    """
    windows: dict[float, list[tuple[Span, ReadingCheck]]] = {}
    with Tracer(meter.device.uuid, instruments, FINE_S) as tracer:
        time.sleep(plan.gap_s)
        for length_s, n_loads in plan.lengths.items():
            windows[length_s] = []
            for _ in range(n_loads):
                span = burner.steady(length_s)
                time.sleep(plan.gap_s)
                windows[length_s].append((span, meter.check(*span)))
    figures = []
    for length_s, found in windows.items():
        gaps: dict[str, list[float]] = {}
        for span, check in found:
            for name, gap in _gaps(tracer.trace, instruments, meter, span, check).items():
                gaps.setdefault(name, []).append(gap)
        key = "nvml.gap.{length_s:g}s.{integral}"
        figures += [
            FIGURES.median(key, values, length_s=length_s, integral=slug(name))
            for name, values in gaps.items()
        ]
        for kind, values in (
            ("poll_s", known([check.poll_s for _, check in found])),
            ("refresh_s", known([check.refresh_s for _, check in found])),
        ):
            if values:
                key = "nvml.sampler.{length_s:g}s.{kind}"
                figures.append(FIGURES.median(key, values, length_s=length_s, kind=kind))
    return figures


def _gaps(
    trace: LoadTrace,
    instruments: tuple[Instrument, ...],
    meter: EnergyMeter,
    span: Span,
    check: ReadingCheck,
) -> dict[str, float]:
    """Integral over the counter minus 1, for the run's own readings and for the fine ones."""
    own = meter.power_points(span[0] - 1.0, span[1] + 1.0)
    fine_j = traces.counted_energy(trace.points[COUNTER], *span)
    found = {
        "ecorl hold": (check.integral_j, check.counter_j),
        "ecorl trapezoid": (traces.trapezoid_integral(own, *span), check.counter_j),
        "ecorl counter over fine": (check.counter_j, fine_j),
        **{
            f"{i} hold": (traces.held_energy(trace.points[str(i)], *span), fine_j)
            for i in instruments
        },
    }
    return {
        name: integral_j / counter_j - 1.0
        for name, (integral_j, counter_j) in found.items()
        if integral_j is not None and counter_j
    }


def phase_figures(
    meter: EnergyMeter,
    instruments: tuple[Instrument, ...],
    burner: Burner,
    plan: Plan,
    periods_s: Sequence[float],
) -> list[Figure]:
    """Whether the same bursts at several phases of a period are billed the same.

    The mean over all phases is right even for an instrument that looks at a part of the time only;
    a single phase is not. Where the period is that of the instrument itself the phase stays what it
    is through the window.

    Args:
        meter: with the sampler of a run.
        instruments: that are read beside it, each `FINE_S`.
        burner: the load.
        plan: phases and lengths.
        periods_s: of the loads, s; the first is the counter's own.
    """
    windows: list[tuple[float, list[tuple[Span, ReadingCheck]]]] = []
    with Tracer(meter.device.uuid, instruments, FINE_S) as tracer:
        for period_s in periods_s:
            n_periods = max(4, round(plan.window_s / period_s))
            burner.periodic(period_s, plan.duty, n_periods, 0.0)
            windows.append((period_s, []))
            for number in range(plan.phases):
                span = burner.periodic(period_s, plan.duty, n_periods, number / plan.phases)
                windows[-1][1].append((span, meter.check(*span)))
        time.sleep(0.5)
    points, figures = tracer.trace.points, []
    for number, (period_s, found) in enumerate(windows):
        energies: dict[str, list[float | None]] = {
            SAMPLER_COUNTER: [check.counter_j for _, check in found],
            SAMPLER_HOLD: [check.integral_j for _, check in found],
            COUNTER: [traces.counted_energy(points[COUNTER], *span) for span, _ in found],
            **{str(i): [traces.held_energy(points[str(i)], *span) for span, _ in found]
               for i in instruments},
        }  # fmt: skip
        period = "own" if number == 0 else f"{1e3 * period_s:.0f}ms"
        figures += [
            phase_figure(period, slug(name), energies_j, period_s)
            for name, energies_j in energies.items()
        ]
    return figures


def phase_figure(
    period: str, instrument: str, energies_j: Sequence[float | None], period_s: float
) -> Figure:
    """Worst error of a single phase of periodic work.

    Args:
        period: its name in the id.
        instrument: the same of the instrument.
        energies_j: that an instrument billed, one a phase, J; None where it could not be told.
        period_s: of the load, s.
    """
    key, words = "nvml.phase.{period}.{instrument}", {"period": period, "instrument": instrument}
    kept = known(energies_j)
    if not kept or len(kept) < len(energies_j):
        return FIGURES.figure(key, None, words=words)
    found = traces.deviations(kept)
    spread = {**spread_of(found), "by_phase": found, "period_s": period_s,
              "mean_j": sum(kept) / len(kept)}  # fmt: skip
    return FIGURES.figure(key, max(map(abs, found)), spread, words=words)


def cpu_figures(meter: EnergyMeter, length_s: float, loaded: float | None) -> list[Figure]:
    """What sampling costs the processor.

    Args:
        meter: whose sampler runs; it is stopped here.
        length_s: how long nothing else is done, s.
        loaded: share of the sampling process beside loads, or None.
    """
    clock = CpuShare(meter.sampler.pid)
    receiver, sampler = _own_share(length_s), clock.share()
    meter.sampler.stop()
    return [
        FIGURES.figure("nvml.sampler_cpu_share", sampler),
        FIGURES.figure("nvml.sampler_cpu_share_loaded", loaded),
        FIGURES.figure("nvml.receiver_cpu_share", receiver),
        FIGURES.figure("nvml.nothing_cpu_share", _own_share(0.5 * length_s)),
    ]


def _own_share(length_s: float) -> float:
    """CPU time of this process over wall-clock while it sleeps."""
    start_s, cpu_s = time.monotonic(), time.process_time()
    time.sleep(length_s)
    return (time.process_time() - cpu_s) / (time.monotonic() - start_s)


def _wait_for_gpu() -> None:
    # Asking torch to wait would make a context, and the idle power before one is of interest.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    plan = QUICK if options.quick else FULL
    with EnergyMeter(_wait_for_gpu) as meter:
        untouched = meter.idle(plan.idle_s)
        if not torch.cuda.is_available():
            raise MissingToolError(NO_CUDA)
        answers = readable(meter.driver, meter.device)
        instruments = tuple(i for i, a in answers.items() if not isinstance(a, str))
        config: dict[str, object] = {
            "gpu": meter.device.name,
            "driver": meter.driver.version(),
            "torch": torch.__version__,
            "power_limit_w": meter.driver.power_limits(meter.device).enforced_w,
            "mig_instances": len(meter.device.mig_uuids),
            "duty": plan.duty,
        }
        figures = answer_figures(FIGURES, "nvml.answers.{instrument}_w", answers)
        figures += _measured(meter, instruments, plan, config, untouched)
    return config, figures


def _measured(
    meter: EnergyMeter,
    instruments: tuple[Instrument, ...],
    plan: Plan,
    config: dict[str, object],
    untouched: Window,
) -> list[Figure]:
    # A memory's power is a part of the board's: it is timed and watched, never integrated.
    whole = tuple(i for i in instruments if i.scope != SCOPE_MEMORY)
    uuid = meter.device.uuid
    burner = Burner(torch.device("cuda"))
    burner.wait()
    with_context = meter.idle(plan.idle_s)
    alone = read_during(partial(time.sleep, plan.calls_s), uuid, instruments, is_costly=True)
    figures = call_figures(alone, "idle", "GPU idle")
    burner.calibrate()
    bursts = partial(burner.restless, plan.calls_s)
    loaded = read_during(bursts, uuid, instruments, is_costly=True)
    figures += call_figures(loaded, "loaded", "GPU under random bursts")
    restless = read_during(partial(burner.restless, plan.restless_s), uuid, instruments)
    figures += refresh_figures(restless)
    figures += lag_figures(uuid, instruments, burner, plan.steps)
    clock = CpuShare(meter.sampler.pid)
    figures += length_figures(meter, whole, burner, plan)
    period_s = traces.refresh_period(restless.points[COUNTER]) or DEFAULT_PERIOD_S
    while period_s < 0.05:  # bursts of a few milliseconds could not be kept to time
        period_s *= 2.0
    figures += phase_figures(meter, whole, burner, plan, (period_s, *plan.periods_s))
    beside_loads = clock.share()
    burner.steady(2.0 * plan.idle_s)
    idle = {
        "before_context": untouched,
        "with_context": with_context,
        "just_after_load": meter.idle(plan.idle_s),
        "later": meter.idle(2.0 * plan.idle_s),
    }
    config["idle"] = {name: window_facts([window]) for name, window in idle.items()}
    figures += [
        power_figure(FIGURES, f"nvml.idle.{name}_w", window) for name, window in idle.items()
    ]
    return figures + cpu_figures(meter, 2.0 * plan.idle_s, beside_loads)


if __name__ == "__main__":
    sys.exit(run_benchmark("nvml", measure))
