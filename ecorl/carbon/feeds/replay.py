"""A recorded trace as a feed: what a grid emitted at another time, at its own speed or faster."""

from __future__ import annotations

import math
from dataclasses import replace

from ecorl.carbon.feeds.intervals import Intervals
from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.continuation import continuation
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.errors import FeedSilent
from ecorl.grid import AverageIntensity, Basis
from ecorl.kinds import Provenance


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
        name: of the feed.
    """

    def __init__(
        self,
        trace: GridTrace,
        starts_at_s: float,
        began_s: float,
        speed: float = 1.0,
        delay_s: float = 0.0,
        name: str = "replay",
    ) -> None:
        if not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed is {speed}; it must be above 0")
        if not delay_s >= 0:
            raise ValueError(f"delay_s is {delay_s}; it must be at least 0")
        self._trace, self._delay_s = trace, delay_s
        step_s = trace.series.step_s / speed
        self._intervals = Intervals(began_s + (trace.series.start_s - starts_at_s) / speed, step_s)
        self.info = FeedInfo(name, f"recorded in {trace.path.name}", step_s, day_s=86400.0 / speed)

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

    def close(self) -> None:
        """Nothing to release."""

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
