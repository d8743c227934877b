"""Asks the feeds of a config once, and sets what they say against its threshold."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from ecorl.carbon.building import FeedChains, build_chains
from ecorl.carbon.chain import FeedAnswer, FeedChain
from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.outlook import Outlook, outlook, renewable_outlook
from ecorl.cli.output import make_console, say
from ecorl.config import Config
from ecorl.control import GearChoice
from ecorl.controllers.protocol import Seen
from ecorl.controllers.waiting import decide, threshold
from ecorl.grid import AverageIntensity, Intensity, MarginalIntensity
from ecorl.runtime.control.governor import waiting_rule

Kind = TypeVar("Kind", bound=Intensity)


@dataclass(frozen=True, slots=True)
class GridNow:
    """What the feeds say, and what a run would do about it.

    Attributes:
        config: whose feeds were asked.
        infos: the feeds by their names.
        average: the answer of the average chain.
        marginal: that of the marginal one; None without such feeds.
        outlook: of the intensity that is waited for; None where it was not asked for, or that
            intensity is unknown.
        renewable: forecast of its renewable share, 0 to 1; None as above.
        choice: what a run that starts now would do.
        threshold_g_per_kwh: at or below it training would run; None without one.
    """

    config: Config
    infos: dict[str, FeedInfo]
    average: FeedAnswer[AverageIntensity]
    marginal: FeedAnswer[MarginalIntensity] | None
    outlook: Outlook | None
    renewable: Forecast | None
    choice: GearChoice
    threshold_g_per_kwh: float | None

    @property
    def awaited(self) -> FeedAnswer[AverageIntensity] | FeedAnswer[MarginalIntensity]:
        """The answer about the intensity that a run would wait for."""
        if self.config.carbon.waits_for == "marginal" and self.marginal is not None:
            return self.marginal
        return self.average

    @property
    def is_known(self) -> bool:
        """Whether each intensity that the config has feeds for is known."""
        answers = (self.average, self.marginal)
        return all(answer is None or answer.value is not None for answer in answers)


def ask_grid(config: Config, *, looks_ahead: bool) -> GridNow:
    """Ask the feeds of a config once; takes as long as they do.

    A recording and a made-up day begin to play now.

    Args:
        config: of a run.
        looks_ahead: whether a forecast is asked for in any case; else it is where the threshold is
            a percentile of it.

    Raises:
        ConfigError: for a feed whose key, place or file cannot be used.
        MissingToolError: when a feed's package is missing.
    """
    rule = waiting_rule(config)
    with open_chains(config) as chains:
        average = answer_of(chains.average)
        marginal = None if chains.marginal is None else answer_of(chains.marginal)
        ahead, renewable = None, None
        if looks_ahead or rule.percentile is not None:
            if config.carbon.waits_for == "marginal" and chains.marginal and marginal:
                ahead, renewable = _look_ahead(chains.marginal, marginal, looks_ahead)
            else:
                ahead, renewable = _look_ahead(chains.average, average, looks_ahead)
        every = chains.average.feeds + (chains.marginal.feeds if chains.marginal else ())
        infos = {feed.info.name: feed.info for feed in every}
    awaited = marginal if config.carbon.waits_for == "marginal" and marginal else average
    seen = Seen(awaited.value, None if ahead is None else ahead.forecast)
    # A forecast with gaps may give no percentile.
    limit = threshold(rule, awaited.asked_s, seen)
    return GridNow(
        config=config,
        infos=infos,
        average=average,
        marginal=marginal,
        outlook=ahead,
        renewable=renewable,
        choice=decide(rule, awaited.asked_s, seen),
        threshold_g_per_kwh=limit if limit is not None and math.isfinite(limit) else None,
    )


@contextlib.contextmanager
def open_chains(config: Config) -> Iterator[FeedChains]:
    """The chains of a config.

    Args:
        config: of a run.

    Raises:
        ConfigError: for a feed whose key, place or file cannot be used.
        MissingToolError: when a feed's package is missing.
    """
    chains = build_chains(config, time.time())
    console = make_console(stderr=True)
    if console.is_terminal and config.carbon.feeds:
        say(f"asking {', '.join(feed.name for feed in config.carbon.feeds)} ...", console)
    yield chains


def answer_of(chain: FeedChain[Kind]) -> FeedAnswer[Kind]:
    """One answer of a chain that knows its feeds' last weeks, so that it can judge them.

    Args:
        chain: of a config.
    """
    chain.recall(time.time())
    return chain.ask(time.time())


def _look_ahead(
    chain: FeedChain[Kind], answer: FeedAnswer[Kind], with_share: bool
) -> tuple[Outlook | None, Forecast | None]:
    """Forecasts of the intensity, and of the renewable share if that is asked for."""
    if answer.value is None:
        return None, None
    name, now_s = answer.value.feed, answer.asked_s
    share = renewable_outlook(chain, name, now_s) if with_share else None
    return outlook(chain, name, now_s), share
