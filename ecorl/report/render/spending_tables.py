"""Where the joules went as tables: totals, stages by device, the comparison of the two paths.

Figures of different provenance never share a column: stages are split into one table per pair of
provenances, totals have one column per provenance, comparisons name it in the heading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ecorl.records import Provenance
from ecorl.report.energy.causes import (
    OTHER_CAUSES,
    PAUSE_CAUSES,
    RARE_CAUSES,
    USEFUL_CAUSES,
    WASTED_CAUSES,
)
from ecorl.report.energy.model import (
    Balance,
    CardTimeline,
    Cause,
    EnergyPart,
    EnergyTotals,
    PathComparison,
    Spending,
    StageRow,
)
from ecorl.report.energy.stages import present
from ecorl.report.render.lines import Section, Table, table
from ecorl.report.render.numbers import (
    MISSING,
    bounded,
    count,
    edi_unit,
    figure,
    scaled,
    share,
    tokens,
    with_spread,
)

NO_EXECUTION = "No stage execution was recorded, or none was kept."

# ---------------------------------------------------------------- energy


def energy_section(s: Spending) -> Section:
    """Make the tables of energy: totals by provenance and cause, and all parts on demand."""
    if not s.shown:
        return Section("energy", "Where the joules went", "No energy figure was recorded.")
    whose = f"{s.owner}, " if s.card else ""
    heads = ["", *(c.heading if c is s.card else f"{whose}{c.heading}" for c in s.shown)]

    def wasted(c: EnergyTotals) -> str:
        unknown = c is not s.card and s.unknown_causes
        return share(c.wasted_j / c.energy_j if c.energy_j and not unknown else None)

    lines: list[tuple[str, Callable[[EnergyTotals], str]]] = [
        ("energy, J", lambda c: bounded(c.energy_j, c.at_least)),
        ("energy, kWh", lambda c: bounded(c.energy_kwh, c.at_least)),
        ("useful, J", lambda c: figure(c.useful_j)),
        *(
            (f"  {name}", _cause(name, s))
            for name in USEFUL_CAUSES
            if name not in RARE_CAUSES or any(p.cause == name for p in s.parts)
        ),
        *(
            (f"{name}, J", _cause(name, s))
            for name in (*OTHER_CAUSES, *PAUSE_CAUSES)
            if any(p.cause == name for p in s.parts)
        ),
        ("wasted, J", lambda c: figure(c.wasted_j)),
        *((f"  {name}", _cause(name, s)) for name in WASTED_CAUSES),
        ("wasted share", wasted),
        ("output tokens per J", lambda c: tokens_cell(c, s, "at most")),
    ]
    totals = table(heads, [(name, *(cell(c) for c in s.shown)) for name, cell in lines])
    lead = f"{count(s.n_output_tokens)} output tokens were generated, superseded work left out. "
    lead += f"{share(s.covered_share)} of the stage calls have an energy figure."
    if any(p.cause in OTHER_CAUSES for p in s.parts):
        lead += f" {beside_words(s)[0].upper()}{beside_words(s)[1:]}."
    if any(p.cause in PAUSE_CAUSES for p in s.parts):
        lead += f" {PAUSED_APART[0].upper()}{PAUSED_APART[1:]}."
    if s.card is not None:
        lead += f" {CARD_APART}"
        told = tokens_with_card(s)
        lead += f" {told[0].upper()}{told[1:]}." if told else ""
    parts = [replace(t, folded=True) for t in _part_tables(s.parts)]
    return Section("energy", "Where the joules went", lead, "energy", (totals, *parts))


def beside_words(s: Spending) -> str:
    """Say what lies beside the stages of a run; evaluations that are a row of their own do not."""
    own = any(p.cause is Cause.EVALUATION for p in s.parts)
    evaluations = "" if own else "evaluations, "
    return f"beside stages: {evaluations}saving, the framework's own work and idle draw"


CARD_APART = (
    "The card was simulated: its column is what it would have drawn beside this machine, and is in "
    "none of the others."
)


PAUSED_APART = "paused: drawn while the run waited for a clean window; neither useful nor wasted"


def tokens_with_card(s: Spending) -> str:
    """Output tokens per joule of machine and simulated card together; "" without a figure."""
    both = s.with_card
    if both is None or both.tokens_per_joule is None:
        return ""
    per_j = bounded(both.tokens_per_joule, both.at_least, "at most")
    return f"with the simulated card's draw: {per_j} output tokens per J ({both.provenance})"


def tokens_cell(c: EnergyTotals, s: Spending, words: str) -> str:
    """Write the output tokens per joule of one column.

    Args:
        c: the column.
        s: where the joules went.
        words: what stands before a bound.
    """
    return "none" if c is s.card else bounded(c.tokens_per_joule, c.at_least, words)


def cause_cell(name: Cause, c: EnergyTotals, s: Spending) -> str:
    """Write the joules of one cause in one column.

    Args:
        name: the cause.
        c: the column.
        s: where the joules went.
    """
    if name in c.by_cause:
        return figure(c.by_cause[name])
    # A dash says that a figure is missing; a column without such energy has none to miss.
    beside = c is s.card
    lacks = any(p.cause == name and p.energy_j is None for p in s.parts if p.simulated == beside)
    return MISSING if lacks else "none"


def _cause(name: Cause, s: Spending) -> Callable[[EnergyTotals], str]:
    return lambda c: cause_cell(name, c, s)


def _part_tables(parts: Sequence[EnergyPart]) -> list[Table]:
    tables = []
    for provenance in (*Provenance, None):
        own = [p for p in parts if p.provenance is provenance]
        if not own:
            continue
        rows = [
            (
                p.device_id,
                f"{p.device} (simulated)" if p.simulated else p.device,
                p.cause,
                figure(p.energy_j),
                figure(p.time_s),
                p.gap or "",
            )
            for p in own
        ]
        heads = ("device", "profile", "cause", "J", "s", "remark")
        made = table(heads, rows, 3, f"By device and cause: {provenance or 'energy missing'}")
        tables.append(replace(made, numeric=(False, False, False, True, True, False)))
    return tables


# ---------------------------------------------------------------- stages

SHORT_CALLS = (
    "The energy of very short calls is approximate: fewer than two power readings fall into each, "
    "so a part of it may stand at the stage before or after. The run's total is right all the same."
)
"""What the figures of calls shorter than two readings are worth."""
_SHORT = "very short calls"
_STAGE_HEADS = (
    "stage", "device", "calls", "sequences", "tokens", "output tokens", "time, s",
    "share of time", "energy, J", "mean W", "{unit} ± SD", "calls with energy", "wall-clock, s",
)  # fmt: skip


def stages_section(rows: Sequence[StageRow], remarks: Sequence[str] = ()) -> Section:
    """Make the tables of stages, one per pair of provenances, with what there is to say of them."""
    if not rows:
        return Section("stages", "Stages by device", NO_EXECUTION)
    tables = []
    factor, unit = edi_unit(r.edi_j_per_token for r in rows)
    heads = [name.format(unit=unit) for name in _STAGE_HEADS]
    for (time_p, energy_p), own in by_provenances(rows):
        all_s = sum(present(r.time_s for r in own))
        caption = f"time {time_p}, energy {energy_p or 'missing'}; wall-clock measured"
        cells = [_stage_cells(r, all_s, factor) for r in own]
        tables.append(_with_short_calls(table(heads, cells, 2, caption), own))
    lead = (
        "Wall-clock is what the calls took on this machine; for a simulated card it is the "
        "simulation's time and never enters the card's energy or any EDI. Superseded calls are "
        "left out."
    )
    if any(r.n_interpolated for r in rows):
        lead += f" {SHORT_CALLS}"
    lead += "".join(f" {r[0].upper()}{r[1:]}." for r in remarks)
    return Section("stages", "Stages by device", lead, "timeline", tuple(tables))


def _with_short_calls(made: Table, rows: Sequence[StageRow]) -> Table:
    """The table with the share of short calls beside J/token, where there are any."""
    if not any(r.n_interpolated for r in rows):
        return made
    at = _STAGE_HEADS.index("{unit} ± SD") + 1
    return replace(
        made,
        columns=(*made.columns[:at], _SHORT, *made.columns[at:]),
        numeric=(*made.numeric[:at], True, *made.numeric[at:]),
        rows=tuple(
            (*cells[:at], short_share(r), *cells[at:])
            for cells, r in zip(made.rows, rows, strict=True)
        ),
    )


def short_share(r: StageRow) -> str:
    """Share of the calls with energy that were shorter than two readings, and how many."""
    if not r.n_interpolated:
        return "none"
    if r.n_interpolated == r.n_with_energy:
        return f"all {count(r.n_with_energy)}"
    part = share(r.n_interpolated / r.n_with_energy, 0)
    return f"{part} ({count(r.n_interpolated)} of {count(r.n_with_energy)})"


def by_provenances(rows: Sequence[StageRow]) -> list[tuple[tuple[str, str], list[StageRow]]]:
    """Rows grouped by their provenances of time and energy ("" where it is missing)."""
    groups = groupby(sorted(rows, key=_pair), key=_pair_of)
    return [(key, list(group)) for key, group in groups]


def _pair_of(row: StageRow) -> tuple[str, str]:
    return str(row.time_provenance), str(row.energy_provenance or "")


def _pair(row: StageRow) -> tuple[int, int]:
    order = list(Provenance)
    energy = len(order) if row.energy_provenance is None else order.index(row.energy_provenance)
    return order.index(row.time_provenance), energy


def _stage_cells(r: StageRow, all_s: float, factor: float) -> tuple[str, ...]:
    n = len(r.device_ids)
    return (
        r.role,
        r.device if n == 1 else f"{r.device} x {n}",
        count(r.n_calls),
        tokens(r.n_sequences, r.n_sequences),
        tokens(r.n_tokens, r.n_tokens),
        tokens(r.n_output_tokens, r.n_tokens),
        figure(r.time_s) + _of(r.n_timed, r.n_calls),
        share(r.time_s / all_s if r.time_s is not None and all_s else None, 0),
        figure(r.energy_j),
        figure(r.mean_power_w),
        with_spread(scaled(r.edi_j_per_token, factor), scaled(r.edi_spread, factor)),
        f"{count(r.n_with_energy)} of {count(r.n_calls)}",
        figure(r.host_time_s),
    )


def _of(known: int, n: int) -> str:
    return "" if known in (0, n) else f" ({known} of {n})"


def comparisons_section(
    compared: Sequence[PathComparison],
    balance: Balance | None,
    timeline: CardTimeline | None,
    path: str,
) -> Section:
    """Compare EDI of the GPU path with EDI of the card by stage, then with the card's idle draw.

    Args:
        compared: both paths, by stage.
        balance: all offloaded calls against the GPU path; None when that is not known.
        timeline: the run without the simulation's time; None without a simulated card.
        path: what the report calls the framework's devices.
    """
    title = "Did offloading pay?"
    if not compared:
        return Section("comparison", title, NO_EXECUTION)
    tables = []
    groups = comparison_groups(compared, path)
    for group in groups:
        factor, unit = edi_unit(r.edi_j_per_token for p in group.pairs for r in (p.gpu, p.card))
        sides = (f"{path}, {unit} ± SD", "calls", f"card, {unit} ± SD", "calls")
        price = ("stage", *sides, f"card / {path}")
        cells = [_comparison_cells(p, factor) for p in group.pairs]
        tables.append(table(price, cells, 1, f"Energy per output token. {group.basis}"))
        spent = ("stage", "tokens served by the card", f"{path} would have spent, J",
                 "card spent, J", "saved, J")  # fmt: skip
        cells = [_saved_cells(p) for p in group.pairs]
        caption = f"The calls that the card took ({group.provenance})"
        tables.append(table(spent, cells, 1, caption))
    if balance is not None:
        tables.append(_balance_table(balance, path))
    if timeline is not None:
        tables.append(_timeline_table(timeline))
    alone = [(c.role, c.sentence) for c in compared if c.ratio is None]
    if alone:
        tables.append(table(("stage", "finding"), alone, 2))
    lead = (
        f"First what a token cost on the {path} and on the card while it was worked on, then the "
        "whole run, in which the card also stood idle."
    )
    if not groups:
        lead = (
            f"No stage has energy per token both on the {path} and on the card, so there is "
            "nothing to compare."
        )
    return Section("comparison", title, lead, "", tuple(tables))


@dataclass(frozen=True, slots=True)
class PathPair:
    """A stage that ran on both paths, with energy on both."""

    comparison: PathComparison
    gpu: StageRow
    card: StageRow


@dataclass(frozen=True, slots=True)
class PairGroup:
    """Pairs of the same two devices with the same provenances; ``basis`` says which."""

    basis: str
    provenance: Provenance | None
    pairs: tuple[PathPair, ...]


def comparison_groups(compared: Sequence[PathComparison], path: str) -> list[PairGroup]:
    """Group comparisons that may share a table: figures of one provenance each.

    Args:
        compared: both paths, by stage.
        path: what the report calls the framework's devices.
    """
    groups: dict[tuple[str, Provenance | None], list[PathPair]] = {}
    for c in compared:
        if c.ratio is not None and c.gpu is not None and c.card is not None:
            basis = f"{path}: {_origin(c.gpu)}; card: {_origin(c.card)}"
            groups.setdefault((basis, c.ratio_provenance), []).append(PathPair(c, c.gpu, c.card))
    return [PairGroup(*key, tuple(pairs)) for key, pairs in groups.items()]


def _origin(r: StageRow) -> str:
    if r.time_provenance is r.energy_provenance:
        return f"{r.device} ({r.time_provenance})"
    return f"{r.device} (time {r.time_provenance}, energy {r.energy_provenance})"


def _comparison_cells(pair: PathPair, factor: float) -> tuple[str, ...]:
    cells = [pair.comparison.role]
    for r in (pair.gpu, pair.card):
        cells.append(with_spread(scaled(r.edi_j_per_token, factor), scaled(r.edi_spread, factor)))
        cells.append(f"{count(r.n_edi)} (iterations {r.iterations[0]} to {r.iterations[1]})")
    return (*cells, figure(pair.comparison.ratio))


def _saved_cells(pair: PathPair) -> tuple[str, ...]:
    c = pair.comparison
    least = "at least " if c.card_at_least else ""
    most = "at most " if c.card_at_least else ""
    return (
        c.role,
        count(round(pair.card.n_tokens_served)),
        figure(c.gpu_would_j),
        least + figure(c.card_j),
        most + figure(c.saved_j),
    )


def _balance_table(b: Balance, path: str) -> Table:
    most = "at most " if b.at_most else ""
    net = MISSING if b.net_j is None else "at most " * b.net_at_most + figure(b.net_j)
    whole = "the run time" if b.whole_run else "the time of its attempts"
    rows = [
        ("drawn by the card on its calls (gross)", "at least " * b.at_most + figure(b.card_j)),
        (f"the {path} would have drawn for them", figure(b.gpu_would_j)),
        ("saved on the calls that the card took (net of both)", most + figure(b.saved_j)),
        (f"drawn by the idle card ({share(b.idle_share)} of {whole})", figure(b.idle_j)),
    ]
    if b.paused_j != 0:
        rows.append(("drawn by the card while the run was paused", figure(b.paused_j)))
    rows.append(("net of all (above 0 offloading paid)", net))
    caption = "The whole run, idle card included"
    caption += "; its card is simulated" * b.is_simulated
    caption += ", and idle in the run's modelled time" * b.in_modelled_time
    caption += f"; without {' and '.join(b.left_out)}" if b.left_out else ""
    return table(("", f"J ({b.provenance})"), rows, 1, caption)


def _timeline_table(t: CardTimeline) -> Table:
    rows = [
        ("run time, s", figure(t.run_time_s), figure(t.modelled_run_time_s)),
        ("waits at the barrier, s", figure(t.waits_s), figure(t.modelled_waits_s)),
        ("idle draw of the card, J", MISSING, figure(t.idle_j)),
    ]
    heads = ("", "with the simulation (measured)", "with the card's modelled times (modelled)")
    kept = f"; {t.n_kept} waits without a modelled time left as measured" if t.n_kept else ""
    return table(heads, rows, 1, f"The run without the simulation's own time{kept}")
