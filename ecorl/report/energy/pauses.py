"""How a run waited for a clean window, and what that brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ecorl.carbon.timeline import Emitted, IntensityTimeline
from ecorl.control import Command
from ecorl.controllers.waiting import paused_spans
from ecorl.ledger import ExecutionRow, GearChoiceRow, LedgerReader
from ecorl.records import weakest
from ecorl.report.energy.carbon_model import Footprint, IntensityFacts, PauseSummary, WaitOutcome
from ecorl.report.energy.emissions import IntensityKind, total_emitted
from ecorl.report.energy.evidence import Attribution, Evidence, paused_time_s
from ecorl.report.energy.footprint import mean_intensity
from ecorl.report.energy.model import Cause, EnergyPart
from ecorl.report.energy.readings import DeviceReadings, Span, common, device_spans, merged, minus
from ecorl.units import kwh_from_joules


def run_pauses(
    choices: Sequence[GearChoiceRow], spans: Mapping[int, Span]
) -> dict[int, list[Span]]:
    """When the run stood still by choice, by attempt, monotonic s, disjoint and in order.

    Args:
        choices: decisions of the record, in their order.
        spans: begin and end of each attempt.
    """
    found = paused_spans(choices, {attempt: span[1] for attempt, span in spans.items()})
    return {a: common(merged(own), [spans[a]]) for a, own in found.items() if a in spans}


def pause_summary(
    choices: Sequence[GearChoiceRow],
    evidence: Evidence,
    parts: Sequence[EnergyPart],
    footprint: Footprint,
) -> PauseSummary | None:
    """Sum up the decisions and the pauses of a run; None where nothing was decided.

    Args:
        choices: decisions of the record, in their order.
        evidence: what the ledger holds of the run.
        parts: its energy by device and cause, each with what it emitted.
        footprint: what all of it emitted.
    """
    if not choices:
        return None
    paused = evidence.pauses
    total_s = paused_time_s(paused)
    n = sum(len(own) for own in paused.values())
    timelines = evidence.grid.timelines
    by_kind = {IntensityKind.AVERAGE: timelines.average, IntensityKind.MARGINAL: timelines.marginal}
    outcomes = [
        _outcome(facts, timeline, choices, evidence, parts)
        for facts in footprint.intensities
        if n and (timeline := by_kind[facts.kind]) is not None
    ]
    return PauseSummary(
        n=n,
        total_s=total_s,
        paused_share=total_s / footprint.run_time_s if footprint.run_time_s > 0 else None,
        choices=tuple(choices),
        outcomes=tuple(one for one in outcomes if one is not None),
    )


def _outcome(
    facts: IntensityFacts,
    timeline: IntensityTimeline,
    choices: Sequence[GearChoiceRow],
    evidence: Evidence,
    parts: Sequence[EnergyPart],
) -> WaitOutcome | None:
    """What waiting brought by one kind of intensity; None where nothing is known of that."""
    if facts.provenance is None:
        return None
    own = [p for p in parts if not p.simulated]
    waits = [p for p in own if p.cause is Cause.PAUSED]
    trained = total_emitted(p.emissions.of(facts.kind) for p in own if p.cause is not Cause.PAUSED)
    paused = total_emitted(p.emissions.of(facts.kind) for p in waits)
    trained_g = None if trained is None else trained.carbon_g
    paused_g = None if paused is None else paused.carbon_g
    start = _start_g_per_kwh(timeline, choices, evidence.grid)
    at_start_g = _at(trained, start)
    at_mean_g = _at(trained, facts.mean_g_per_kwh)
    going = {a: minus([span], evidence.pauses.get(a, ())) for a, span in evidence.spans.items()}
    known = [p.provenance for p in own if p.provenance is not None]
    return WaitOutcome(
        kind=facts.kind,
        gas=facts.gas,
        provenance=weakest(facts.provenance, *known),
        start_g_per_kwh=start,
        trained_g_per_kwh=_mean_within(timeline, going, evidence.grid),
        paused_g_per_kwh=_mean_within(timeline, evidence.pauses, evidence.grid),
        trained_g=trained_g,
        trained_at_start_g=at_start_g,
        paused_g=paused_g,
        net_g=_net_g(at_start_g, trained_g, paused_g),
        unknown_j=sum(one.unknown_j for one in (trained, paused) if one is not None),
        at_most=any(p.energy_j is None or p.at_least for p in waits)
        or (paused is not None and paused.unknown_j > 0),
        mean_g_per_kwh=facts.mean_g_per_kwh,
        net_at_mean_g=_net_g(at_mean_g, trained_g, paused_g),
    )


def _at(trained: Emitted | None, g_per_kwh: float | None) -> float | None:
    """What energy whose emissions are known would have emitted at another intensity, g."""
    if trained is None or trained.carbon_g is None or g_per_kwh is None:
        return None
    return kwh_from_joules(trained.facility_j) * g_per_kwh


def _net_g(other_g: float | None, trained_g: float | None, paused_g: float | None) -> float | None:
    """What was saved against other emissions, the pauses counted, g; None where one is unknown."""
    if other_g is None or trained_g is None or paused_g is None:
        return None
    return other_g - trained_g - paused_g


def _start_g_per_kwh(
    timeline: IntensityTimeline, choices: Sequence[GearChoiceRow], grid: Attribution
) -> float | None:
    """The intensity at the begin of the run, or the first that was known before training began."""
    times_s = grid.windows()[0][:1].tolist()
    for row in choices:
        times_s += grid.windows({row.attempt: [(row.t_s, row.t_s)]})[0].tolist()
        if row.choice.command is not Command.PAUSE:
            break
    values = (timeline.at(t_s) for t_s in times_s)
    return next((value.g_per_kwh for value in values if value is not None), None)


def _mean_within(
    timeline: IntensityTimeline, spans: Mapping[int, Sequence[Span]], grid: Attribution
) -> float | None:
    """Mean intensity over some times, g/kWh; None where it is known for none of them."""
    return mean_intensity(timeline, timeline.times_s(*grid.windows(spans)).tolist())


def recorded_evidence(
    reader: LedgerReader,
    spans: dict[int, Span],
    executions: Sequence[ExecutionRow],
    readings: Sequence[DeviceReadings],
    grid: Attribution | None = None,
) -> Evidence:
    """Put together what a ledger holds of the run's energy.

    Args:
        reader: the run's ledger.
        spans: begin and end of each attempt, monotonic s.
        executions: of the whole run.
        readings: energy of each device in each attempt by its readings.
        grid: finds what energy emitted; None where no grams are asked for.
    """
    return Evidence(
        executions=executions,
        barriers=reader.barriers(),
        devices=reader.devices(),
        readings=readings,
        spans=spans,
        own_spans=device_spans(reader.node_spans(), spans),
        lost=reader.lost_nodes(),
        pauses=run_pauses(reader.choices(), spans),
        grid=Attribution() if grid is None else grid,
    )
