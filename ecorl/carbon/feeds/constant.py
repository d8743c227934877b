"""One stated figure as a feed: the same on each day."""

from __future__ import annotations

import math

from ecorl.carbon.feeds.intervals import Intervals
from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.grid import AverageIntensity, Basis, Gas, Scope
from ecorl.kinds import Provenance

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

    def close(self) -> None:
        """Nothing to release."""

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
