"""Feeds and their chains as a config describes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ecorl import config as cfg
from ecorl.carbon.chain import FeedChain
from ecorl.carbon.feeds import electricity_maps, uk, watttime
from ecorl.carbon.feeds.electricity_maps import ElectricityMapsFeed
from ecorl.carbon.feeds.http import read_key
from ecorl.carbon.feeds.local import ConstantFeed, ReplayFeed, SyntheticFeed
from ecorl.carbon.feeds.protocol import Feed
from ecorl.carbon.feeds.uk import UkCarbonIntensityFeed
from ecorl.carbon.feeds.watttime import WattTimeFeed
from ecorl.carbon.traces.reading import read_trace
from ecorl.errors import ConfigError, DataError
from ecorl.grid import AverageIntensity, Basis, MarginalIntensity, Scope

FROM_ACCOUNTING = "accounting"
"""Name of the feed that tells ``accounting.intensity_g_per_kwh``."""


@dataclass(frozen=True, slots=True)
class FeedChains:
    """The chains of a run.

    Attributes:
        average: of average intensities; there always is one.
        marginal: of marginal ones; None without such a feed.
    """

    average: FeedChain[AverageIntensity]
    marginal: FeedChain[MarginalIntensity] | None


def build_chains(config: cfg.Config, began_s: float) -> FeedChains:
    """Make the chains of a config.

    Args:
        config: the run's.
        began_s: when the run began, s since 1970: replayed and made-up time begins then.

    Raises:
        ConfigError: for a feed whose key, place or file cannot be used.
        MissingToolError: when a feed's package is missing.
    """
    average: list[Feed[AverageIntensity]] = []
    marginal: list[Feed[MarginalIntensity]] = []
    for number, one in enumerate(config.carbon.feeds):
        key = f"carbon.feeds.{number}"
        if isinstance(one, cfg.WattTimeFeedConfig):
            marginal.append(_named(_watttime(one, key), one.name))
        else:
            average.append(_named(_BUILDERS[type(one)](one, key, began_s), one.name))
    if not average:
        a = config.accounting
        average.append(ConstantFeed(a.intensity_g_per_kwh, a.origin, name=FROM_ACCOUNTING))
    stale_after_s = config.carbon.stale_after_s
    return FeedChains(
        FeedChain(average, stale_after_s),
        FeedChain(marginal, stale_after_s) if marginal else None,
    )


def _named(feed: Any, name: str) -> Any:
    """The feed under the name that the config gives it."""
    feed.info = replace(feed.info, name=name)
    return feed


def _constant(one: cfg.ConstantFeedConfig, key: str, began_s: float) -> Feed[AverageIntensity]:
    return ConstantFeed(one.g_per_kwh, one.source, Scope(one.scope), Basis(one.basis))


def _synthetic(one: cfg.SyntheticFeedConfig, key: str, began_s: float) -> Feed[AverageIntensity]:
    return SyntheticFeed(
        one.low_g_per_kwh, one.high_g_per_kwh, one.utc_offset_h, one.speed, began_s
    )


def _replay(one: cfg.ReplayFeedConfig, key: str, began_s: float) -> Feed[AverageIntensity]:
    path = one.path.expanduser()
    if not path.is_file():
        raise ConfigError(f"{key}.path", str(one.path), "a file that can be read")
    try:
        trace = read_trace(path, None if one.scope is None else Scope(one.scope))
    except DataError as error:
        raise ConfigError(f"{key}.path", str(one.path), f"a trace ({error})") from error
    if one.source is not None:
        trace = replace(trace, factors=one.source)
    series = trace.series
    starts_at_s = series.start_s if one.starts_at is None else one.starts_at.timestamp()
    if not series.start_s <= starts_at_s < series.end_s:
        raise ConfigError(
            f"{key}.starts_at", str(one.starts_at), f"a time within the trace {one.path}"
        )
    feed = ReplayFeed(trace, starts_at_s, began_s, one.speed, one.delay_s)
    if one.source is not None:
        feed.info = replace(feed.info, source=one.source)
    return feed


def _uk(one: cfg.UkFeedConfig, key: str, began_s: float) -> Feed[AverageIntensity]:
    return _at(
        key, lambda: UkCarbonIntensityFeed(one.region, base_url=one.base_url or uk.PUBLIC_URL)
    )


def _electricity_maps(
    one: cfg.ElectricityMapsFeedConfig, key: str, began_s: float
) -> Feed[AverageIntensity]:
    return _at(
        key,
        lambda: ElectricityMapsFeed(
            one.zone,
            read_key(electricity_maps.KEY_VARIABLE, one.key_file),
            scope=Scope(one.scope),
            with_mix=one.with_mix,
            base_url=one.base_url or electricity_maps.PUBLIC_URL,
        ),
    )


def _watttime(one: cfg.WattTimeFeedConfig, key: str) -> Feed[MarginalIntensity]:
    def make() -> WattTimeFeed:
        variable = watttime.USER_VARIABLE
        user = one.user or os.environ.get(variable, "").strip()
        if not user:
            raise ConfigError("user", None, f"the name of an account, here or in {variable}")
        password = read_key(watttime.KEY_VARIABLE, one.key_file)
        base_url = one.base_url or watttime.PUBLIC_URL
        return WattTimeFeed(one.region, user, password, base_url=base_url)

    return _at(key, make)


_BUILDERS: Mapping[type, Callable[[Any, str, float], Feed[AverageIntensity]]] = {
    cfg.ConstantFeedConfig: _constant,
    cfg.SyntheticFeedConfig: _synthetic,
    cfg.ReplayFeedConfig: _replay,
    cfg.UkFeedConfig: _uk,
    cfg.ElectricityMapsFeedConfig: _electricity_maps,
}

_Made = TypeVar("_Made")


def _at(key: str, make: Callable[[], _Made]) -> _Made:
    """Make a feed; the key of a mistake is then that of the whole config."""
    try:
        return make()
    except ConfigError as error:
        if error.key.isupper():  # a variable of the environment
            raise ConfigError(error.key, error.value, f"{error.allowed}, for {key}") from error
        raise ConfigError(f"{key}.{error.key}", error.value, error.allowed) from error
