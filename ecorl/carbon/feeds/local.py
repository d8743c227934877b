"""Feeds that ask no server: a stated figure, a made-up day and a recorded trace.

Their intervals are equal and without end, and agree to the last bit on which one holds a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.pool import continuation
from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.errors import FeedSilent
from ecorl.grid import AverageIntensity, Basis, Gas, Scope
from ecorl.kinds import Provenance


@dataclass(frozen=True, slots=True)
class Intervals:
    """Interval i begins at first_s + i step_s, and ends where the next one begins.

    Attributes:
        first_s: begin of interval 0, s since 1970.
        step_s: length of an interval, s.
    """

    first_s: float
    step_s: float

    def start_s(self, number: int) -> float:
        """Begin of an interval, s since 1970.

        Args:
            number: of the interval; may be negative.
        """
        return self.first_s + number * self.step_s

    def number(self, t_s: float) -> int:
        """The interval that holds a time.

        Args:
            t_s: time, s since 1970.
        """
        number = math.floor((t_s - self.first_s) / self.step_s)
        # The division rounds: an interval's own begin might else count as in the one before it.
        while self.start_s(number) > t_s:
            number -= 1
        while self.start_s(number + 1) <= t_s:
            number += 1
        return number

    def within(self, start_s: float, end_s: float) -> range:
        """The intervals that lie in a span of time as a whole.

        Args:
            start_s: begin of the span, s since 1970.
            end_s: its end.
        """
        first = self.number(start_s)
        return range(first if self.start_s(first) == start_s else first + 1, self.number(end_s))


DAY_S = 86400.0

_DAYS = Intervals(0.0, DAY_S)


class ConstantFeed:
    """Tells the same intensity for each day (UTC).

    Args:
        g_per_kwh: the intensity, gCO2e/kWh; where nothing else is said it is taken for a life-cycle
            intensity of the place's grid.
        source: where the figure comes from, in one phrase.
        scope: whether it counts life-cycle or direct emissions.
        basis: whether it is location- or market-based.
        name: of the feed.
    """

    def __init__(
        self,
        g_per_kwh: float,
        source: str,
        scope: Scope = Scope.LIFE_CYCLE,
        basis: Basis = Basis.LOCATION,
        name: str = "constant",
    ) -> None:
        if not 0 <= g_per_kwh < math.inf:
            raise ValueError(f"{g_per_kwh} g/kWh is no intensity")
        self._g_per_kwh, self._scope, self._basis = g_per_kwh, scope, basis
        self.info = FeedInfo(name, source, DAY_S, is_stated=True)

    def read(self, now_s: float) -> AverageIntensity:
        """The figure, for the day that a time is in.

        Args:
            now_s: time, s since 1970.
        """
        return self._value(_DAYS.number(now_s), now_s)

    def history(self, start_s: float, end_s: float) -> tuple[AverageIntensity, ...]:
        """The figure for each whole day.

        Args:
            start_s: begin of the first day, s since 1970, at the earliest.
            end_s: end of the last one, at the latest; taken for the time of asking.
        """
        return tuple(self._value(day, end_s) for day in _DAYS.within(start_s, end_s))

    def forecast(self, now_s: float) -> Forecast | None:
        """None: a stated figure says nothing about the next hours.

        Args:
            now_s: time, s since 1970.
        """
        return None

    def _value(self, day: int, fetched_s: float) -> AverageIntensity:
        return AverageIntensity(
            feed=self.info.name,
            start_s=_DAYS.start_s(day),
            interval_s=DAY_S,
            g_per_kwh=self._g_per_kwh,
            gas=Gas.CO2E,
            basis=self._basis,
            scope=self._scope,
            factors=self.info.source,
            is_estimated=None,
            fetched_s=fetched_s,
            provenance=Provenance.PUBLISHED,
        )


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
    """

    def __init__(
        self,
        low_g_per_kwh: float = 200.0,
        high_g_per_kwh: float = 450.0,
        utc_offset_h: float = 0.0,
        speed: float = 1.0,
        began_s: float = 0.0,
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
            "synthetic", "a made-up day, of no grid", STEP_S / speed, day_s=86400.0 / speed
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


class ReplayFeed:
    """Plays a trace as if it happened now.

    Intervals are told in the time of the run, so that one of an hour that is played 3,600 times
    faster holds for one second.

    Args:
        trace: the recording.
        starts_at_s: time in the trace at which it begins to play, s since 1970.
        began_s: time at which it begins to play, s since 1970.
        speed: seconds of the trace in a second.
        delay_s: how long after an interval's begin its value is told, s of the run.
    """

    def __init__(
        self,
        trace: GridTrace,
        starts_at_s: float,
        began_s: float,
        speed: float = 1.0,
        delay_s: float = 0.0,
    ) -> None:
        if not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed is {speed}; it must be above 0")
        if not delay_s >= 0:
            raise ValueError(f"delay_s is {delay_s}; it must be at least 0")
        self._trace, self._delay_s = trace, delay_s
        step_s = trace.series.step_s / speed
        self._intervals = Intervals(began_s + (trace.series.start_s - starts_at_s) / speed, step_s)
        source = f"recorded in {trace.path.name}"
        self.info = FeedInfo("replay", source, step_s, day_s=86400.0 / speed)

    def read(self, now_s: float) -> AverageIntensity:
        """The value of the interval that is told now.

        Args:
            now_s: time, s since 1970.

        Raises:
            FeedSilent: outside of the trace, and where its value is missing.
        """
        number = self._newest(now_s)
        value = self._value(number, now_s)
        if value is None:
            message = f"{self._trace.path.name} lacks the value of this time"
            raise FeedSilent(message, self._trace.doubted.get(number))
        return value

    def history(self, start_s: float, end_s: float) -> tuple[AverageIntensity, ...]:
        """Values of earlier intervals; what is missing is left out.

        Args:
            start_s: begin of the first interval, s since 1970, at the earliest.
            end_s: end of the last one, at the latest; taken for the time of asking, so that values
                that are not told by then are left out too.
        """
        numbers = self._intervals.within(start_s, end_s)
        n_told = self._intervals.number(end_s - self._delay_s) + 1
        last = min(numbers.stop, n_told, len(self._trace.series.values))
        values = (self._value(number, end_s) for number in range(max(0, numbers.start), last))
        return tuple(value for value in values if value is not None)

    def forecast(self, now_s: float) -> Forecast | None:
        """What the part of the recording that has been told by now says of the time ahead.

        The pool of simple rules goes on with that part, in the time of the trace, whose hours and
        days it goes by. What the recording has after it is not looked at.

        Args:
            now_s: time, s since 1970.

        Returns:
            The forecast for 96 hours of the trace, in the time of the run.

        Raises:
            FeedSilent: outside of the trace, and where too little of it has been told.
        """
        n_told = self._newest(now_s) + 1
        past = self._trace.series
        told = Series(past.start_s, past.step_s, past.values[:n_told])
        first = self._intervals.number(now_s)
        try:
            made = continuation(told, first)
        except FeedSilent as error:
            raise FeedSilent(f"{self._trace.path.name}, as told by now: {error}") from error
        return replace(
            made,
            issued_s=now_s,
            start_s=self._intervals.start_s(first),
            step_s=self._intervals.step_s,
        )

    def _newest(self, now_s: float) -> int:
        """Number of the interval that is told at a time."""
        number = self._intervals.number(now_s - self._delay_s)
        if not 0 <= number < len(self._trace.series.values):
            raise FeedSilent(f"{self._trace.path.name} has nothing at this time")
        return number

    def _value(self, number: int, fetched_s: float) -> AverageIntensity | None:
        trace = self._trace
        g_per_kwh = float(trace.series.values[number])
        if math.isnan(g_per_kwh):
            return None
        mix = None
        if trace.mix is not None:
            mix = {fuel: float(shares[number]) for fuel, shares in trace.mix.items()}
        return AverageIntensity(
            feed=self.info.name,
            start_s=self._intervals.start_s(number),
            interval_s=self._intervals.step_s,
            g_per_kwh=g_per_kwh,
            gas=trace.gas,
            basis=Basis.LOCATION,
            scope=trace.scope,
            factors=trace.factors,
            is_estimated=None if trace.estimated is None else bool(trace.estimated[number]),
            fetched_s=fetched_s,
            provenance=Provenance.REPLAYED,
            mix=mix,
        )
