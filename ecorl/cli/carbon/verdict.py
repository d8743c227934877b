"""One sentence about the grid now, and what a run would do about it."""

from __future__ import annotations

from ecorl.carbon.chain import Refusal
from ecorl.cli.carbon.asking import GridNow
from ecorl.cli.carbon.times import length, moment
from ecorl.control import Why
from ecorl.grid import Intensity, MarginalIntensity, provenance_label

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
