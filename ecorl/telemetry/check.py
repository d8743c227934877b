"""How good the readings are: counter against integral, and the refresh really achieved."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ecorl.telemetry.history import PowerHistory
from ecorl.telemetry.integrate import Reading

MIN_CHANGES = 4
"""Changes needed before a refresh is stated: fewer give no median worth the name."""


@dataclass(frozen=True, slots=True)
class ReadingCheck:
    """Quality of the readings of one device over a window.

    Attributes:
        counter_j: energy by the counter, J, or None.
        integral_j: energy by zero-order hold, J, over the covered part, or None.
        gap_share: ``(integral - counter) / counter``; None without both, with an incomplete
            integral (coverage below 0.999) or a counter that did not move. Neither of the two is
            the truth: the gap tells that something is wrong, not which of them.
        coverage: share of the window covered by valid readings, 0 to 1.
        refresh_s: median time between changes of the power reading, s; None when it changed too
            seldom. A refresh slower than the polling means repeated readings.
        poll_s: median time between readings, s, or None.
        missing_share: share of the readings without power, or None without readings.
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


def check_readings(
    history: PowerHistory, device_id: str, t_start_s: float, t_end_s: float
) -> ReadingCheck:
    """Cross-check one device over a window."""
    energy = history.energy(device_id, t_start_s, t_end_s)
    readings = history.readings(device_id, t_start_s, t_end_s)
    gap_share = None
    if (
        energy.counter_energy_j
        and energy.integral_energy_j is not None
        and energy.coverage >= 0.999
    ):
        gap_share = energy.integral_energy_j / energy.counter_energy_j - 1.0
    steps_s = [b.t_s - a.t_s for a, b in pairwise(readings)]
    missing = sum(1 for reading in readings if reading.power_w is None)
    return ReadingCheck(
        device_id=device_id,
        t_start_s=t_start_s,
        t_end_s=t_end_s,
        counter_j=energy.counter_energy_j,
        integral_j=energy.integral_energy_j,
        gap_share=gap_share,
        coverage=energy.coverage,
        refresh_s=achieved_refresh_s(readings),
        poll_s=statistics.median(steps_s) if steps_s else None,
        missing_share=missing / len(readings) if readings else None,
    )


def achieved_refresh_s(readings: Sequence[Reading]) -> float | None:
    """Median time between changes of the power reading, s; None below `MIN_CHANGES` changes.

    A gap (a missing reading) starts anew: the time across it is not counted. The figure cannot
    be finer than the polling, and a load that is truly constant looks like a slow instrument.
    """
    spans_s: list[float] = []
    power_w: float | None = None
    changed_s: float | None = None
    for reading in readings:
        if reading.power_w is None:
            power_w = changed_s = None
            continue
        if power_w is not None and reading.power_w != power_w:
            if changed_s is not None:
                spans_s.append(reading.t_s - changed_s)
            changed_s = reading.t_s
        power_w = reading.power_w
    return statistics.median(spans_s) if len(spans_s) >= MIN_CHANGES else None
