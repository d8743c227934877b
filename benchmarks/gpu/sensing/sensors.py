"""What NVML's instruments say of loads that are known: experiments, one function each.

There is no meter in the wall here. What can be known without one: how often a value changes, how
late it follows a load that is switched on, how far integral and counter lie apart, and whether the
same work is billed the same wherever it lies within the instrument's period. The last is what an
instrument that looks at only a part of the time gets wrong.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from benchmarks.gpu.loads.bursts import Burner
from benchmarks.gpu.sensing.meter import EnergyMeter
from benchmarks.gpu.sensing.tracer import COUNTER, LoadTrace, Order, Tracer
from benchmarks.gpu.sensing.traces import (
    TracePoint,
    counted_energy,
    deviations,
    held_energy,
    step_response,
    trapezoid_integral,
)
from ecorl.drivers.instruments import Instrument
from ecorl.telemetry.check import ReadingCheck

SAMPLER_HOLD, SAMPLER_COUNTER = "ecorl:hold", "ecorl:counter"
"""Names of a run's own figures beside the instruments'."""

FINE_S = 0.01
"""Interval of the fine readings beside a load, s."""


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


def readings_alone(uuid: str, instruments: tuple[Instrument, ...], length_s: float) -> LoadTrace:
    """Read with nothing else at work, as fast as it goes.

    Args:
        uuid: of the GPU.
        instruments: that answer.
        length_s: how long, s.
    """
    with Tracer(Order(uuid, instruments, is_costly=True)) as tracer:
        time.sleep(length_s)
    return tracer.trace


def readings_under_load(
    uuid: str,
    instruments: tuple[Instrument, ...],
    burner: Burner,
    length_s: float,
    *,
    is_costly: bool = False,
) -> LoadTrace:
    """Read as fast as it goes during a load whose power is never the same for long.

    Args:
        uuid: of the GPU.
        instruments: that answer.
        burner: the load.
        length_s: how long, s.
        is_costly: whether whole readings are taken too.
    """
    with Tracer(Order(uuid, instruments, is_costly=is_costly)) as tracer:
        burner.restless(length_s)
    return tracer.trace


@dataclass(frozen=True, slots=True)
class Lag:
    """How an instrument follows a load that is switched on, over several times.

    Attributes:
        delay_s: until it has risen by a tenth, s, each time.
        rise_s: from there to nine tenths, s, each time.
    """

    delay_s: list[float]
    rise_s: list[float]


def lags(
    uuid: str, instruments: tuple[Instrument, ...], burner: Burner, steps: tuple[int, float]
) -> dict[str, Lag]:
    """Switch a load on and off, and see how late each instrument of power follows.

    Args:
        uuid: of the GPU.
        instruments: that answer.
        burner: the load.
        steps: how often, and how long on and off, s.
    """
    n_steps, length_s = steps
    spans: list[tuple[float, float, float]] = []
    with Tracer(Order(uuid, instruments)) as tracer:
        for _ in range(n_steps):
            time.sleep(length_s)
            spans.append((time.monotonic() - 0.3 * length_s, *burner.steady(length_s)))
    found: dict[str, Lag] = {}
    for one in instruments:
        points = tracer.trace.points[str(one)]
        seen = [step_response(points, *span) for span in spans]
        kept = [step for step in seen if step is not None]
        found[str(one)] = Lag([s.delay_s for s in kept], [s.rise_s for s in kept])
    return found


@dataclass
class LengthRow:
    """Loads of one length: share by which each integral differs from the counter.

    Attributes:
        length_s: that was asked for, s.
        checks: as a run checks its readings, one a load.
        gaps: by what is integrated: the instrument and the rule, one a load.
    """

    length_s: float
    checks: list[ReadingCheck] = field(default_factory=list)
    gaps: dict[str, list[float]] = field(default_factory=dict)


def loads_by_length(
    meter: EnergyMeter, instruments: tuple[Instrument, ...], burner: Burner, plan: Plan
) -> list[LengthRow]:
    """Hold integrals against the counter over steady loads of several lengths.

    The window is that of the load alone, as that of a stage is, so that a reading that comes late
    costs what it costs there.

    Args:
        meter: with the sampler of a run.
        instruments: that are read beside it, each `FINE_S`.
        burner: the load.
        plan: the lengths.
    """
    windows: list[tuple[LengthRow, tuple[float, float], ReadingCheck]] = []
    rows = [LengthRow(length_s) for length_s in plan.lengths]
    with Tracer(Order(meter.device.uuid, instruments, FINE_S)) as tracer:
        time.sleep(plan.gap_s)
        for row in rows:
            for _ in range(plan.lengths[row.length_s]):
                window = burner.steady(row.length_s)
                time.sleep(plan.gap_s)
                windows.append((row, window, meter.check(*window)))
    for row, window, check in windows:
        row.checks.append(check)
        for name, gap in _gaps(tracer.trace, instruments, meter, window, check).items():
            row.gaps.setdefault(name, []).append(gap)
    return rows


def _gaps(
    trace: LoadTrace,
    instruments: tuple[Instrument, ...],
    meter: EnergyMeter,
    window: tuple[float, float],
    check: ReadingCheck,
) -> dict[str, float]:
    """Integral over the counter minus 1, for the run's own readings and for the fine ones."""
    own = meter.power_points(window[0] - 1.0, window[1] + 1.0)
    found = {
        "ecorl hold": (check.integral_j, check.counter_j),
        "ecorl trapezoid": (trapezoid_integral(own, *window), check.counter_j),
        "ecorl counter over fine": (check.counter_j, counted(trace, window)),
    }
    for one in instruments:
        held = held_energy(trace.points[str(one)], *window)
        found[f"{one} hold"] = (held, counted(trace, window))
    return {
        name: integral_j / counter_j - 1.0
        for name, (integral_j, counter_j) in found.items()
        if integral_j is not None and counter_j
    }


def counted(trace: LoadTrace, window: tuple[float, float]) -> float | None:
    """Rise of the counter over a window by the fine readings, J.

    Args:
        trace: of the instruments.
        window: begin and end, monotonic s.
    """
    return counted_energy(trace.points[COUNTER], *window)


@dataclass
class PhaseRow:
    """The same periodic work at several phases, and what each instrument billed for it.

    Attributes:
        period_s: of the load, s.
        phases: by which share of the period it was moved.
        energy_j: by instrument, one a phase; None where it could not be told.
    """

    period_s: float
    phases: list[float]
    energy_j: dict[str, list[float | None]]

    def worst(self, name: str) -> list[float] | None:
        """Share by which each phase differs from the mean of all; None with one missing.

        Args:
            name: of the instrument.
        """
        values = self.energy_j[name]
        kept = [v for v in values if v is not None]
        return deviations(kept) if len(kept) == len(values) and kept else None


def periodic_loads(
    meter: EnergyMeter,
    instruments: tuple[Instrument, ...],
    burner: Burner,
    plan: Plan,
    periods_s: Sequence[float],
) -> list[PhaseRow]:
    """Do the same bursts at several phases of a period, and see whether they are billed the same.

    The mean over all phases is right even for an instrument that looks at a part of the time only;
    a single phase is not. Where the period is that of the instrument itself the phase stays what it
    is through the window.

    Args:
        meter: with the sampler of a run.
        instruments: that are read beside it, each `FINE_S`.
        burner: the load.
        plan: phases and lengths.
        periods_s: of the loads, s.
    """
    rows: list[PhaseRow] = []
    spans: list[tuple[PhaseRow, tuple[float, float], ReadingCheck]] = []
    names = [SAMPLER_COUNTER, SAMPLER_HOLD, COUNTER, *map(str, instruments)]
    with Tracer(Order(meter.device.uuid, instruments, FINE_S)) as tracer:
        for period_s in periods_s:
            n_periods = max(4, round(plan.window_s / period_s))
            phases = [i / plan.phases for i in range(plan.phases)]
            row = PhaseRow(period_s, phases, {name: [] for name in names})
            rows.append(row)
            burner.periodic(period_s, plan.duty, n_periods, 0.0)
            for phase in phases:
                window = burner.periodic(period_s, plan.duty, n_periods, phase)
                spans.append((row, window, meter.check(*window)))
        time.sleep(0.5)
    for row, window, check in spans:
        row.energy_j[SAMPLER_COUNTER].append(check.counter_j)
        row.energy_j[SAMPLER_HOLD].append(check.integral_j)
        row.energy_j[COUNTER].append(counted(tracer.trace, window))
        for one in instruments:
            points: list[TracePoint] = tracer.trace.points[str(one)]
            row.energy_j[str(one)].append(held_energy(points, *window))
    return rows


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU time over wall-clock, of one core.

    Attributes:
        sampler: of the sampling process.
        receiver: of this process while it does nothing but receive.
        without: of this process while it does nothing at all.
    """

    sampler: float | None
    receiver: float
    without: float


class CpuClock:
    """CPU time of the sampling process and of this one, from its making on."""

    def __init__(self, sampler_pid: int | None) -> None:
        self._process = None if sampler_pid is None else psutil.Process(sampler_pid)
        self._start = self._now()

    def shares(self) -> tuple[float | None, float]:
        """Shares of one core so far: of the sampling process (None without one), of this one."""
        now = self._now()
        wall_s, own_s = now[0] - self._start[0], now[1] - self._start[1]
        if now[2] is None or self._start[2] is None:
            return None, own_s / wall_s
        return (now[2] - self._start[2]) / wall_s, own_s / wall_s

    def _now(self) -> tuple[float, float, float | None]:
        sampler_s = None
        if self._process is not None:
            try:
                times = self._process.cpu_times()
                sampler_s = float(times.user + times.system)
            except psutil.Error:
                self._process = None
        return time.monotonic(), time.process_time(), sampler_s


def cpu_use(meter: EnergyMeter, length_s: float) -> CpuUse:
    """Measure what sampling costs the processor while nothing else is done.

    Args:
        meter: whose sampler runs; it is stopped here.
        length_s: how long, s.
    """
    clock = CpuClock(meter.sampler.pid)
    time.sleep(length_s)
    sampler, receiver = clock.shares()
    meter.sampler.stop()
    clock = CpuClock(None)
    time.sleep(0.5 * length_s)
    return CpuUse(sampler, receiver, clock.shares()[1])
