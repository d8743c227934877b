"""What a feed of carbon intensities is, and what it can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.grid import Intensity

Kind = TypeVar("Kind", bound=Intensity, covariant=True)


@dataclass(frozen=True, slots=True)
class FeedInfo:
    """What a feed is, for people.

    Attributes:
        name: as its readings name it.
        source: who gives the figures, and of which place, in one phrase.
        interval_s: length of the intervals that its values hold for, s.
        licence: under which its figures are given; None where nobody says.
        is_stated: whether the run's user stated the figure, so that nobody else judges it.
        day_s: how long a day of the grid takes, s: less where time is played faster.
    """

    name: str
    source: str
    interval_s: float
    licence: str | None = None
    is_stated: bool = False
    day_s: float = 86400.0


class Feed(Protocol, Generic[Kind]):
    """A source of intensities of one kind: `AverageIntensity` or `MarginalIntensity`.

    Calls may take seconds, so that a thread of its own makes them; none is made of two threads at
    a time. A feed hands on what it was told: whether a value is fresh and can be believed is for
    `FeedChain` to say.
    """

    info: FeedInfo

    def read(self, now_s: float) -> Kind:
        """The newest value that the source has.

        Args:
            now_s: time, s since 1970.

        Raises:
            FeedError: when there is none.
        """
        ...

    def history(self, start_s: float, end_s: float) -> tuple[Kind, ...]:
        """Values of earlier intervals, in the order of time; what is missing is left out.

        Args:
            start_s: begin of the first interval, s since 1970, at the earliest.
            end_s: end of the last one, at the latest.

        Raises:
            FeedError: when the source does not answer.
        """
        ...

    def forecast(self, now_s: float) -> Forecast | None:
        """The source's own forecast from now on, or None where it has none.

        Args:
            now_s: time, s since 1970.

        Raises:
            FeedError: when the source does not answer.
        """
        ...
