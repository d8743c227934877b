"""Emissions and pauses on the terminal, as lines."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.grid import provenance_label
from ecorl.report.carbon_verdict import timing_words
from ecorl.report.energy.carbon_model import (
    CarbonColumn,
    FeedFacts,
    Footprint,
    IntensityFacts,
    PauseSummary,
    SoftwareCarbonIntensity,
)
from ecorl.report.energy.causes import CAUSES
from ecorl.report.energy.model import Cause
from ecorl.report.render.carbon_tables import carbon_lead, choice_cells, pauses_lead, small_unit
from ecorl.report.render.lines import GAP, aligned, wrapped
from ecorl.report.render.numbers import MISSING, bounded, count, figure, share

_MAX_CHOICES = 20
"""Decisions that are listed: the newest."""


def carbon_lines(footprint: Footprint, width: int) -> list[str]:
    """What the energy emitted by cause, a column for each kind of intensity and provenance.

    Args:
        footprint: of the run.
        width: columns of the terminal.
    """
    columns = footprint.columns
    if not columns:
        return []
    lines: list[str] = []
    while columns:
        n = len(columns)
        # As many columns side by side as the terminal is wide.
        while n > 1 and max(map(len, _block(columns[:n]))) > width:
            n -= 1
        lines += _block(columns[:n])
        columns = columns[n:]
    lines += wrapped(carbon_lead(footprint), width)
    for facts in footprint.intensities:
        for feed in facts.feeds:
            lines += wrapped(_feed(facts, feed), width, rest="    ")
    for sci in footprint.sci:
        lines += wrapped(_sci(sci), width, rest="    ")
    return lines


def _block(columns: Sequence[CarbonColumn]) -> list[str]:
    """Emissions by cause of some columns."""
    heads = [
        ["", *("simulated card" if c.simulated else "" for c in columns)],
        ["", *(c.title.removeprefix("simulated card, ") for c in columns)],
        ["", *(c.origin for c in columns)],
        ["", *(f"g{c.gas}" for c in columns)],
    ]
    rows = [head for head in heads if any(head)]
    rows.append(["all", *(bounded(c.emitted.carbon_g, c.at_least, ">=") for c in columns)])
    for cause in CAUSES:
        if any(cause in c.by_cause for c in columns):
            rows.append([f"  {cause}", *(_cell(c, cause) for c in columns)])
    if any(c.is_incomplete for c in columns):
        missing = [figure(c.emitted.unknown_j) if c.is_incomplete else "none" for c in columns]
        rows.append(["missing for, J", *missing])
    rows.append(["CUE, kg/kWh", *(figure(c.cue_kg_per_kwh) for c in columns)])
    return aligned(rows, indent=GAP)


def _cell(c: CarbonColumn, cause: Cause) -> str:
    found = c.by_cause.get(cause)
    return "none" if found is None else figure(found.carbon_g)


def _feed(facts: IntensityFacts, f: FeedFacts) -> str:
    span = figure(f.lowest_g_per_kwh)
    if f.lowest_g_per_kwh != f.highest_g_per_kwh:
        span = f"{span} to {figure(f.highest_g_per_kwh)}, mean {figure(f.mean_g_per_kwh)}"
    estimated = ", not estimated" if f.is_estimated is False else ""
    return (
        f"{facts.kind}: {f.feed} for {share(f.share)} of the run time, {span} {f.gas} "
        f"({provenance_label(f.provenance, f.is_estimated)}), {f.scope.replace('_', '-')} "
        f"emissions, {f.basis}-based{estimated}; factors: {f.factors}"
    )


def _sci(s: SoftwareCarbonIntensity) -> str:
    """Software carbon intensity of one kind, by functional unit."""
    told = []
    for name, value in (("an output token", s.per_token_g), (f"a {s.sequence}", s.per_sequence_g)):
        factor, unit = small_unit([value])
        if value is not None:
            told.append(f"{bounded(value * factor, s.at_least)} {unit}{s.gas} {name}")
    told.append(f"{bounded(s.per_run_g, s.at_least)} g{s.gas} this run")
    part = ", operational part only" if s.embodied_g is None else ""
    return f"SCI, {s.kind} ({s.provenance}){part}: {', '.join(told)}"


def pauses_lines(pauses: PauseSummary | None, width: int, choices: str = "") -> list[str]:
    """How the run waited, and the newest decisions.

    Args:
        pauses: None where nothing was decided.
        width: columns of the terminal.
        choices: a sentence on how often each gear was chosen; nothing where none was.
    """
    if pauses is None:
        return []
    lines = wrapped(pauses_lead(pauses), width)
    for o in pauses.outcomes:
        told = [
            f"{figure(o.start_g_per_kwh)} at the begin of the run",
            f"mean {figure(o.trained_g_per_kwh)} while it went on",
            f"{figure(o.paused_g_per_kwh)} while it was paused",
        ]
        lines += wrapped(
            f"{o.kind} intensity, g{o.gas}/kWh ({o.provenance}): {', '.join(told)}",
            width,
            rest="    ",
        )
        if o.net_at_mean_g is not None:
            lines += wrapped(timing_words(o), width, rest="    ")
    lines += wrapped(choices, width) if choices else []
    lines += _choices(pauses, width)
    return lines


def _choices(pauses: PauseSummary, width: int) -> list[str]:
    shown: Sequence[tuple[str, ...]] = [choice_cells(row) for row in pauses.choices[-_MAX_CHOICES:]]
    lines: list[str] = []
    prices = [p for row in pauses.choices if (p := row.choice.price_g_per_step) is not None]
    if prices:
        factor, unit = small_unit(prices)
        low, high = figure(factor * min(prices)), figure(factor * max(prices))
        told = low if low == high else f"{low} to {high}"
        lines += wrapped(
            f"the price that decisions go by: a step less saves {told} {unit}CO2e (modelled)", width
        )
    if len(pauses.choices) > len(shown):
        n = len(pauses.choices) - len(shown)
        lines += wrapped(f"{count(n)} decisions before these: see the page", width)
    asked = [_what(command, gear, workers) for _, command, gear, workers, *_ in shown]
    size = max(map(len, asked), default=0)
    for what, (when, _, _, _, why, _, feed, *_, reason) in zip(asked, shown, strict=True):
        start = f"  {when}  {what:<{size}}  "
        by = "" if feed == MISSING else f" (by {feed})"
        lines += wrapped(f"{why}: {reason}{by}", width, start)
    return lines


def _what(command: str, gear: str, workers: str) -> str:
    """A decision with its gear and width, where it names them, e.g. ``run FP8 x 2``."""
    told = [command, *([] if gear == MISSING else [gear])]
    return " ".join([*told, *([] if workers == MISSING else [f"x {workers}"])])
