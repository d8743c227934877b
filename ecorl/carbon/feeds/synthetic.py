"""A made-up day as a feed, for trying things out: no grid's figures, and labelled so."""

from __future__ import annotations

import math

import numpy as np

from ecorl.carbon.feeds.intervals import Intervals
from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.grid import AverageIntensity, Basis, Gas, Scope
from ecorl.kinds import Provenance

TROUGH_H = 3.0
"""Local hour at which the intensity is lowest."""

PEAK_H = 18.0
"""Local hour at which it is highest."""

STEP_S = 300.0
"""Length of an interval of the made-up day, s; invented: short enough for a smooth day."""

HORIZON_S = 96 * 3600.0
"""How far its forecasts reach into the made-up time, s."""

_HOUR_S, _DAY_H = 3600.0, 24.0


class SyntheticFeed:
    """The same day again and again: lowest at 03:00, highest at 18:00, half a cosine between them.

    The value of an interval is that of its begin.

    Args:
        low_g_per_kwh: lowest intensity, g/kWh.
        high_g_per_kwh: highest intensity, g/kWh.
        utc_offset_h: local time minus UTC, hours.
        speed: seconds of the made-up time in a second; faster days begin to differ from the clock
            at `began_s`.
        began_s: time at which both agree, s since 1970.
        name: of the feed.
    """

    def __init__(
        self,
        low_g_per_kwh: float = 200.0,
        high_g_per_kwh: float = 450.0,
        utc_offset_h: float = 0.0,
        speed: float = 1.0,
        began_s: float = 0.0,
        name: str = "synthetic",
    ) -> None:
        if not 0 < low_g_per_kwh <= high_g_per_kwh < math.inf:
            raise ValueError(f"{low_g_per_kwh} to {high_g_per_kwh} g/kWh is no range above 0")
        if not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed is {speed}; it must be above 0")
        self._low, self._high = low_g_per_kwh, high_g_per_kwh
        self._utc_offset_h = utc_offset_h
        # Interval 0 is the first of the made-up 1970.
        self._intervals = Intervals(began_s - began_s / speed, STEP_S / speed)
        self.info = FeedInfo(
            name, "a made-up day, of no grid", STEP_S / speed, day_s=86400.0 / speed
        )

    def read(self, now_s: float) -> AverageIntensity:
        """The value of the interval that a time is in.

        Args:
            now_s: time, s since 1970.
        """
        return self._value(self._intervals.number(now_s), now_s)

    def history(self, start_s: float, end_s: float) -> tuple[AverageIntensity, ...]:
        """Values of earlier intervals.

        Args:
            start_s: begin of the first interval, s since 1970, at the earliest.
            end_s: end of the last one, at the latest; taken for the time of asking.
        """
        numbers = self._intervals.within(start_s, end_s)
        return tuple(self._value(number, end_s) for number in numbers)

    def forecast(self, now_s: float) -> Forecast | None:
        """What the feed will tell in the next days, from the interval on that the time is in.

        It is certain, so that the interval's ends are its middle.

        Args:
            now_s: time, s since 1970.
        """
        first = self._intervals.number(now_s)
        middle = np.array(
            [self._g_per_kwh(first + i) for i in range(int(HORIZON_S / STEP_S))], np.float64
        )
        return Forecast(
            model=self.info.name,
            issued_s=now_s,
            start_s=self._intervals.start_s(first),
            step_s=self._intervals.step_s,
            middle=middle,
            low=middle,
            high=middle,
        )

    def close(self) -> None:
        """Nothing to release."""

    def _g_per_kwh(self, number: int) -> float:
        hour = (number * STEP_S / _HOUR_S + self._utc_offset_h - TROUGH_H) % _DAY_H
        rise_h = PEAK_H - TROUGH_H
        if hour <= rise_h:
            share = (1 - math.cos(math.pi * hour / rise_h)) / 2
        else:
            share = (1 + math.cos(math.pi * (hour - rise_h) / (_DAY_H - rise_h))) / 2
        return self._low + (self._high - self._low) * share

    def _value(self, number: int, fetched_s: float) -> AverageIntensity:
        return AverageIntensity(
            feed=self.info.name,
            start_s=self._intervals.start_s(number),
            interval_s=self._intervals.step_s,
            g_per_kwh=self._g_per_kwh(number),
            gas=Gas.CO2E,
            basis=Basis.LOCATION,
            scope=Scope.LIFE_CYCLE,
            factors="synthetic day",
            is_estimated=None,
            fetched_s=fetched_s,
            provenance=Provenance.MODELLED,
        )
