"""Fills in the energy counter of samples that were taken without it.

A counter that is slow to read is read once a second, power ten times. The samples in between wait
for the next reading of the counter; its rise is then spread over them as their power says. So all
that follows (windows, the record, reports) sees a counter in each sample, and parts of a stretch of
time add up to what the counter says of the whole.

Power for control is smoothed here too, aware of time: alpha = 1 - exp(-dt / tau), so the result
does not depend on how often one reads. Smoothing does not remove the bias of sampling a periodic
load; energy never comes from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from ecorl.records import LOSS_ERRORS, PowerSample, Provenance, SmoothedPower


class CounterFill:
    """Holds back the samples of one device until the counter was read behind them.

    Samples of a device without a counter pass at once, and so do those behind a counter that has
    not answered for `wait_s`, or behind a loss of the device: these stay without an energy.

    Args:
        wait_s: longest time from one reading of the counter to the next, s.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._counted: PowerSample | None = None
        self._held: list[PowerSample] = []

    def add(self, sample: PowerSample) -> tuple[PowerSample, ...]:
        """Take a sample in; returns those that are complete by now, in the order of time.

        Args:
            sample: newer than all before.
        """
        counted = self._counted
        if sample.energy_j is not None:
            held, self._counted = self.release(), sample
            if counted is not None and held:
                held = filled(counted, held, sample)
            return (*held, sample)
        is_lost = sample.error in LOSS_ERRORS
        if counted is None or is_lost or sample.t_s - counted.t_s > self._wait_s:
            self._counted = None
            return (*self.release(), sample)
        self._held.append(sample)
        return ()

    def release(self) -> list[PowerSample]:
        """Give up waiting: return the samples that are held back, without an energy."""
        held, self._held = self._held, []
        return held


def filled(
    first: PowerSample, between: Sequence[PowerSample], last: PowerSample
) -> list[PowerSample]:
    """Spread the rise of a counter over the samples between two of its readings.

    In proportion to power x time, each reading of power held until the next one; in proportion to
    time where a power is missing or all are 0. Unchanged where the counter has fallen.

    Args:
        first: with the counter, J.
        between: without it, in the order of time.
        last: with the counter, J.
    """
    if first.energy_j is None or last.energy_j is None or last.energy_j < first.energy_j:
        return list(between)
    stretches = list(pairwise([first, *between, last]))
    powers = [one.power_w for one, _ in stretches]
    times_s = [after.t_s - one.t_s for one, after in stretches]
    known = [power_w for power_w in powers if power_w is not None]
    weights = times_s
    if len(known) == len(powers) and sum(known) > 0:
        weights = [power_w * time_s for power_w, time_s in zip(known, times_s, strict=True)]
    *drawn, whole = accumulate(weights)
    rise_j = last.energy_j - first.energy_j
    # Rounding must not carry it past the next reading: a counter that falls tells nothing.
    return [
        replace(sample, energy_j=min(first.energy_j + rise_j * part / whole, last.energy_j))
        for sample, part in zip(between, drawn, strict=True)
    ]


class Ema:
    """One smoothed quantity.

    Args:
        tau_s: time constant, s. The paper's n = 10 samples at 100 ms, weight 1/n a sample, are
            tau = 0.95 s, hence the default of 1.0.

    Attributes:
        value: the smoothed value, None before the first one.
        t_s: time of the last value that counted, s.
    """

    def __init__(self, tau_s: float) -> None:
        if not tau_s > 0:
            raise ValueError(f"tau_s = {tau_s}: must be above 0")
        self._tau_s = tau_s
        self.value: float | None = None
        self.t_s: float | None = None

    def update(self, t_s: float, value: float | None) -> float | None:
        """Mix in a value; over a gap it weighs as if it had held for the whole gap.

        Args:
            t_s: its time, s.
            value: None and values not newer than the last change nothing.

        Returns:
            The smoothed value.
        """
        if value is None or not math.isfinite(value):
            return self.value
        if self.t_s is None or self.value is None:
            self.value, self.t_s = value, t_s
        elif t_s > self.t_s:
            alpha = -math.expm1(-(t_s - self.t_s) / self._tau_s)
            mixed = (1.0 - alpha) * self.value + alpha * value
            # Rounding alone must not carry the result past either value.
            low, high = min(self.value, value), max(self.value, value)
            self.value = min(max(mixed, low), high)
            self.t_s = t_s
        return self.value


class Smoother:
    """Smoothed power and utilisation of one device.

    Args:
        device_id: the device.
        provenance: reported until a sample says otherwise.
        tau_s: time constant, s.
        stale_after_s: age of the last valid reading at which the power is missing, s.
    """

    def __init__(
        self, device_id: str, provenance: Provenance, tau_s: float, stale_after_s: float
    ) -> None:
        self._device_id, self._provenance = device_id, provenance
        self._power, self._utilisation = Ema(tau_s), Ema(tau_s)
        self._stale_after_s = stale_after_s

    def add(self, sample: PowerSample) -> None:
        """Take in a sample of this device; missing figures change nothing."""
        self._provenance = sample.provenance
        self._power.update(sample.t_s, sample.power_w)
        self._utilisation.update(sample.t_s, sample.utilisation)

    def at(self, now_s: float) -> SmoothedPower:
        """The smoothed figures as of `now_s`; a stale one is None."""
        power_w, age_s = self._fresh(self._power, now_s)
        utilisation, _ = self._fresh(self._utilisation, now_s)
        return SmoothedPower(self._device_id, now_s, power_w, utilisation, age_s, self._provenance)

    def _fresh(self, ema: Ema, now_s: float) -> tuple[float | None, float | None]:
        if ema.t_s is None:
            return None, None
        age_s = max(0.0, now_s - ema.t_s)
        return (ema.value if age_s <= self._stale_after_s else None), age_s
