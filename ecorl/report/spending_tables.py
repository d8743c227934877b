"""Where the joules went as tables: totals, stages by device, the comparison of the two paths.

Figures of different provenance never share a column: stages are split into one table per pair of
provenances, totals have one column per provenance, comparisons name it in the heading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from ecorl.records import Provenance
from ecorl.report.layout import Section, Table, table
from ecorl.report.model import Comparison, EnergyPart, Spending, StageRow, Totals
from ecorl.report.numbers import MISSING, count, figure, share, with_spread
from ecorl.report.stage_table import present

# ---------------------------------------------------------------- energy


def energy_section(s: Spending) -> Section:
    """Totals by provenance and cause, and all parts on demand."""
    if not s.columns:
        return Section("energy", "Where the joules went", "No energy figure was recorded.")
    heads = ["", *(_totals_head(c) for c in s.columns)]
    lines: list[tuple[str, Callable[[Totals], str]]] = [
        ("energy, J", lambda c: _bounded(c.energy_j, at_least=c.at_least)),
        ("energy, kWh", lambda c: _bounded(c.energy_kwh, at_least=c.at_least)),
        ("useful, J", lambda c: figure(c.useful_j)),
        *((f"  {name}", _cause(name, s.parts)) for name in ("generation", "scoring", "training")),
        ("wasted, J", lambda c: figure(c.wasted_j)),
        *((f"  {name}", _cause(name, s.parts)) for name in ("superseded", "barrier wait", "idle")),
        ("wasted share", lambda c: share(c.wasted_j / c.energy_j if c.energy_j else None)),
        ("gCO2e", lambda c: _bounded(c.carbon_g, at_least=c.at_least)),
        ("output tokens per J", _tokens_per_joule),
    ]
    totals = table(heads, [(name, *(cell(c) for c in s.columns)) for name, cell in lines])
    lead = f"{count(s.n_output_tokens)} output tokens were generated and kept. "
    lead += f"{share(s.covered_share)} of the stage calls have an energy figure."
    parts = [replace(t, folded=True) for t in _part_tables(s.parts)]
    return Section("energy", "Where the joules went", lead, "energy", (totals, *parts))


def _totals_head(c: Totals) -> str:
    return c.title if c.title == str(c.provenance) else f"{c.title} (as {c.provenance})"


def _cause(name: str, parts: Sequence[EnergyPart]) -> Callable[[Totals], str]:
    # A dash says that a figure is missing; a column without such energy has none to miss.
    unknown = any(p.cause == name and p.energy_j is None for p in parts)
    absent = MISSING if unknown else "none"
    return lambda c: figure(c.by_cause[name]) if name in c.by_cause else absent


def _bounded(value: float | None, *, at_least: bool) -> str:
    return f"at least {figure(value)}" if at_least and value is not None else figure(value)


def _tokens_per_joule(c: Totals) -> str:
    known = figure(c.tokens_per_joule)
    return f"at most {known}" if c.at_least and c.tokens_per_joule is not None else known


def _part_tables(parts: Sequence[EnergyPart]) -> list[Table]:
    tables = []
    for provenance in (*Provenance, None):
        own = [p for p in parts if p.provenance is provenance]
        if not own:
            continue
        rows = [
            (p.device_id, p.device, p.cause, figure(p.energy_j), figure(p.time_s), p.gap or "")
            for p in own
        ]
        heads = ("device", "profile", "cause", "J", "s", "remark")
        made = table(heads, rows, 3, f"By device and cause: {provenance or 'energy missing'}")
        tables.append(replace(made, numeric=(False, False, False, True, True, False)))
    return tables


# ---------------------------------------------------------------- stages

_STAGE_HEADS = (
    "stage", "device", "calls", "sequences", "tokens", "output tokens", "time_s",
    "share of time", "energy_j", "mean W", "J/token (EDI)", "calls with energy", "host_time_s",
)  # fmt: skip


def stages_section(rows: Sequence[StageRow]) -> Section:
    """One table per pair of provenances."""
    if not rows:
        return Section("stages", "Stages by device", "No stage execution was recorded.")
    tables = []
    for (time_p, energy_p), group in groupby(sorted(rows, key=_pair), key=_pair_of):
        own = list(group)
        all_s = sum(present(r.time_s for r in own))
        caption = f"time {time_p}, energy {energy_p or 'missing'}; host_time_s measured"
        cells = [_stage_cells(r, all_s) for r in own]
        tables.append(table(_STAGE_HEADS, cells, 2, caption))
    lead = (
        "host_time_s is the wall-clock of this machine; for a simulated card it is the "
        "simulation's and never enters energy or EDI. Superseded calls are left out."
    )
    return Section("stages", "Stages by device", lead, "timeline", tuple(tables))


def _pair_of(row: StageRow) -> tuple[str, str]:
    return str(row.time_provenance), str(row.energy_provenance or "")


def _pair(row: StageRow) -> tuple[int, int]:
    order = list(Provenance)
    energy = len(order) if row.energy_provenance is None else order.index(row.energy_provenance)
    return order.index(row.time_provenance), energy


def _stage_cells(r: StageRow, all_s: float) -> tuple[str, ...]:
    n = len(r.device_ids)
    return (
        str(r.stage),
        r.device if n == 1 else f"{r.device} x {n}",
        count(r.n_calls),
        count(r.n_sequences),
        count(r.n_tokens),
        count(r.n_output_tokens),
        figure(r.time_s) + _of(r.n_timed, r.n_calls),
        share(r.time_s / all_s if r.time_s is not None and all_s else None, 0),
        figure(r.energy_j),
        figure(r.mean_power_w),
        with_spread(r.edi_j_per_token, r.edi_spread),
        f"{count(r.n_with_energy)} of {count(r.n_calls)}",
        figure(r.host_time_s),
    )


def _of(known: int, n: int) -> str:
    return "" if known in (0, n) else f" ({known} of {n})"


def comparisons_section(compared: Sequence[Comparison]) -> Section:
    """EDI of the GPU path against EDI of the card, stage by stage."""
    title = "Did offloading pay?"
    if not compared:
        return Section("comparison", title, "No stage execution was recorded.")
    tables = []
    pairs = sorted({_basis(c) for c in compared if c.ratio is not None and c.gpu and c.card})
    for basis in pairs:
        own = [c for c in compared if c.ratio is not None and _basis(c) == basis]
        heads = (
            "stage",
            f"GPU path, J/token ({basis[0]})",
            "calls",
            f"card, J/token ({basis[1]})",
            "calls",
            f"card / GPU path (as {own[0].ratio_provenance})",
        )
        tables.append(table(heads, [_comparison_cells(c) for c in own]))
    alone = [(str(c.stage), c.sentence) for c in compared if c.ratio is None]
    if alone:
        tables.append(table(("stage", "finding"), alone, 2))
    lead = "Energy per output token on the two paths. Below 1 the card used less."
    if not pairs:
        lead = "No stage ran on both paths, so there is nothing to compare."
    return Section("comparison", title, lead, "", tuple(tables))


def _basis(c: Comparison) -> tuple[str, str]:
    gpu = str(c.gpu.energy_provenance) if c.gpu else ""
    return gpu, str(c.card.energy_provenance) if c.card else ""


def _comparison_cells(c: Comparison) -> tuple[str, ...]:
    if c.gpu is None or c.card is None:
        return (str(c.stage), *[MISSING] * 5)
    return (
        str(c.stage),
        f"{c.gpu.device}: {with_spread(c.gpu.edi_j_per_token, c.gpu.edi_spread)}",
        count(c.gpu.n_edi),
        f"{c.card.device}: {with_spread(c.card.edi_j_per_token, c.card.edi_spread)}",
        count(c.card.n_edi),
        figure(c.ratio),
    )
