"""What a forecaster is."""

from __future__ import annotations

from typing import Protocol

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series


class Forecaster(Protocol):
    """A rule that says from the values of the past alone what comes next.

    A forecaster is not trained beforehand: whatever it learns, it learns from the past that it is
    given. The same past gives the same forecast, however often and in whichever order it is asked.
    It serves every signal that follows the day and the week, such as a grid's intensity and its
    share of renewable electricity.
    """

    name: str

    def forecast(self, past: Series, n: int) -> Forecast:
        """What the next intervals after the end of the past will bring.

        Args:
            past: what is known, at steps of at most an hour; values may be missing (NaN).
            n: number of intervals to forecast, each as long as those of the past.

        Returns:
            The forecast from ``past.end_s`` on, with `NOMINAL_COVERAGE` intervals. None of its
            numbers is missing, and ``low <= middle <= high`` everywhere.

        Raises:
            FeedSilent: when the past holds no value at all.
            ValueError: when `n` is below 1.
        """
        ...
