"""What a run knows of the grid: its feeds are asked, and what counts goes into the record."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ecorl.carbon.building import build_chains
from ecorl.carbon.chain import FeedAnswer, FeedChain
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.listener import Heard, Listener
from ecorl.carbon.outlook import outlook, providers_forecast, series_of
from ecorl.carbon.pue import read_pue
from ecorl.carbon.series import Series
from ecorl.config import Config
from ecorl.errors import ConfigError, DataError
from ecorl.grid import AverageIntensity, Intensity, MarginalIntensity
from ecorl.ledger.encoding import ControlRecord
from ecorl.records import FaultKind
from ecorl.units import carbon_g

FIRST_ANSWER_S = 30.0
"""How long a start waits for the feeds' first answer, s. Invented: longer than a feed's own limits,
short beside any wait for a clean window."""

CLOCK_JUMP_S = 60.0
"""From which difference on a wall clock has jumped, s. Invented: far above what a clock that is
kept in step is moved by at once."""

Tell = Callable[[FaultKind, str, str], None]
"""Records a fault: its kind, what it is about, and one sentence."""


class GridWatch:
    """Asks the feeds of a run on threads of its own, and records what counts.

    Args:
        config: the run's.
        record: the control path's part of the run's record.
        tell: records a fault.
        began_s: when the run began, s since 1970.
        wall: the wall clock, s since 1970.

    Raises:
        ConfigError: for a feed or a PUE file that cannot be used.
        MissingToolError: when a feed's package is missing.
    """

    def __init__(
        self,
        config: Config,
        record: ControlRecord,
        tell: Tell,
        began_s: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._record, self._tell, self._wall = record, tell, wall
        self._pue_s = _pue_series(config)
        self._pue = config.accounting.pue
        self._chains = chains = build_chains(config, began_s)
        is_marginal = config.carbon.waits_for == "marginal"
        self._wanted = MarginalIntensity if is_marginal else AverageIntensity
        self._plans = config.carbon.control.controller is not None
        self._forecasts = self._plans or config.carbon.threshold_percentile is not None
        self._lock = threading.Lock()
        self._forecast: Forecast | None = None
        self._past: Series | None = None
        self._day_s = 86400.0
        self._passed_over: dict[type[Intensity], frozenset[tuple[str, str]]] = {}
        self._counted: dict[type[Intensity], Intensity | None] = {}
        self._ahead_s = wall() - time.monotonic()
        every_s = config.carbon.recheck_s

        def listen(kind: type[Intensity], chain: FeedChain[Any]) -> Listener[Any]:
            return Listener(chain, every_s, partial(self._take_over, kind), wall=wall)

        self._listeners: dict[type[Intensity], Listener[Any]] = {}
        self._listeners[AverageIntensity] = listen(AverageIntensity, chains.average)
        if chains.marginal is not None:
            self._listeners[MarginalIntensity] = listen(MarginalIntensity, chains.marginal)
        self._started_s: float | None = None

    def start(self) -> None:
        """Begin to ask the feeds."""
        self._started_s = time.monotonic()
        for start_s, pue in self._pue_s:
            self._record.pue(start_s, pue)
        for listener in self._listeners.values():
            listener.start()

    def close(self) -> None:
        """Ask no more; safe to call twice."""
        for listener in self._listeners.values():
            listener.close()

    def heard(self, kind: type[Intensity] | None = None) -> Heard[Intensity]:
        """What is known of the intensity now; what no longer counts is recorded as unknown.

        Args:
            kind: `AverageIntensity` or `MarginalIntensity`; None: that which is waited for.
        """
        kind = kind or self._wanted
        found = self._listeners[kind].heard()
        if found.value is None and self._is_answered(kind):
            self._count(kind, None, found.why)
        return Heard(found.value, found.why)

    @property
    def forecast(self) -> Forecast | None:
        """The newest forecast of the intensity that is waited for, or None."""
        with self._lock:
            return self._forecast

    @property
    def past(self) -> tuple[Series | None, float]:
        """What the feed whose value counts has told so far, and the length of its day, s.

        The past is None before the first answer, and where nothing is planned from it.
        """
        with self._lock:
            return self._past, self._day_s

    @property
    def is_asking(self) -> bool:
        """Whether the feeds may still answer for the first time."""
        began_s = self._started_s
        waited_s = 0.0 if began_s is None else time.monotonic() - began_s
        return not self._is_answered(self._wanted) and waited_s < FIRST_ANSWER_S

    def _is_answered(self, kind: type[Intensity]) -> bool:
        """Whether the feeds of a kind have been asked, be it that they answered *unknown*."""
        with self._lock:
            return kind in self._counted

    def grams_per_joule(self) -> float | None:
        """What a joule of the machines emits now, gCO2e/J by the average intensity and the PUE."""
        value, pue = self.heard(AverageIntensity).value, self.pue(self._wall())
        if value is None or pue is None:
            return None
        return carbon_g(1.0, pue, value.g_per_kwh)

    def pue(self, now_s: float) -> float | None:
        """The power usage effectiveness at a time; None where the run's file has none yet.

        Args:
            now_s: time, s since 1970.
        """
        if not self._pue_s:
            return self._pue
        number = bisect.bisect_right([start_s for start_s, _ in self._pue_s], now_s) - 1
        return None if number < 0 else self._pue_s[number][1]

    # ------------------------------------------------------------ on a listener's thread

    def _take_over(self, kind: type[Intensity], answer: FeedAnswer[Intensity]) -> None:
        self._check_clock()
        passed_over = frozenset((r.feed, r.reason) for r in answer.refusals)
        for refusal in answer.refusals:
            if (refusal.feed, refusal.reason) not in self._passed_over.get(kind, frozenset()):
                told = f"{refusal.reason}: {refusal.detail}"
                self._tell(FaultKind.FEED_PASSED_OVER, refusal.feed, told)
        self._passed_over[kind] = passed_over
        if kind is self._wanted and self._forecasts:
            self._look_ahead(answer)
        self._count(kind, answer.value, "no feed has a value that counts")

    def _look_ahead(self, answer: FeedAnswer[Intensity]) -> None:
        """Have what is coming forecast, for the percentile that is waited for."""
        if answer.value is None:
            return
        asked = (answer.value.feed, answer.asked_s)
        if self._wanted is MarginalIntensity and self._chains.marginal is not None:
            self._look_from(self._chains.marginal, *asked)
        else:
            self._look_from(self._chains.average, *asked)

    def _look_from(self, chain: FeedChain[Any], feed_name: str, asked_s: float) -> None:
        if not self._plans:
            found = outlook(chain, feed_name, asked_s)
            with self._lock:
                self._forecast = found.forecast
            return
        # A plan makes its own forecast from the past, unless the provider has one.
        forecast = providers_forecast(chain, feed_name, asked_s)
        told = chain.past(feed_name)
        info = chain.feed(feed_name).info
        past = series_of(told, info.interval_s) if told and not info.is_stated else None
        with self._lock:
            self._forecast, self._past, self._day_s = forecast, past, info.day_s

    def _count(self, kind: type[Intensity], value: Intensity | None, why: str | None) -> None:
        """Record what counts from now on, where it is something else than before."""
        with self._lock:
            is_first = kind not in self._counted
            before = self._counted.get(kind)
            self._counted[kind] = value
        if not is_first and _is_same(before, value):
            return
        self._record.intensity(kind, value)
        name = "marginal" if kind is MarginalIntensity else "average"
        if value is None:
            self._tell(FaultKind.INTENSITY_UNKNOWN, name, why or "nothing is known")
        elif before is None and not is_first:
            told = f"{value.feed} tells {value.g_per_kwh:g} {value.gas}"
            self._tell(FaultKind.INTENSITY_KNOWN, name, told)

    def _check_clock(self) -> None:
        """Note when the wall clock has jumped against the one that never does."""
        ahead_s = self._wall() - time.monotonic()
        jump_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        if abs(jump_s) >= CLOCK_JUMP_S:
            told = (
                f"the wall clock jumped by {jump_s:+.0f} s; times of the record are by the old one"
            )
            self._tell(FaultKind.CLOCK_JUMPED, "wall clock", told)


def _is_same(before: Intensity | None, value: Intensity | None) -> bool:
    """Whether a feed told the same once more."""
    if before is None or value is None:
        return before is value
    return replace(before, fetched_s=value.fetched_s) == value


def _pue_series(config: Config) -> list[tuple[float, float]]:
    path = config.accounting.pue_csv
    if path is None:
        return []
    try:
        return read_pue(path.expanduser())
    except DataError as error:
        allowed = f"a CSV of time and PUE ({error})"
        raise ConfigError("accounting.pue_csv", str(path), allowed) from error
