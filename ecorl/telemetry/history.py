"""The bounded record of power samples in memory, and the energy of a window of time."""

from __future__ import annotations

import bisect
import math
import threading
from array import array
from collections.abc import Iterable

from ecorl import records
from ecorl.telemetry import integrate

CONTEXT_S = 2 * integrate.DISPUTED_AFTER_S
"""How far back from its end a window's counter is judged, s, where the window itself is shorter.

A stage of milliseconds cannot tell a dead counter from a slow one; the seconds before it can.
Nothing behind the window is looked at, so that a figure does not change after it was read.
"""


class _Track:
    """Samples of one device in flat arrays (25 bytes a sample); NaN stands for a missing figure."""

    def __init__(self, provenance: records.Provenance) -> None:
        self.t_s = array("d")
        self.power_w = array("d")
        self.energy_j = array("d")
        self.reset = array("b")
        self.provenance = provenance
        self.is_foreign = False

    def append(self, sample: records.PowerSample) -> None:
        self.t_s.append(sample.t_s)
        self.power_w.append(_number(sample.power_w, records.MAX_POWER_W))
        self.energy_j.append(_number(sample.energy_j, records.MAX_ENERGY_J))
        self.reset.append(sample.error in records.LOSS_ERRORS)

    def trim(self, capacity: int) -> None:
        # Cut rarely and by half: removing one sample at a time would cost O(capacity) each.
        if len(self.t_s) > 2 * capacity:
            for column in (self.t_s, self.power_w, self.energy_j, self.reset):
                del column[:-capacity]

    def reading(self, i: int) -> integrate.Reading:
        return integrate.Reading(
            self.t_s[i], _figure(self.power_w[i]), _figure(self.energy_j[i]), bool(self.reset[i])
        )

    def around(self, t_start_s: float, t_end_s: float, reach_s: float) -> list[integrate.Reading]:
        """Readings of a window, with what brackets it on either side.

        One reading further on each side is enough for the hold; for the counter the search goes
        on, up to `reach_s`, while the reading lacks one.
        """
        low = max(bisect.bisect_right(self.t_s, t_start_s) - 1, 0)
        while low > 0 and self._no_counter(low) and t_start_s - self.t_s[low] <= reach_s:
            low -= 1
        last = len(self.t_s) - 1
        high = min(bisect.bisect_left(self.t_s, t_end_s), last)
        while high < last and self._no_counter(high) and self.t_s[high] - t_end_s <= reach_s:
            high += 1
        return [self.reading(i) for i in range(low, high + 1)]

    def _no_counter(self, i: int) -> bool:
        return math.isnan(self.energy_j[i]) and not self.reset[i]


class PowerHistory:
    """Thread-safe record of the newest samples of each device.

    Rule for energy: the counter's figure where it can be known (see
    `ecorl.telemetry.integrate.counter_difference`), else the zero-order-hold integral where valid
    readings cover at least `MIN_COVERAGE` of the window, else None. Nothing is extrapolated.

    A counter that stood still at power (`STOPPED_AFTER_S`) counts as missing and the method says
    so (``integral_counter_stopped``). Where counter and integral lie too far apart
    (`DISPUTED_FACTOR`) neither is used: the energy is None, the method ``disputed``, and both
    figures stand in the record. A counter that is not the device's (`disown_counter`) is not used
    either, from then on and for all windows before. Modelled figures are not judged: counter and
    power are one model, and the method is ``model``.

    Args:
        hold_s: longest time for which a reading stands without a successor, s. It is also the
            widest gap between two counter readings across which a window's end is interpolated.
        capacity: samples kept for each device, at least (at most twice as many); the default is
            two hours at 10 Hz in 3.6 MB a device. A window that begins before the oldest sample
            kept has a lower coverage.
    """

    def __init__(self, hold_s: float = 2.0, capacity: int = 72_000) -> None:
        if not hold_s > 0:
            raise ValueError(f"hold_s = {hold_s}: must be above 0")
        if capacity < 2:
            raise ValueError(f"capacity = {capacity}: must be at least 2")
        self.hold_s, self._capacity = hold_s, capacity
        self._tracks: dict[str, _Track] = {}
        self._lock = threading.Lock()

    def register(self, device_id: str, provenance: records.Provenance) -> None:
        """Make a device known before its first sample.

        Args:
            device_id: the device.
            provenance: of the samples to come.
        """
        with self._lock:
            self._tracks.setdefault(device_id, _Track(provenance))

    def add(self, samples: Iterable[records.PowerSample]) -> tuple[records.PowerSample, ...]:
        """Append samples; one that is not newer than its device's last is dropped.

        A late sample would change the energy of windows that were read already.

        Returns:
            The samples that were kept.
        """
        kept = []
        with self._lock:
            for sample in samples:
                track = self._tracks.setdefault(sample.device_id, _Track(sample.provenance))
                if track.t_s and sample.t_s <= track.t_s[-1]:
                    continue
                track.append(sample)
                track.provenance = records.weakest(track.provenance, sample.provenance)
                track.trim(self._capacity)
                kept.append(sample)
        return tuple(kept)

    def disown_counter(self, device_id: str) -> bool:
        """Use the counter of a device no more: it counts something else, or in other units.

        Returns:
            Whether that is news.
        """
        with self._lock:
            track = self._tracks.get(device_id)
            if track is None or track.is_foreign:
                return False
            track.is_foreign = True
            return True

    @property
    def foreign_counters(self) -> frozenset[str]:
        """The devices whose counter is not used."""
        with self._lock:
            return frozenset(name for name, track in self._tracks.items() if track.is_foreign)

    def watermark_s(self, device_id: str) -> float | None:
        """Time of the newest sample of a device, missing readings included, s."""
        with self._lock:
            track = self._tracks.get(device_id)
            return track.t_s[-1] if track is not None and track.t_s else None

    def readings(
        self, device_id: str, t_start_s: float, t_end_s: float
    ) -> tuple[integrate.Reading, ...]:
        """Readings within a window, missing ones included.

        Args:
            device_id: the device.
            t_start_s: first time, monotonic s, inside the window.
            t_end_s: last time, monotonic s, inside the window.
        """
        with self._lock:
            track = self._tracks.get(device_id)
            if track is None:
                return ()
            low = bisect.bisect_left(track.t_s, t_start_s)
            high = bisect.bisect_right(track.t_s, t_end_s)
            return tuple(track.reading(i) for i in range(low, high))

    def energy(self, device_id: str, t_start_s: float, t_end_s: float) -> records.StageEnergy:
        """Energy of one device over a window; see the class for the rule.

        The figure is final once `watermark_s` has passed `t_end_s`; before that the counter
        cannot be interpolated at the end. A window of length 0 and an unknown device have no
        energy (None).

        Args:
            device_id: the device.
            t_start_s: start of the window, monotonic s.
            t_end_s: its end, monotonic s.

        Raises:
            ValueError: the window ends before it starts.
        """
        if t_end_s < t_start_s:
            raise ValueError(f"the window ends {t_start_s - t_end_s:g} s before it starts")
        window = (t_start_s, t_end_s)
        with self._lock:
            track = self._tracks.get(device_id)
            provenance = records.Provenance.MODELLED if track is None else track.provenance
            is_model = provenance is records.Provenance.MODELLED
            back_s = t_start_s if is_model else min(t_start_s, t_end_s - CONTEXT_S)
            readings = [] if track is None else track.around(back_s, t_end_s, self.hold_s)
            is_foreign = track is not None and track.is_foreign
        counter_j, integral_j, coverage = self._figures(readings, window)
        verdict = integrate.CounterVerdict.FINE
        if is_foreign:
            verdict = integrate.CounterVerdict.FOREIGN
        elif counter_j is not None and not is_model:
            verdict = self._verdict(readings, window)
        energy_j, method = _choose(counter_j, integral_j, coverage, verdict)
        if method is records.EnergyMethod.COUNTER and is_model:
            method = records.EnergyMethod.MODEL
        length_s = t_end_s - t_start_s
        return records.StageEnergy(
            (device_id,),
            t_start_s,
            t_end_s,
            energy_j=energy_j,
            mean_power_w=None if energy_j is None else energy_j / length_s,
            counter_energy_j=None if verdict is integrate.CounterVerdict.STOPPED else counter_j,
            integral_energy_j=integral_j,
            n_samples=_n_inside(readings, t_start_s, t_end_s),
            coverage=coverage,
            method=method,
            provenance=provenance,
        )

    def _figures(
        self, readings: list[integrate.Reading], window: tuple[float, float]
    ) -> tuple[float | None, float | None, float]:
        """Rise of the counter and integral over a window, J, and coverage."""
        length_s = window[1] - window[0]
        if length_s <= 0:
            return None, None, 0.0
        integral = integrate.hold_integral(readings, *window, self.hold_s)
        coverage = min(1.0, integral.covered_s / length_s)
        counter_j = integrate.counter_difference(readings, *window, self.hold_s)
        return counter_j, integral.energy_j if coverage > 0 else None, coverage

    def _verdict(
        self, readings: list[integrate.Reading], window: tuple[float, float]
    ) -> integrate.CounterVerdict:
        """Judge the counter over a window, and over the time before it where it always moved."""
        if integrate.standstill_s(readings, *window, self.hold_s) > integrate.STOPPED_AFTER_S:
            return integrate.CounterVerdict.STOPPED
        verdict = self._judge(readings, window)
        wide = (max(readings[0].t_s, window[1] - CONTEXT_S), window[1])
        if verdict is not integrate.CounterVerdict.FINE or wide[0] >= window[0]:
            return verdict
        if integrate.standstill_s(readings, *wide, self.hold_s) > integrate.STOPPED_AFTER_S:
            return integrate.CounterVerdict.FINE
        return self._judge(readings, wide)

    def _judge(
        self, readings: list[integrate.Reading], window: tuple[float, float]
    ) -> integrate.CounterVerdict:
        return integrate.judge_counter(*self._figures(readings, window), window[1] - window[0])


def _choose(
    counter_j: float | None,
    integral_j: float | None,
    coverage: float,
    verdict: integrate.CounterVerdict,
) -> tuple[float | None, records.EnergyMethod]:
    """The energy to use, J, and the method behind it; see `PowerHistory`."""
    if verdict is integrate.CounterVerdict.DISPUTED:
        return None, records.EnergyMethod.DISPUTED
    if counter_j is not None and verdict is integrate.CounterVerdict.FINE:
        return counter_j, records.EnergyMethod.COUNTER
    # Summed spans round: a fully covered window may come out a bit below 1.
    if integral_j is None or coverage < records.MIN_COVERAGE - 1e-9:
        return None, records.EnergyMethod.NONE
    return integral_j, _INTEGRALS.get(verdict, records.EnergyMethod.INTEGRAL)


_INTEGRALS = {
    integrate.CounterVerdict.STOPPED: records.EnergyMethod.INTEGRAL_COUNTER_STOPPED,
    integrate.CounterVerdict.FOREIGN: records.EnergyMethod.INTEGRAL_COUNTER_FOREIGN,
}
"""What an integral is called that stands in the place of a counter."""


def _n_inside(readings: list[integrate.Reading], t_start_s: float, t_end_s: float) -> int:
    """Valid readings strictly inside a window: one at its edge belongs to the neighbour as much."""
    return sum(
        1
        for r in readings
        if t_start_s < r.t_s < t_end_s and (r.power_w is not None or r.energy_j is not None)
    )


def _number(figure: float | None, limit: float) -> float:
    """A figure for the arrays: NaN when missing, above `limit` or negative (no board yields it)."""
    return figure if figure is not None and 0 <= figure <= limit else math.nan


def _figure(number: float) -> float | None:
    return None if math.isnan(number) else number
