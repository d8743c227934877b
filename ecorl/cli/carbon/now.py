"""Asks the feeds of a config once, and shows what they say, for ``ecorl carbon now``."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from ecorl.carbon.building import FeedChains, build_chains
from ecorl.carbon.chain import FeedAnswer, FeedChain, Refusal
from ecorl.carbon.feeds.protocol import FeedInfo
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.outlook import Outlook, outlook, renewable_outlook
from ecorl.cli.carbon.times import length, moment, paragraph, span, utc_text
from ecorl.cli.output import make_console, say
from ecorl.config import Config
from ecorl.control import GearChoice, Why
from ecorl.controllers.protocol import Seen
from ecorl.controllers.waiting import decide, threshold
from ecorl.grid import AverageIntensity, Intensity, MarginalIntensity, Scope, provenance_label
from ecorl.report.render.numbers import share
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


HOW_TO_FEED = (
    "No feed is configured, so that accounting.intensity_g_per_kwh counts. For Great Britain's "
    'grid add the two lines [[carbon.feeds]] and type = "uk" to the config; other types are '
    "electricity_maps, watttime, replay, synthetic and constant."
)
"""What a config without feeds is told."""


def verdict(grid: GridNow) -> str:
    """Say what the grid emits now, and whether training would run.

    Args:
        grid: what the feeds say.
    """
    value = grid.awaited.value
    if value is None:
        kind = "marginal " if grid.config.carbon.waits_for == "marginal" else ""
        return f"The {kind}intensity of the grid is unknown: {_unknown(grid)}."
    who = "The grid emits"
    if isinstance(value, MarginalIntensity):
        who = "One more kilowatt-hour emits"
    return f"{who} {value.g_per_kwh:.0f} {value.gas} ({origin(grid, value)}){_then(grid)}."


def origin(grid: GridNow, value: Intensity) -> str:
    """Where a value is from, and its provenance.

    Args:
        grid: what the feeds say.
        value: of one of them.
    """
    info = grid.infos[value.feed]
    source = f"{value.feed}, a stated figure" if info.is_stated else info.source
    return f"{source}, {provenance_label(value.provenance, value.is_estimated)}"


def limit_text(grid: GridNow) -> str:
    """The threshold in words, e.g. ``the threshold of 200``.

    Args:
        grid: with a threshold.
    """
    assert grid.threshold_g_per_kwh is not None
    text = f"the threshold of {grid.threshold_g_per_kwh:.0f}"
    c = grid.config.carbon
    if c.threshold_percentile is None:
        return text
    return f"{text} (percentile {c.threshold_percentile:g} of the coming {length(c.horizon_s)})"


def refusal_text(refusal: Refusal) -> str:
    """Why a feed was passed over.

    Args:
        refusal: of an answer.
    """
    return f"{refusal.feed}, {refusal.reason}: {refusal.detail}"


def _unknown(grid: GridNow) -> str:
    waits = grid.config.carbon.waits
    return "training would run, since a wait might never end" if waits else "nothing is waited for"


def _then(grid: GridNow) -> str:
    """What training would do, after a value that is known."""
    c, choice = grid.config.carbon, grid.choice
    if not c.waits:
        return "; no threshold is configured: training would run now"
    if choice.why is Why.UNKNOWN or grid.threshold_g_per_kwh is None:
        why = None if grid.outlook is None else grid.outlook.reason
        reason = "" if why is None else f" ({why})"
        return (
            f"; carbon.threshold_percentile takes a forecast, and there is none{reason}: training "
            "would run now"
        )
    if choice.why is Why.CLEAN:
        return f": at or below {limit_text(grid)}: training would run now"
    above = f": above {limit_text(grid)}"
    if choice.why is Why.WAITED:
        return f"{above}, but carbon.max_wait_s is {c.max_wait_s:g}: training would run now"
    if choice.why is Why.DEADLINE:
        return f"{above}, but carbon.soft_deadline leaves no time to wait: training would run now"
    longest = f"for {length(c.max_wait_s)} at most"
    if c.soft_deadline is not None:
        longest += f", and until {moment(c.soft_deadline.timestamp(), grid.awaited.asked_s)}"
    return f"{above}: training would wait, {longest}"


_SCOPES = {Scope.LIFE_CYCLE: "life cycle", Scope.DIRECT: "direct emissions of power stations"}
_ESTIMATED = {True: "yes", False: "no", None: "the feed does not say"}
_TOPIC_WIDTH = 14

_Answer = FeedAnswer[AverageIntensity] | FeedAnswer[MarginalIntensity]


def show_now(grid: GridNow, console: Console) -> None:
    """Print one block for each kind of intensity, then one sentence.

    Args:
        grid: what the feeds say.
        console: where to.
    """
    _show_block("average intensity", grid, grid.average, console)
    if grid.marginal is not None:
        _show_block("marginal intensity", grid, grid.marginal, console)
    paragraph(verdict(grid), console)
    if not grid.config.carbon.feeds:
        paragraph(HOW_TO_FEED, console)


def now_data(grid: GridNow) -> dict[str, Any]:
    """The same as plain data; what is missing is None.

    Args:
        grid: what the feeds say.
    """
    return {
        "average": _answer_data(grid, grid.average),
        "marginal": None if grid.marginal is None else _answer_data(grid, grid.marginal),
        "waits_for": grid.config.carbon.waits_for,
        "threshold_g_per_kwh": grid.threshold_g_per_kwh,
        "command": grid.choice.command,
        "why": grid.choice.why,
        "sentence": verdict(grid),
    }


def _show_block(title: str, grid: GridNow, answer: _Answer, console: Console) -> None:
    console.print(Text(title, style="bold"), soft_wrap=True)
    rows = [("value", "unknown")]
    if answer.value is not None:
        rows = _rows(grid, answer.value, answer.asked_s)
    rows += [("passed over", refusal_text(refusal)) for refusal in answer.refusals]
    for topic, text in rows:
        paragraph(text, console, f"  {topic:{_TOPIC_WIDTH}}")
    console.print()


def _rows(grid: GridNow, value: Intensity, now_s: float) -> list[tuple[str, str]]:
    """A topic and a text for each thing that is known of a value."""
    info = grid.infos[value.feed]
    rows = [
        ("value", f"{value.g_per_kwh:.4g} {value.gas}"),
        ("feed", value.feed),
        ("source", info.source),
        ("interval", span(value.start_s, value.end_s, now_s)),
        ("age", _age(value, now_s)),
        ("basis", f"{value.basis}-based"),
        ("scope", _SCOPES[value.scope]),
        ("factors", "as stated" if info.is_stated else value.factors),
        ("estimated", _ESTIMATED[value.is_estimated]),
        ("renewable", share(value.renewable_share) if value.mix else "unknown"),
        ("mix", _mix(value)),
        ("provenance", provenance_label(value.provenance, value.is_estimated)),
    ]
    if info.licence is not None:
        rows.append(("licence", info.licence))
    return rows


def _age(value: Intensity, now_s: float) -> str:
    if value.start_s > now_s:
        return f"begins in {length(value.start_s - now_s)}"
    if value.end_s > now_s:
        begun, left = length(now_s - value.start_s), length(value.end_s - now_s)
        return f"under way for {begun}, ends in {left}"
    return f"ended {length(now_s - value.end_s)} ago"


def _mix(value: Intensity) -> str:
    if not value.mix:
        return "unknown"
    parts = sorted(value.mix.items(), key=lambda part: -part[1])
    return ", ".join(f"{fuel} {share(amount)}" for fuel, amount in parts if amount > 0)


def _answer_data(grid: GridNow, answer: _Answer) -> dict[str, Any]:
    value = answer.value
    data = None
    if value is not None:
        data = asdict(value) | {
            "start": utc_text(value.start_s),
            "end": utc_text(value.end_s),
            "source": grid.infos[value.feed].source,
            "licence": grid.infos[value.feed].licence,
            "renewable_share": value.renewable_share,
        }
    return {
        "asked_s": answer.asked_s,
        "asked": utc_text(answer.asked_s),
        "value": data,
        "refusals": [asdict(refusal) for refusal in answer.refusals],
    }
