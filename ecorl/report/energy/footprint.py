"""Adds up what the energy of a run emitted, and says by which intensities."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ecorl.carbon.building import FROM_ACCOUNTING
from ecorl.carbon.timeline import Emitted, IntensityTimeline
from ecorl.grid import Basis, Gas, Intensity
from ecorl.records import Provenance, Stage, weakest
from ecorl.report.energy.carbon_model import (
    ROUNDING,
    CarbonColumn,
    FeedFacts,
    Footprint,
    IntensityFacts,
    PueFacts,
    SoftwareCarbonIntensity,
)
from ecorl.report.energy.causes import CAUSES, cause_of
from ecorl.report.energy.emissions import IntensityKind, total_emitted
from ecorl.report.energy.evidence import Attribution, Evidence
from ecorl.report.energy.model import Accounting, Cause, EnergyPart, Spending
from ecorl.report.energy.readings import length
from ecorl.report.energy.stages import provenance_order
from ecorl.units import kwh_from_joules

_SECONDS_AN_HOUR = 3600.0


def footprint(evidence: Evidence, spending: Spending) -> Footprint:
    """Add up the emissions of all parts of a run's energy.

    Args:
        evidence: what the ledger holds of the run.
        spending: its energy, each part with what it emitted.
    """
    run_time_s = length(evidence.spans.values())
    timelines = evidence.grid.timelines
    by_kind = {IntensityKind.AVERAGE: timelines.average, IntensityKind.MARGINAL: timelines.marginal}
    intensities = tuple(
        _intensity_facts(kind, timeline, evidence.grid, run_time_s)
        for kind, timeline in by_kind.items()
        if timeline is not None
    )
    columns = [
        column
        for simulated in (False, True)
        for facts in intensities
        for column in _columns(spending.parts, facts, simulated, is_lost=bool(evidence.lost))
    ]
    pue = _pue_facts(evidence.grid, run_time_s)
    own = total_emitted(p.emissions.average for p in spending.parts if not p.simulated)
    own_j = 0.0 if own is None else own.known_j + own.unknown_j
    return Footprint(
        intensities=intensities,
        pue=pue,
        run_time_s=run_time_s,
        columns=tuple(columns),
        sci=tuple(_sci(evidence, spending, facts, columns, run_time_s) for facts in intensities
                  if any(c.kind is facts.kind and _is_known(c) for c in columns)),
        renewable_share=own.renewable_j / own.mixed_j if own is not None and own.mixed_j else None,
        mixed_share=own.mixed_j / own_j if own is not None and own_j else None,
        is_constant=_is_constant(intensities[0], pue),
    )  # fmt: skip


def _is_known(column: CarbonColumn) -> bool:
    return not column.simulated and column.emitted.carbon_g is not None


def _is_constant(average: IntensityFacts, pue: PueFacts) -> bool:
    """Whether the config's constants counted all the time."""
    stated = [(f.feed, f.lowest_g_per_kwh == f.highest_g_per_kwh) for f in average.feeds]
    known = not average.unknown_s and not pue.unknown_s
    return known and stated == [(FROM_ACCOUNTING, True)] and pue.lowest == pue.highest


# ---------------------------------------------------------------- intensities and PUE


def gas_name(gases: Iterable[Gas]) -> str:
    """What grams are of, without the unit: ``CO2e``; of several gases ``CO2 or CO2e``."""
    names = sorted({gas.removeprefix("g").removesuffix("/kWh") for gas in gases})
    return " or ".join(names) or "CO2e"


def mean_intensity(timeline: IntensityTimeline, times_s: Sequence[float]) -> float | None:
    """Mean over the time for which the intensity is known, g/kWh; None when there is none.

    Args:
        timeline: of one kind of intensity.
        times_s: for how long each of its values counted, s; see `IntensityTimeline.times_s`.
    """
    pairs = list(zip(timeline.values, times_s, strict=False))
    known_s = math.fsum(time_s for _, time_s in pairs)
    if known_s <= 0:
        return None
    return math.fsum(value.g_per_kwh * time_s for value, time_s in pairs) / known_s


def _intensity_facts(
    kind: IntensityKind, timeline: IntensityTimeline, grid: Attribution, run_time_s: float
) -> IntensityFacts:
    times_s = timeline.times_s(*grid.windows()).tolist()
    groups: dict[tuple[object, ...], list[tuple[Intensity, float]]] = defaultdict(list)
    for value, time_s in zip(timeline.values, times_s, strict=False):
        if time_s > ROUNDING * run_time_s:
            key = (value.feed, value.gas, value.basis, value.scope, value.factors,
                   value.is_estimated, value.provenance)  # fmt: skip
            groups[key].append((value, time_s))
    feeds = sorted((_feed_facts(g, run_time_s) for g in groups.values()), key=lambda f: -f.time_s)
    unknown_s = times_s[-1] if times_s[-1] > ROUNDING * run_time_s else 0.0
    return IntensityFacts(
        kind=kind,
        feeds=tuple(feeds),
        provenance=weakest(*(f.provenance for f in feeds)) if feeds else None,
        gas=gas_name(f.gas for f in feeds),
        unknown_s=unknown_s,
        mean_g_per_kwh=mean_intensity(timeline, times_s),
    )


def _feed_facts(values: Sequence[tuple[Intensity, float]], run_time_s: float) -> FeedFacts:
    """Sum up values of one feed that are alike in all but time and figure."""
    first = values[0][0]
    time_s = math.fsum(t for _, t in values)
    figures = [value.g_per_kwh for value, _ in values]
    mean = math.fsum(value.g_per_kwh * t for value, t in values) / time_s
    return FeedFacts(
        feed=first.feed,
        gas=first.gas,
        basis=first.basis,
        scope=first.scope,
        factors=first.factors,
        is_estimated=first.is_estimated,
        provenance=first.provenance,
        time_s=time_s,
        share=time_s / run_time_s,
        lowest_g_per_kwh=min(figures),
        mean_g_per_kwh=mean,
        highest_g_per_kwh=max(figures),
    )


def _pue_facts(grid: Attribution, run_time_s: float) -> PueFacts:
    times_s = grid.timelines.average.pue_times_s(*grid.windows())
    known = {pue: t for pue, t in times_s.items() if pue is not None and t > ROUNDING * run_time_s}
    unknown_s = times_s.get(None, 0.0)
    if not known:
        return PueFacts(None, None, None, unknown_s)
    lowest, highest = min(known), max(known)
    mean = math.fsum(pue * t for pue, t in known.items()) / math.fsum(known.values())
    return PueFacts(lowest, lowest if lowest == highest else mean, highest, unknown_s)


# ---------------------------------------------------------------- grams


def _columns(
    parts: Sequence[EnergyPart], facts: IntensityFacts, simulated: bool, *, is_lost: bool
) -> list[CarbonColumn]:
    """A column per provenance of the grams, then all of several together."""
    if facts.provenance is None:
        return []
    groups: dict[Provenance, list[EnergyPart]] = defaultdict(list)
    own = [p for p in parts if p.simulated == simulated]
    for p in own:
        if p.energy_j is not None and p.provenance is not None:
            groups[weakest(p.provenance, facts.provenance)].append(p)
    lacks = any(p.at_least for p in own) or is_lost
    made = [
        _column(groups[p], facts, (p,), simulated, at_least=lacks and len(groups) == 1)
        for p in sorted(groups, key=provenance_order)
    ]
    if len(groups) > 1:
        every = [p for group in groups.values() for p in group]
        made.append(_column(every, facts, tuple(groups), simulated, at_least=lacks))
    return made


def _column(
    parts: Sequence[EnergyPart],
    facts: IntensityFacts,
    provenances: Sequence[Provenance],
    simulated: bool,
    *,
    at_least: bool,
) -> CarbonColumn:
    by_cause: dict[Cause, Emitted] = {}
    for cause in CAUSES:
        found = total_emitted(p.emissions.of(facts.kind) for p in parts if p.cause is cause)
        if found is not None:
            by_cause[cause] = found
    emitted = total_emitted(by_cause.values()) or Emitted(None, 0.0, 0.0)
    all_j = emitted.known_j + emitted.unknown_j
    grams, known_kwh = emitted.carbon_g, kwh_from_joules(emitted.known_j)
    return CarbonColumn(
        kind=facts.kind,
        provenance=weakest(*provenances),
        n_provenances=len(provenances),
        simulated=simulated,
        gas=facts.gas,
        emitted=emitted,
        by_cause=by_cause,
        at_least=at_least or any(p.at_least for p in parts) or emitted.unknown_j > ROUNDING * all_j,
        cue_kg_per_kwh=None if grams is None or not known_kwh else grams / 1000.0 / known_kwh,
    )


def _sci(
    evidence: Evidence,
    spending: Spending,
    facts: IntensityFacts,
    columns: Sequence[CarbonColumn],
    run_time_s: float,
) -> SoftwareCarbonIntensity:
    """SCI of all that the machines drew by one kind of intensity."""
    column = [c for c in columns if c.kind is facts.kind and not c.simulated][-1]
    operational_g = column.emitted.carbon_g or 0.0
    embodied_g = _embodied_g(spending.accounting, run_time_s)
    kept = [e.result for e in evidence.executions if not e.superseded]
    generated = [r for r in kept if cause_of(r) is Cause.GENERATION]
    # A loop that generates nothing trains on samples.
    done = generated or [r for r in kept if r.stage is Stage.ACTOR_TRAIN]
    rows = [r.n_sequences for r in done]
    n_sequences = sum(rows) if all(rows) else 0  # 0 of one of them: it is not known
    n_tokens = spending.n_output_tokens
    per_run_g = operational_g + (embodied_g or 0.0)
    provenances = [column.provenance]
    # What making the hardware emitted is a figure that somebody states.
    provenances += [] if embodied_g is None else [Provenance.PUBLISHED]
    return SoftwareCarbonIntensity(
        kind=facts.kind,
        provenance=weakest(*provenances),
        gas=facts.gas,
        operational_g=operational_g,
        embodied_g=embodied_g,
        per_token_g=per_run_g / n_tokens if n_tokens else None,
        per_sequence_g=per_run_g / n_sequences if n_sequences else None,
        per_run_g=per_run_g,
        n_tokens=n_tokens,
        n_sequences=n_sequences,
        sequence="sequence" if generated else "sample",
        at_least=column.at_least,
        market_based=any(f.basis is Basis.MARKET for f in facts.feeds),
    )


def _embodied_g(accounting: Accounting | None, run_time_s: float) -> float | None:
    """Emissions of making the hardware by its share of reserved time, g; None when not stated."""
    if accounting is None or accounting.embodied_kg is None:
        return None
    reserved_h = run_time_s / _SECONDS_AN_HOUR
    return 1000.0 * accounting.embodied_kg * reserved_h / accounting.lifetime_h
