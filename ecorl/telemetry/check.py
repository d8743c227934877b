"""Checks power readings: counter against integral, and the refresh really achieved.

The one implementation of these checks: on a `PowerHistory` while a run lasts (`check_readings`)
and on what a ledger kept of it (`counter_gap`, `stopped_seconds` and the functions on readings).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from ecorl.records import MIN_COVERAGE, EnergyMethod, Provenance, StageEnergy
from ecorl.telemetry.history import PowerHistory
from ecorl.telemetry.integrate import CounterVerdict, judge_counter

MIN_CHANGES = 4
"""Changes needed before a refresh is stated: fewer give no median worth the name."""


class HasPower(Protocol):
    """A reading as the checks use it: its time, s, and its power, W, None when missing."""

    @property
    def t_s(self) -> float: ...  # noqa: D102 (the class says what it is)
    @property
    def power_w(self) -> float | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class CounterGap:
    """The gap between integral and counter of a device over stage executions.

    Neither of the two is the truth: the gap tells that something is wrong, not which of them.

    Attributes:
        share: sum of the integrals over sum of the counters, minus 1; `math.inf` where the
            counters say 0 J and the integrals do not; None without an execution that has both.
        n: executions that were compared.
        n_stopped: executions whose counter stood still while the device drew power; they have no
            counter figure and are not in `share`.
        n_disputed: executions whose two figures lie too far apart to use either; in `share`.
        n_foreign: executions whose counter is not that of the device alone; in `share`.
        counted_j: sum of the counters, J.
        integral_j: sum of the integrals over the same time, J.
        time_s: that time, s.
        device_ids: the devices whose sum is compared; more than one where the energy of an
            execution was recorded for several devices together. Empty without energies.
    """

    share: float | None
    n: int
    n_stopped: int
    n_disputed: int
    n_foreign: int
    counted_j: float
    integral_j: float
    time_s: float
    device_ids: tuple[str, ...]


def counter_gap(device_id: str, energies: Iterable[StageEnergy | None]) -> CounterGap:
    """Compare counter and integral of a device over executions.

    Energies of the device alone count, and joint ones that it is part of. Modelled ones do not:
    their counter and their power are the same model.

    Args:
        device_id: the device.
        energies: of stage executions; None for one without energy.
    """
    own = [
        e
        for e in energies
        if e is not None and device_id in e.device_ids and e.provenance is not Provenance.MODELLED
    ]
    pairs = [
        (e.counter_energy_j, e.integral_energy_j, e.t_end_s - e.t_start_s)
        for e in own
        # An integral over a part of the window has no counterpart in the counter.
        if e.counter_energy_j is not None
        and e.integral_energy_j is not None
        and e.coverage >= MIN_COVERAGE - 1e-9
    ]
    counted_j, integral_j, time_s = (math.fsum(p[i] for p in pairs) for i in range(3))
    return CounterGap(
        share=_gap_share(counted_j, integral_j),
        n=len(pairs),
        n_stopped=sum(e.method is EnergyMethod.INTEGRAL_COUNTER_STOPPED for e in own),
        n_disputed=sum(e.method is EnergyMethod.DISPUTED for e in own),
        n_foreign=sum(e.method is EnergyMethod.INTEGRAL_COUNTER_FOREIGN for e in own),
        counted_j=counted_j,
        integral_j=integral_j,
        time_s=time_s,
        device_ids=tuple(sorted({name for e in own for name in e.device_ids})),
    )


def _gap_share(counted_j: float, integral_j: float) -> float | None:
    if counted_j > 0:
        return integral_j / counted_j - 1.0
    return math.inf if integral_j > 0 else None


class HasCount(Protocol):
    """A one-second roll-up as `stopped_seconds` uses it.

    ``counted_s`` and ``counted_j``: time over which the counter could be read and its rise, s and
    J; ``held_s`` and ``held_j``: time over which a valid power reading held and its energy.
    """

    @property
    def second(self) -> int: ...  # noqa: D102
    @property
    def counted_s(self) -> float: ...  # noqa: D102
    @property
    def counted_j(self) -> float: ...  # noqa: D102
    @property
    def held_s(self) -> float: ...  # noqa: D102
    @property
    def held_j(self) -> float: ...  # noqa: D102


def stopped_seconds(rows: Iterable[HasCount]) -> frozenset[int]:
    """The seconds in which the counter of a device stood still while the device drew power.

    Their energy is that of the power readings (``held_j``), not the counter's 0 J. Seconds count
    together as long as the counter does not move; see `judge_counter` for the rule. Two rows of
    one second are two parts of it.

    Args:
        rows: roll-ups of one series (one instrument, one attempt) in order of time; a modelled
            series has no counter to judge.
    """
    stopped: set[int] = set()
    still: list[HasCount] = []
    for row in rows:
        if row.counted_s > 0 and row.counted_j <= 0:
            still.append(row)
        elif row.counted_s > 0:
            stopped |= _stopped(still)
            still = []
    return frozenset(stopped | _stopped(still))


def _stopped(still: list[HasCount]) -> set[int]:
    """The seconds of a stretch without a rise, if they are too many to be one refresh."""
    length_s = math.fsum(row.counted_s for row in still)
    if not still:
        return set()
    held_s, held_j = (math.fsum(row.held_s for row in still), math.fsum(r.held_j for r in still))
    verdict = judge_counter(0.0, held_j, held_s / length_s, length_s)
    return {row.second for row in still} if verdict is CounterVerdict.STOPPED else set()


@dataclass(frozen=True, slots=True)
class ReadingCheck:
    """Quality of the readings of one device over a window.

    Attributes:
        counter_j: energy by the counter, J, or None.
        integral_j: energy by zero-order hold, J, over the covered part, or None.
        gap_share: ``(integral - counter) / counter``; `math.inf` where the counter says 0 J and
            the integral does not; None without both or with an incomplete integral (coverage below
            0.999). Neither of the two is the truth: the gap tells that something is wrong, not
            which of them.
        coverage: share of the window covered by valid readings, 0 to 1.
        refresh_s: median time between changes of the power reading, s; None when it changed too
            seldom. A refresh slower than the polling means repeated readings.
        poll_s: median time between readings, s, or None.
        missing_share: share of the readings without power, or None without readings.
        method: how the energy of the window was found; shows a counter that has stopped.
    """

    device_id: str
    t_start_s: float
    t_end_s: float
    counter_j: float | None
    integral_j: float | None
    gap_share: float | None
    coverage: float
    refresh_s: float | None
    poll_s: float | None
    missing_share: float | None
    method: EnergyMethod


def check_readings(
    history: PowerHistory, device_id: str, t_start_s: float, t_end_s: float
) -> ReadingCheck:
    """Cross-check counter, integral and refresh of one device over a window.

    Args:
        history: the readings.
        device_id: the device.
        t_start_s: start of the window, monotonic s.
        t_end_s: its end, monotonic s.
    """
    energy = history.energy(device_id, t_start_s, t_end_s)
    readings = history.readings(device_id, t_start_s, t_end_s)
    counter_j, integral_j = energy.counter_energy_j, energy.integral_energy_j
    gap_share = None
    if counter_j is not None and integral_j is not None and energy.coverage >= 0.999:
        gap_share = _gap_share(counter_j, integral_j)
    missing = sum(1 for reading in readings if reading.power_w is None)
    return ReadingCheck(
        device_id=device_id,
        t_start_s=t_start_s,
        t_end_s=t_end_s,
        counter_j=counter_j,
        integral_j=integral_j,
        gap_share=gap_share,
        coverage=energy.coverage,
        refresh_s=achieved_refresh_s(readings),
        poll_s=poll_interval_s(readings),
        missing_share=missing / len(readings) if readings else None,
        method=energy.method,
    )


def poll_interval_s(readings: Iterable[HasPower]) -> float | None:
    """Median time between readings, missing ones included, s; None below two readings."""
    times_s = sorted(reading.t_s for reading in readings)
    steps_s = [b - a for a, b in pairwise(times_s) if b > a]
    return statistics.median(steps_s) if steps_s else None


def achieved_refresh_s(readings: Iterable[HasPower]) -> float | None:
    """Median time between changes of the power reading, s; None below `MIN_CHANGES` changes.

    A gap (a missing reading) starts anew: the time across it is not counted. The figure cannot
    be finer than the polling, and a load that is truly constant looks like a slow instrument.
    """
    spans_s: list[float] = []
    power_w: float | None = None
    changed_s: float | None = None
    for reading in sorted(readings, key=lambda r: r.t_s):
        if reading.power_w is None:
            power_w = changed_s = None
            continue
        if power_w is not None and reading.power_w != power_w:
            if changed_s is not None:
                spans_s.append(reading.t_s - changed_s)
            changed_s = reading.t_s
        power_w = reading.power_w
    return statistics.median(spans_s) if len(spans_s) >= MIN_CHANGES else None
