"""What the intensity will be, from the feed whose value counts: by its provider, or by its past."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ecorl.carbon.chain import FeedChain, Kind
from ecorl.carbon.feeds.local import Intervals
from ecorl.carbon.feeds.protocol import Feed
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool, continuation
from ecorl.carbon.series import Series
from ecorl.errors import FeedError, FeedSilent
from ecorl.grid import Intensity
from ecorl.kinds import Provenance

_SHARE = (0.0, 1.0)
_AGREES = 1e-6
"""How far a begin or a length may be off its interval, in intervals: times of replays round."""


def intensity(value: Intensity) -> float:
    """What an interval emits, g/kWh.

    Args:
        value: of the interval.
    """
    return value.g_per_kwh


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """What a feed's intensity will be, as far as that can be told.

    Attributes:
        feed: name of the feed.
        forecast: from the interval under way on, g/kWh; `Forecast.model` says whose it is. None
            where there is none.
        provenance: of the forecast: that of the feed's values where it is the provider's own, and
            modelled where it was computed here; None without one.
        reason: why there is no forecast, or why it is not the provider's own, in one line; None
            for a provider's own.
    """

    feed: str
    forecast: Forecast | None
    provenance: Provenance | None = None
    reason: str | None = None


def outlook(chain: FeedChain[Kind], feed_name: str, now_s: float) -> Outlook:
    """Forecast the intensity of one feed from now on.

    The provider's own forecast goes first. Without one the pool of simple rules goes on with what
    the chain remembers of the feed; a recording and a made-up day, whose hours need not be those of
    the clock, only ever forecast themselves.

    It asks the feed, which may take seconds: to be called on the thread that asks the chain, after
    `FeedChain.recall` and an answer of the chain.

    Args:
        chain: of the feeds.
        feed_name: name of the feed whose value counts.
        now_s: time, s since 1970.

    Raises:
        KeyError: when the chain has no feed of that name.
    """
    told = chain.past(feed_name)
    feed = chain.feed(feed_name)
    if feed.info.is_stated:
        return Outlook(feed_name, None, reason="a stated figure says nothing about the next hours")
    if not told:
        return Outlook(feed_name, None, reason=f"{feed.info.source} has told no value so far")
    own, reason = _own(feed, now_s)
    if own is not None:
        provenance = told[-1].provenance
        if own.model == RecencyAdaptivePool.name:
            provenance = Provenance.MODELLED
        elif told[-1].is_provided:
            provenance = Provenance.PUBLISHED
        return Outlook(feed_name, own, provenance)
    if not told[-1].is_provided:
        return Outlook(feed_name, None, reason=reason)
    try:
        made = _from_past(told, feed.info.interval_s, now_s)
    except FeedSilent as error:
        return Outlook(feed_name, None, reason=f"{reason}; {error}")
    return Outlook(feed_name, made, Provenance.MODELLED, reason)


def renewable_outlook(chain: FeedChain[Kind], feed_name: str, now_s: float) -> Forecast | None:
    """Forecast the renewable share of one feed from now on, by the pool; asks nobody.

    Args:
        chain: of the feeds, on the thread that asks it.
        feed_name: name of the feed whose value counts.
        now_s: time, s since 1970.

    Returns:
        The share, 0 to 1, modelled; None where the feed tells too few mixes, or its hours need not
        be those of the clock.

    Raises:
        KeyError: when the chain has no feed of that name.
    """
    told = chain.past(feed_name)
    feed = chain.feed(feed_name)
    if not told or not told[-1].is_provided:
        return None
    try:
        return _from_past(told, feed.info.interval_s, now_s, _share_of, _SHARE)
    except FeedSilent:
        return None


def providers_forecast(chain: FeedChain[Kind], feed_name: str, now_s: float) -> Forecast | None:
    """The forecast of a feed's provider, or None where it has none or does not answer.

    It asks the feed, as `outlook` does.

    Args:
        chain: of the feeds.
        feed_name: name of the feed whose value counts.
        now_s: time, s since 1970.

    Raises:
        KeyError: when the chain has no feed of that name.
    """
    told = chain.past(feed_name)
    if not told or not told[-1].is_provided:
        return None
    feed = chain.feed(feed_name)
    return None if feed.info.is_stated else _own(feed, now_s)[0]


def _own(feed: Feed[Kind], now_s: float) -> tuple[Forecast | None, str]:
    """The provider's forecast, or why there is none."""
    try:
        return feed.forecast(now_s), f"{feed.info.source} has no forecast of its own"
    except FeedError as error:
        return None, str(error)


def _from_past(
    told: Sequence[Kind],
    step_s: float,
    now_s: float,
    signal: Callable[[Kind], float | None] = intensity,
    bounds: tuple[float, float] = (0.0, np.inf),
) -> Forecast:
    """The pool's forecast of a signal of what was told."""
    past = series_of(told, step_s, signal)
    first = Intervals(past.start_s, step_s).number(now_s)
    return replace(continuation(past, max(0, first), bounds), issued_s=now_s)


def series_of(
    told: Sequence[Kind], step_s: float, signal: Callable[[Kind], float | None] = intensity
) -> Series:
    """A signal over a feed's intervals; values of intervals that lie otherwise are missing.

    Args:
        told: values of one feed in the order of time, at least one.
        step_s: length of the feed's intervals, s.
        signal: what is taken of each; None: missing.
    """
    newest_s = told[-1].start_s
    found: dict[int, float] = {}
    for value in told:
        place = (value.start_s - newest_s) / step_s
        is_off = abs(place - round(place)) > _AGREES
        is_longer_or_shorter = abs(value.interval_s / step_s - 1.0) > _AGREES
        amount = signal(value)
        if not (is_off or is_longer_or_shorter or amount is None):
            found[round(place)] = amount
    first = min(found, default=0)
    values = np.full(1 - first, np.nan)
    for number, amount in found.items():
        values[number - first] = amount
    return Series(newest_s + first * step_s, step_s, values)


def _share_of(value: Intensity) -> float | None:
    return value.renewable_share
