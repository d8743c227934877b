"""Fills in the energy counter of samples that were taken without it.

A counter that is slow to read is read once a second, power ten times. The samples in between wait
for the next reading of the counter; its rise is then spread over them as their power says. So all
that follows (windows, the record, reports) sees a counter in each sample, and parts of a stretch of
time add up to what the counter says of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from ecorl.records import LOSS_ERRORS, PowerSample


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
