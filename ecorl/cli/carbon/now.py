"""Shows what the feeds say now, for ``ecorl carbon now``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from ecorl.carbon.chain import FeedAnswer, Refusal
from ecorl.cli.carbon.asking import GridNow
from ecorl.cli.carbon.times import length, moment, paragraph, span, utc_text
from ecorl.control import Why
from ecorl.grid import AverageIntensity, Intensity, MarginalIntensity, Scope, provenance_label
from ecorl.report.render.numbers import share

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
