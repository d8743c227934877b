"""What the energy emitted, and how the run waited for a clean window, as tables.

Average and marginal figures stand in columns of their own, as do figures of different provenance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ecorl.control import Command
from ecorl.grid import provenance_label
from ecorl.ledger import GearChoiceRow
from ecorl.records import Provenance, weakest
from ecorl.report.energy.carbon_model import (
    CarbonColumn,
    FeedFacts,
    Footprint,
    IntensityFacts,
    PauseSummary,
    SoftwareCarbonIntensity,
    WaitOutcome,
)
from ecorl.report.energy.causes import (
    OTHER_CAUSES,
    PAUSE_CAUSES,
    RARE_CAUSES,
    USEFUL_CAUSES,
    WASTED_CAUSES,
)
from ecorl.report.energy.emissions import Emissions, total_emitted
from ecorl.report.energy.model import Cause, EnergyPart, StageRow
from ecorl.report.notes import intensity_label, pue_words
from ecorl.report.render.lines import Section, Table, table
from ecorl.report.render.numbers import (
    MISSING,
    bounded,
    count,
    duration,
    figure,
    share,
)

N_SHOWN = 20
"""Decisions about the training stage that are shown; the others are on demand."""

# ---------------------------------------------------------------- emissions


def carbon_section(
    footprint: Footprint, stages: Sequence[StageRow], parts: Sequence[EnergyPart]
) -> Section:
    """Make the tables of emissions: by cause, feed, functional unit, stage and device.

    Args:
        footprint: what the run's energy emitted.
        stages: the table of stages, each row with its emissions.
        parts: the energy by device and cause, each part with its emissions.
    """
    title = "What the energy emitted"
    known = [facts for facts in footprint.intensities if facts.provenance is not None]
    if not known:
        return Section("carbon", title, "No intensity of the grid is known for the run time.")
    tables = [_cause_table(footprint.columns)] if footprint.columns else []
    tables += [made for facts in known for made in _feed_tables(facts)]
    if footprint.sci:
        tables.append(_sci_table(footprint.sci))
    tables += _stage_tables(stages, known)
    tables += [replace(made, folded=True) for made in _part_tables(parts, known)]
    return Section("carbon", title, carbon_lead(footprint), "", tuple(tables))


def carbon_lead(footprint: Footprint) -> str:
    """Sentences about the factors that counted: PUE, labels, gaps and renewable share.

    Args:
        footprint: of the run.
    """
    told = [
        "Energy x intensity x PUE, each with what counted when the energy was drawn.",
        f"PUE {pue_words(footprint)}.",
    ]
    if len(footprint.intensities) > 1:
        told.append("Figures by the average and by the marginal intensity are never added.")
    for facts in footprint.intensities:
        label = intensity_label(facts)
        told += [f"{label[0].upper()}{label[1:]}."] if label else []
        if facts.unknown_s:
            part = share(facts.unknown_s / footprint.run_time_s)
            told.append(f"The {facts.kind} intensity was unknown for {part} of the run time.")
    if footprint.renewable_share is not None:
        of = "" if (footprint.mixed_share or 0) > 0.999 else (
            f", of the {share(footprint.mixed_share, 0)} of it for which the grid's mix is known"
        )  # fmt: skip
        told.append(f"Renewable share of the energy: {share(footprint.renewable_share)}{of}.")
    return " ".join(told)


def _cause_table(columns: Sequence[CarbonColumn]) -> Table:
    def of(causes: Sequence[Cause]) -> Callable[[CarbonColumn], str]:
        def cell(c: CarbonColumn) -> str:
            found = total_emitted(c.by_cause.get(cause) for cause in causes)
            return "none" if found is None else figure(found.carbon_g)

        return cell

    def is_there(cause: Cause) -> bool:
        return any(cause in c.by_cause for c in columns)

    lines: list[tuple[str, Callable[[CarbonColumn], str]]] = [
        ("all", lambda c: bounded(c.emitted.carbon_g, c.at_least)),
        ("useful", of(USEFUL_CAUSES)),
        *((f"  {cause}", of((cause,))) for cause in USEFUL_CAUSES
          if cause not in RARE_CAUSES or is_there(cause)),
        *((str(cause), of((cause,))) for cause in (*OTHER_CAUSES, *PAUSE_CAUSES)
          if is_there(cause)),
        ("wasted", of(WASTED_CAUSES)),
        *((f"  {cause}", of((cause,))) for cause in WASTED_CAUSES),
    ]  # fmt: skip
    rows = [(name, *(cell(c) for c in columns)) for name, cell in lines]
    if any(c.is_incomplete for c in columns):
        missing = [figure(c.emitted.unknown_j) if c.is_incomplete else "none" for c in columns]
        rows.append(("emissions missing for, J", *missing))
    cue = [figure(c.cue_kg_per_kwh) for c in columns]
    rows.append(("carbon usage effectiveness (CUE), kg/kWh", *cue))
    return table(["", *(c.heading for c in columns)], rows, 1, "By cause")


def _feed_tables(facts: IntensityFacts) -> list[Table]:
    """The feeds of one kind of intensity, a table for each provenance."""
    heads = ("feed", "unit", "scope", "basis", "emission factors", "estimated", "share of time",
             "lowest", "mean", "highest")  # fmt: skip
    rows: dict[str, list[tuple[str, ...]]] = {}
    for f in sorted(facts.feeds, key=lambda f: list(Provenance).index(f.provenance)):
        told = provenance_label(f.provenance, f.is_estimated)
        rows.setdefault(told, []).append(_feed_cells(f))
    counted = f"Feeds of the {facts.kind} intensity that counted"
    return [table(heads, own, 6, f"{counted} ({told})") for told, own in rows.items()]


def _feed_cells(f: FeedFacts) -> tuple[str, ...]:
    return (
        f.feed,
        str(f.gas),
        f.scope.replace("_", "-"),
        str(f.basis),
        f.factors,
        {True: "yes", False: "no", None: "not said"}[f.is_estimated],
        share(f.share),
        *(figure(v) for v in (f.lowest_g_per_kwh, f.mean_g_per_kwh, f.highest_g_per_kwh)),
    )


def small_unit(values: Sequence[float | None]) -> tuple[float, str]:
    """Choose one unit for small emissions that are shown together: factor from g, and name."""
    largest = max((v for v in values if v is not None), default=1.0)
    for least, factor, unit in ((1.0, 1.0, "g"), (1e-3, 1e3, "mg"), (1e-6, 1e6, "µg")):
        if largest >= least:
            return factor, unit
    return 1e9, "ng"


def _sci_table(found: Sequence[SoftwareCarbonIntensity]) -> Table:
    """Software carbon intensity by functional unit, a column for each kind of intensity."""
    heads = ["functional unit R", *(f"{s.kind}, g{s.gas} ({s.provenance})" for s in found)]
    first = found[0]
    rows = [["operational part, E I, g", *(bounded(s.operational_g, s.at_least) for s in found)]]
    made = [figure(s.embodied_g) if s.embodied_g is not None else "not stated" for s in found]
    rows.append(["making the hardware, M, g", *made])
    rows.append(["this run, g", *(bounded(s.per_run_g, s.at_least) for s in found)])
    per = {
        f"{first.sequence} ({count(first.n_sequences)})": [s.per_sequence_g for s in found],
        f"output token ({count(first.n_tokens)})": [s.per_token_g for s in found],
    }
    for name, values in per.items():
        factor, unit = small_unit(values)
        cells = [
            bounded(None if v is None else v * factor, s.at_least)
            for v, s in zip(values, found, strict=True)
        ]
        rows.append([f"{name}, {unit}", *cells])
    part = "" if first.embodied_g is not None else ", operational part only"
    caption = f"Software carbon intensity (SCI): (E I + M) / R{part}"
    return table(heads, rows, 1, caption)


# ---------------------------------------------------------------- by stage and device

_Origins = tuple[Provenance | None, ...]


def _origins(
    provenance: Provenance | None, emissions: Emissions, known: Sequence[IntensityFacts]
) -> _Origins:
    """Provenance of the grams by each kind of intensity; None where there are none."""
    found: list[Provenance | None] = []
    for facts in known:
        emitted = emissions.of(facts.kind)
        is_known = emitted is not None and emitted.carbon_g is not None
        if is_known and provenance is not None and facts.provenance is not None:
            found.append(weakest(provenance, facts.provenance))
        else:
            found.append(None)
    return tuple(found)


def _gram_heads(origins: _Origins, known: Sequence[IntensityFacts]) -> list[str]:
    return [
        f"{facts.kind}, g{facts.gas} ({origin or 'missing'})"
        for origin, facts in zip(origins, known, strict=True)
    ]


def _gram_cells(emissions: Emissions, known: Sequence[IntensityFacts]) -> list[str]:
    cells = []
    for facts in known:
        emitted = emissions.of(facts.kind)
        if emitted is None:
            cells.append(MISSING)
        else:
            lacks = emitted.unknown_j > 1e-9 * (emitted.known_j + emitted.unknown_j)
            cells.append(bounded(emitted.carbon_g, lacks))
    return cells


def _stage_tables(rows: Sequence[StageRow], known: Sequence[IntensityFacts]) -> list[Table]:
    groups: dict[_Origins, list[StageRow]] = {}
    for r in rows:
        origins = _origins(r.energy_provenance, r.emissions, known)
        if any(origins):
            groups.setdefault(origins, []).append(r)
    tables = []
    for origins, own in groups.items():
        heads = ["stage", "device", "calls with energy", *_gram_heads(origins, known)]
        cells = [
            (
                r.role,
                r.device,
                f"{count(r.n_with_energy)} of {count(r.n_calls)}",
                *_gram_cells(r.emissions, known),
            )
            for r in own
        ]
        tables.append(table(heads, cells, 2, "By stage and device, without superseded calls"))
    return tables


def _part_tables(parts: Sequence[EnergyPart], known: Sequence[IntensityFacts]) -> list[Table]:
    groups: dict[_Origins, list[EnergyPart]] = {}
    for p in parts:
        origins = _origins(p.provenance, p.emissions, known)
        if any(origins):
            groups.setdefault(origins, []).append(p)
    tables = []
    for origins, own in groups.items():
        heads = ["device", "profile", "cause", *_gram_heads(origins, known)]
        cells = [
            (
                p.device_id,
                f"{p.device} (simulated)" if p.simulated else p.device,
                p.cause,
                *_gram_cells(p.emissions, known),
            )
            for p in own
        ]
        told = " and ".join(dict.fromkeys(str(o) for o in origins if o is not None))
        tables.append(table(heads, cells, 3, f"Emissions by device and cause: {told}"))
    return tables


# ---------------------------------------------------------------- waiting

PAUSES_TITLE = "Waiting for a clean window"


def pauses_section(pauses: PauseSummary, choices: str = "") -> Section:
    """Make the tables of pauses: what they brought, and the decisions.

    Args:
        pauses: how the run waited.
        choices: a sentence on how often each gear was chosen; nothing where none was.
    """
    tables = [_outcome_table(outcome) for outcome in pauses.outcomes]
    heads, right, rows = _choices(pauses.choices)
    shown = table(heads, rows[:N_SHOWN], 0, "Decisions about the training stage, each a new one")
    tables.append(replace(shown, numeric=right))
    if len(rows) > N_SHOWN:
        more = f"The other {count(len(rows) - N_SHOWN)} decisions"
        tables.append(replace(table(heads, rows[N_SHOWN:], 0, more), numeric=right, folded=True))
    lead = f"{pauses_lead(pauses)} {choices}".rstrip()
    return Section("pauses", PAUSES_TITLE, lead, "", tuple(tables))


def _choices(
    choices: Sequence[GearChoiceRow],
) -> tuple[tuple[str, ...], tuple[bool, ...], list[tuple[str, ...]]]:
    """Heads, which columns are numbers, and cells of all decisions.

    Only rules of a threshold have one, only controllers know a price, and gear and width can be
    chosen in some runs alone: a column that would be empty is left out.
    """
    with_attempt = len({row.attempt for row in choices}) > 1
    prices = [row.choice.price_g_per_step for row in choices]
    factor, unit = small_unit(prices)
    heads = (
        "time (UTC)", "decision", "gear", "workers", "why", "g/kWh", "feed", "threshold, g/kWh",
        f"a step less saves, {unit}CO2e (modelled)", "reason",
    )  # fmt: skip
    right = (False, False, False, True, False, True, False, True, True, False)
    cells = [choice_cells(row, factor, with_attempt) for row in choices]
    gear, workers, threshold, price = 2, 3, 7, 8
    may_be_empty = (gear, workers, threshold, price)
    empty = {n for n in may_be_empty if all(row[n] == MISSING for row in cells)}
    kept = [n for n in range(len(heads)) if n not in empty]
    return (
        tuple(heads[n] for n in kept),
        tuple(right[n] for n in kept),
        [tuple(row[n] for n in kept) for row in cells],
    )


def pauses_lead(pauses: PauseSummary) -> str:
    """How often and for how long the run was paused.

    Args:
        pauses: how the run waited.
    """
    if not pauses.n:
        return "The run was never paused."
    times = "once" if pauses.n == 1 else f"{count(pauses.n)} times"
    return (
        f"The run was paused {times}, for {duration(pauses.total_s)} in all "
        f"({share(pauses.paused_share)} of the run time). What was drawn meanwhile is neither "
        "useful nor wasted. What waiting brought is modelled: nobody knows what the run would have "
        "drawn at another time."
    )


def _outcome_table(o: WaitOutcome) -> Table:
    """What was emitted as the run went, beside what its joules would have emitted at its start."""
    least, most = "at least " * o.at_most, "at most " * o.at_most
    unit = f"g{o.gas}"
    together = None
    if o.trained_g is not None and o.paused_g is not None:
        together = o.trained_g + o.paused_g
    rows = [
        (f"mean intensity beside the pauses, {unit}/kWh",
         figure(o.trained_g_per_kwh), figure(o.start_g_per_kwh)),
        (f"mean intensity in the pauses, {unit}/kWh", figure(o.paused_g_per_kwh), "none"),
        (f"emitted beside the pauses, {unit}", figure(o.trained_g), figure(o.trained_at_start_g)),
        (f"emitted in the pauses, {unit}", least + figure(o.paused_g), "none"),
        (f"together, {unit}", least + figure(together), figure(o.trained_at_start_g)),
        (f"net, {unit}: above 0 waiting emitted less", "",
         MISSING if o.net_g is None else most + figure(o.net_g)),
    ]  # fmt: skip
    if o.unknown_j:
        rows.append(("in none of these: energy of unknown intensity or PUE, J",
                     figure(o.unknown_j), ""))  # fmt: skip
    heads = (
        "",
        f"as it was ({o.provenance})",
        "the same joules at the intensity of the start (modelled)",
    )
    return table(heads, rows, 1, f"What waiting brought, by the {o.kind} intensity")


def choice_cells(
    row: GearChoiceRow, factor: float = 1.0, with_attempt: bool = False
) -> tuple[str, ...]:
    """Cells of one decision: time, decision, gear, workers, why, intensity, feed, threshold, ...

    Price and reason follow. A pause has neither a gear nor workers.

    Args:
        row: the decision.
        factor: from grams to the unit of the price.
        with_attempt: whether the time names the attempt.
    """
    c = row.choice
    price = None if c.price_g_per_step is None else factor * c.price_g_per_step
    runs = c.command is Command.RUN
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(c.decided_s))
    return (
        f"{when} (attempt {row.attempt})" if with_attempt else when,
        str(c.command),
        (c.gear if runs else None) or MISSING,
        count(c.width if runs else None),
        str(c.why),
        figure(c.g_per_kwh),
        c.feed or MISSING,
        figure(c.threshold_g_per_kwh),
        figure(price),
        c.reason,
    )
