"""A comparison as sentences and tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecorl.records import Provenance
from ecorl.report.comparison.compare import ENERGY_RATE, Compared, Comparison, ScoresCompared
from ecorl.report.comparison.likeness import Likeness
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.render.lines import Section, Table, table
from ecorl.report.render.numbers import (
    MISSING,
    count,
    duration,
    edi_unit,
    figure,
    grams,
    joules,
    scaled,
    share,
    with_spread,
)
from ecorl.report.sharing.files import footprint_data, plain
from ecorl.report.training import is_correctness
from ecorl.report.training_stage.words import shares_words
from ecorl.units import kwh_from_joules

_MB = 1e6
BY_AVERAGE = f"emissions, {IntensityKind.AVERAGE} intensity"


def comparison_data(c: Comparison) -> dict[str, Any]:
    """What ``comparison_report.json`` holds; a figure that is missing or not compared is null.

    Args:
        c: the comparison.
    """
    emissions, energy = c.figure(BY_AVERAGE), c.figure("energy")
    return {
        "carbon_savings": {
            "baseline_emissions_kg": scaled(emissions.baseline, 1e-3),
            "optimized_emissions_kg": scaled(emissions.other, 1e-3),
            "reduction_kg": scaled(emissions.saved, 1e-3),
            "reduction_percentage": scaled(emissions.share, 100.0),
            "provenance": _provenances(emissions),
            "not_compared": _refusal(emissions),
        },
        "energy_savings": {
            "baseline_energy_kwh": scaled(energy.baseline, 1 / 3.6e6),
            "optimized_energy_kwh": scaled(energy.other, 1 / 3.6e6),
            "reduction_kwh": scaled(energy.saved, 1 / 3.6e6),
            "reduction_percentage": scaled(energy.share, 100.0),
            "provenance": _provenances(energy),
            "not_compared": _refusal(energy),
        },
        "per_token": _per_token(c),
        "accuracy_impact": _accuracy(c),
        "memory_savings": _memory(c),
        "waiting": {
            "baseline_wait_s": c.figure("waited").baseline,
            "optimized_wait_s": c.figure("waited").other,
        },
        "same_work": c.likeness.same_work,
        "same_instruments": c.likeness.same_instruments,
        "differences": list(c.differences),
        "instrument_differences": [*c.likeness.instruments, *c.likeness.remarks],
        "not_recorded": list(c.likeness.unknown),
        "seeds": c.likeness.seeds,
        "refusals": list(c.refusals),
        "figures": [plain(figure) for figure in c.figures],
        "evaluations": [plain(scores) for scores in c.scores],
        "runs": {"baseline": footprint_data(c.baseline), "optimized": footprint_data(c.other)},
    }


def _per_token(c: Comparison) -> dict[str, Any]:
    figure = c.figure(ENERGY_RATE)
    return {
        "baseline_energy_j_per_token": figure.baseline,
        "optimized_energy_j_per_token": figure.other,
        "reduction_percentage": scaled(figure.share, 100.0),
        "provenance": _provenances(figure),
        "not_compared": _refusal(figure),
    }


def _refusal(figure: Compared) -> str | None:
    return figure.reason if figure.saved is None else None


def _provenances(figure: Compared) -> dict[str, str | None]:
    both = (figure.baseline_provenance, figure.other_provenance)
    first, second = (None if p is None else str(p) for p in both)
    return {"baseline": first, "optimized": second}


def _accuracy(c: Comparison) -> dict[str, float | bool | str | None] | None:
    """The evaluation of right answers, in per cent; None where the runs share none."""
    right = (s for s in c.scores if is_correctness(s.name) and s.is_share)
    found = next(right, None)
    if found is None:
        return None
    return {
        "evaluation": found.name,
        "baseline_accuracy": 100.0 * found.baseline,
        "optimized_accuracy": 100.0 * found.other,
        "degradation_percentage": 100.0 * (found.baseline - found.other),
        "degradation_standard_error": scaled(found.difference_error, 100.0),
        "paired": found.paired,
    }


def _memory(c: Comparison) -> dict[str, float | str | None]:
    """Of the devices, where both runs measured it, and otherwise of the training process."""
    device = c.figure("peak memory of the devices")
    host = c.figure("peak memory of the training process")
    figure = host if device.saved is None else device
    return {
        "of": figure.name if figure.saved is not None else None,
        "baseline_memory_mb": scaled(figure.baseline, 1 / _MB),
        "optimized_memory_mb": scaled(figure.other, 1 / _MB),
        "reduction_percentage": scaled(figure.share, 100.0),
    }


_HEADS = ("", "first", "other", "saved", "saved, %")


def verdict(c: Comparison) -> list[str]:
    """What the comparison says, in sentences.

    Args:
        c: the comparison.
    """
    said = [*_of_likeness(c), _of_emissions(c), _of_energy(c), _of_a_token(c)]
    said += [_of_a_kwh(c), *_of_waiting(c)]
    said += [_of_scores(scores) for scores in c.scores[:3]]
    return [sentence for sentence in said if sentence]


def _of_likeness(c: Comparison) -> list[str]:
    """Whether it is the same work, and the same instruments, before any figure."""
    alike, work, conditions = c.likeness, c.baseline.work, c.baseline.conditions
    done = [f"{work.n_steps:,} steps"]
    done += [] if work.n_tokens is None else [f"about {work.n_tokens:,} tokens"]
    done = [conditions.algorithm, *done] if conditions.algorithm else done
    known = f"{', '.join(done)}, as far as the records tell"
    if alike.unknown:
        known += f" (not recorded: {', '.join(alike.unknown)})"
    differ = "; ".join((*alike.amounts, *alike.kinds))
    said = [f"Not the same work: {differ}." if differ else f"The same work: {known}."]
    differ = "; ".join((*alike.instruments, *alike.remarks))
    read = [f"{d}: {i.source}, {i.provenance}" for d, i in sorted(conditions.instruments.items())]
    named = f": {'; '.join(read)}" if read else ", as far as the records tell"
    said.append(
        f"Not the same instruments: {differ}." if differ else f"The same instruments{named}."
    )
    if alike.methods:
        said.append(f"What was done otherwise: {'; '.join(alike.methods)}.")
    if alike.no_rates:
        said.append(f"No saving is told, since {alike.no_rates}.")
    elif alike.amounts:
        said.append(
            "Only figures per token are compared, since the runs did not do as much work; what a "
            "run takes beside its steps weighs more in the shorter one."
        )
    said += _of_seeds(alike)
    return said


def _of_seeds(alike: Likeness) -> list[str]:
    if alike.no_totals or alike.seeds is None or alike.seeds[0] == alike.seeds[1]:
        return []
    return [
        f"Their seeds differ ({alike.seeds[0]} and {alike.seeds[1]}): one pair of runs has no "
        "interval, so how much of a difference is chance is not known."
    ]


def _of_emissions(c: Comparison) -> str:
    f = c.figure(BY_AVERAGE)
    if f.saved is None or f.baseline is None or f.other is None:
        # The reason of all figures has been told before.
        known = f.reason == c.likeness.no_totals
        return "" if known else f"What they emitted is not compared: {f.reason}."
    gas = f.unit.removeprefix("g")
    pair = f"{grams(f.other, gas)} against {grams(f.baseline, gas)}, {f.other_provenance}"
    limit = f"; {f.reason}" if f.reason else ""
    if f.saved == 0 or f.share is None:
        return f"Both runs emitted the same ({pair}{limit})."
    word = "less" if f.saved > 0 else "more"
    return f"The other run emitted {share(abs(f.share))} {word} than the first ({pair}{limit})."


def _of_energy(c: Comparison) -> str:
    f = c.figure("energy")
    if f.saved is None or f.baseline is None or f.other is None:
        known = f.reason == c.likeness.no_totals
        return "" if known else f"Their energy is not compared: {f.reason}."
    limit = f"; {f.reason}" if f.reason else ""
    pair = f"{joules(f.other)} against {joules(f.baseline)}, {f.other_provenance}{limit}"
    if f.saved == 0 or f.share is None:
        return f"Both runs drew the same energy ({pair})."
    word = "less" if f.saved > 0 else "more"
    return f"It drew {share(abs(f.share))} {word} energy ({pair})."


def _of_a_token(c: Comparison) -> str:
    f = c.figure(ENERGY_RATE)
    if not c.likeness.amounts or f.saved is None or not f.share:
        return ""
    word = "less" if f.saved > 0 else "more"
    limit = f"; {f.reason}" if f.reason else ""
    pair = f"{_cell(f, f.other)} against {_cell(f, f.baseline)}, {f.other_provenance}{limit}"
    return f"Of a token it drew {share(abs(f.share))} {word} energy ({pair})."


def _of_a_kwh(c: Comparison) -> str:
    """What the choice of the time saved, apart from the energy."""
    grams_of, energy = c.figure(BY_AVERAGE), c.figure("energy")
    parts = (grams_of.baseline, grams_of.other, energy.baseline, energy.other)
    if grams_of.saved is None or energy.saved is None or None in parts:
        return ""
    first_g, other_g, first_j, other_j = (float(part or 0.0) for part in parts)
    if not (first_g and first_j and other_j):
        return ""
    first, other = (g / kwh_from_joules(j) for g, j in ((first_g, first_j), (other_g, other_j)))
    word = "less" if other <= first else "more"
    part = share(abs(other - first) / first)
    return (
        f"A kilowatt-hour of it emitted {part} {word}: {figure(other)} against {figure(first)} g, "
        "PUE included."
    )


def _of_waiting(c: Comparison) -> list[str]:
    f = c.figure("waited")
    if not f.other and not f.baseline:
        return []
    first = duration(f.baseline) if f.baseline else "did not wait"
    return [f"It waited {duration(f.other)} for cleaner electricity, the first {first}."]


def _of_scores(s: ScoresCompared) -> str:
    error = "" if s.difference_error is None else f" ± {_scaled(s, s.difference_error)} (SE)"
    how = "over the same items" if s.paired else "over other items"
    sign = "+" if s.difference > 0 else ""
    points = " percentage points" if s.is_share else ""
    told = f"{sign}{_scaled(s, s.difference)}{error}{points}"
    return f"{s.name}: {_value(s, s.baseline)} and {_value(s, s.other)}, {told} {how}."


def _scaled(s: ScoresCompared, value: float) -> str:
    return figure(100.0 * value if s.is_share else value)


def _value(s: ScoresCompared, value: float) -> str:
    return share(value) if s.is_share else figure(value)


def sections(c: Comparison) -> list[Section]:
    """The tables of the comparison.

    Args:
        c: the comparison.
    """
    found = [Section("figures", "Figures", "", "", tuple(_figure_tables(c.figures)))]
    if c.scores:
        found.append(Section("evaluations", "Evaluations", "", "", (_score_table(c.scores),)))
    found.append(_work(c))
    refused = [f for f in c.figures if f.reason and f.saved is None]
    if refused:
        lead = "What a difference of the runs explains, and figures of different provenance or "
        lead += "kind, are not held against each other."
        cells = [(f.name, _told(f, 0), _told(f, 1), f.reason or "") for f in refused]
        heads = ("figure", "first", "other", "why")
        found.append(Section("refused", "Not compared", lead, "", (table(heads, cells, 4),)))
    return found


def _told(f: Compared, which: int) -> str:
    value = (f.baseline, f.other)[which]
    provenance = (f.baseline_provenance, f.other_provenance)[which]
    return MISSING if value is None else f"{_cell(f, value)} ({provenance})"


def _figure_tables(figures: Sequence[Compared]) -> list[Table]:
    """A table for each provenance: a column never holds figures of two."""
    by_provenance: dict[Provenance | None, list[Compared]] = {}
    for f in figures:
        if (f.reason and f.saved is None) or (f.baseline is None and f.other is None):
            continue
        told = f.other_provenance if f.other_provenance is not None else f.baseline_provenance
        by_provenance.setdefault(told, []).append(f)
    return [
        table(_HEADS, [_cells(f) for f in rows], 1, str(provenance))
        for provenance, rows in by_provenance.items()
    ]


def _cells(f: Compared) -> tuple[str, ...]:
    part = share(f.share) if f.share is not None and f.unit != "s" else MISSING
    return (f.name, _cell(f, f.baseline), _cell(f, f.other), _cell(f, f.saved), part)


def _cell(f: Compared, value: float | None) -> str:
    if value is None:
        return MISSING
    if f.unit == "s":
        return duration(value) if value else "0 s"
    if f.unit == "J":
        return joules(value)
    if f.unit == "J/token":
        factor, unit = edi_unit([f.baseline, f.other])
        return f"{figure(value * factor)} {unit}"
    if f.unit == "bytes":
        return f"{figure(value / 2**20)} MiB"
    if f.unit.startswith("gCO"):
        return grams(value, f.unit.removeprefix("g"))
    return f"{figure(value)} {f.unit}".rstrip()


def _score_table(scores: Sequence[ScoresCompared]) -> Table:
    heads = ("evaluation", "first ± SE", "other ± SE", "other - first ± SE", "items")
    cells = [
        (
            s.name,
            with_spread(s.baseline, s.baseline_error),
            with_spread(s.other, s.other_error),
            with_spread(s.difference, s.difference_error),
            "the same, in pairs" if s.paired else "others",
        )
        for s in scores
    ]
    return table(heads, cells, 1, "measured")


def _work(c: Comparison) -> Section:
    one, two = c.baseline.work, c.other.work
    rows = [
        ("steps", f"{one.n_steps:,}", f"{two.n_steps:,}"),
        ("samples", count(one.n_samples), count(two.n_samples)),
        ("tokens", count(one.n_tokens), count(two.n_tokens)),
        ("effective batch size", count(one.effective_batch_size), count(two.effective_batch_size)),
        ("accumulation steps", count(one.accumulation_steps), count(two.accumulation_steps)),
    ]
    if one.gears or two.gears:
        first, second = (shares_words(work.gears) or MISSING for work in (one, two))
        rows.append(("numeric formats of training", first, second))
    if one.widths or two.widths:
        first, second = (", ".join(map(str, work.widths)) or MISSING for work in (one, two))
        rows.append(("training workers", first, second))
    lead = "The same, as far as the records tell."
    if not c.likeness.same_work:
        lead = f"Not the same: {'; '.join((*c.likeness.amounts, *c.likeness.kinds))}."
    return Section("work", "Work", lead, "", (table(("", "first", "other"), rows, 1),))
