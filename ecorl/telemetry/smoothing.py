"""Time-aware exponential smoothing of power, for control.

alpha = 1 - exp(-dt / tau), so the result does not depend on how often one reads. Smoothing does
not remove the bias of sampling a periodic load; energy never comes from here.
"""

from __future__ import annotations

import math

from ecorl.records import PowerSample, Provenance, SmoothedPower


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
