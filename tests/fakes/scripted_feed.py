"""A feed that answers what it is told to: values, errors, or nothing for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.errors import FeedSilent
from ecorl.grid import AverageIntensity, Basis, Gas, Scope
from ecorl.records import Provenance

HOUR_S = 3600.0


def average(feed="a", start_s=0.0, g_per_kwh=100.0, interval_s=HOUR_S, fetched_s=None):
    """A value of a feed."""
    return AverageIntensity(
        feed, start_s, interval_s, g_per_kwh, Gas.CO2E, Basis.LOCATION, Scope.LIFE_CYCLE,
        "made up", None, start_s if fetched_s is None else fetched_s, Provenance.PUBLISHED,
    )  # fmt: skip


class ScriptedFeed:
    """Gives its answers in their order, and nothing after them.

    Args:
        name: of the feed.
        answers: a value, an error to raise, or what makes one of the time.
        history: values of earlier intervals, or an error.
    """

    def __init__(
        self,
        name: str,
        answers: Iterable[AverageIntensity | Exception | Callable[[float], AverageIntensity]] = (),
        history: Iterable[AverageIntensity] | Exception = (),
    ) -> None:
        self.info = FeedInfo(name, "made up", HOUR_S)
        self.answers, self._history = deque(answers), history
        self.asked_s: list[float] = []

    def read(self, now_s):
        self.asked_s.append(now_s)
        if not self.answers:
            raise FeedSilent(f"{self.info.name} has nothing to say")
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer(now_s) if callable(answer) else answer

    def history(self, start_s, end_s):
        if isinstance(self._history, Exception):
            raise self._history
        return tuple(v for v in self._history if start_s <= v.start_s and v.end_s <= end_s)

    def forecast(self, now_s):
        return None
