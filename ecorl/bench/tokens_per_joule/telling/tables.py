"""The result as tables. No column holds figures of two provenances.

Arms stand in tables by where their joules come from; a simulated card's figures stand in tables of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult
from ecorl.bench.tokens_per_joule.running.idle import IdleReading
from ecorl.bench.tokens_per_joule.summary import (
    FINAL_CORRECT,
    FINAL_REWARD,
    TOKENS_PER_J,
    WITH_CARD,
    Getter,
    arm_name,
    arms_with_card,
    ends,
    energy_provenance,
    grouped_arms,
    is_bound,
    middle,
    n_seeds,
    over_baseline,
    over_seeds,
    over_supervised,
    per_cent,
    ratio_bound,
    spread_words,
)
from ecorl.bench.tokens_per_joule.telling.energy_tables import (
    emissions_section,
    energy_section,
    quality_section,
    stages_section,
)
from ecorl.report.render.lines import Section, table
from ecorl.report.render.numbers import MISSING, figure

_RATE_HEADS = ("arm", "tokens/J", "low", "high", "x base", "low", "high", "J/sample")


def sections(result: BenchResult) -> list[Section]:
    """All sections, in the order in which they are shown.

    Args:
        result: of the benchmark.
    """
    found = [
        _tokens(result),
        _speed(result),
        energy_section(result),
        emissions_section(result),
        stages_section(result),
        quality_section(result),
        _supervised(result),
        _idle(result),
    ]
    return [section for section in found if section.tables or section.lead]


# ---------------------------------------------------------------- tokens per joule


def _tokens(result: BenchResult) -> Section:
    base = result.baseline
    tables = []
    for provenance, arms in grouped_arms(result):
        rows = [
            _rate_row(result, arm, TOKENS_PER_J, TOKENS_PER_J, lambda run: run.j_per_sample)
            for arm in arms
        ]
        whose = f"energy {provenance}" if provenance else "no energy is known"
        tables.append(table(_RATE_HEADS, rows, 1, f"this machine alone, {whose}"))
    card_rows = [
        _rate_row(
            result, arm, WITH_CARD, TOKENS_PER_J, lambda run: run.j_per_sample_with_card
        )
        for arm in arms_with_card(result)
    ]  # fmt: skip
    if card_rows:
        caption = "with the simulated card, in its modelled time (modelled)"
        tables.append(table(_RATE_HEADS, card_rows, 1, caption))
    lead = (
        "Output tokens of the actor over all energy of the steps that count, idle draw included. "
        f"Median over {n_seeds(result)}; low and high are {spread_words(result)}; x base: "
        f"over {base} with the same seed."
    )
    return Section("tokens", "Tokens per joule", lead, "tokens", tuple(tables))


def _rate_row(
    result: BenchResult, arm: ArmEntry, rate: Getter, of_baseline: Getter, per_sample: Getter
) -> tuple[str, ...]:
    found = over_seeds(result, arm.name, rate)
    ratio, of_ratio = None, ratio_bound(result, arm.name)
    if of_ratio is not None and _is_comparable(result, arm, rate, of_baseline):
        ratio = over_baseline(result, arm.name, rate, of_baseline)
    bounded = is_bound(result.of(arm.name))
    return (
        arm_name(result, arm),
        middle(found, bound="<= " * bounded),
        *ends(found),
        middle(ratio, bound=of_ratio or ""),
        *ends(ratio),
        middle(over_seeds(result, arm.name, per_sample), bound=">= " * bounded),
    )


def _is_comparable(result: BenchResult, arm: ArmEntry, rate: Getter, of_baseline: Getter) -> bool:
    """Whether a ratio to the baseline says something: with a card always, as it is modelled."""
    if rate is not of_baseline:
        return True
    own, base = (energy_provenance(result.of(name)) for name in (arm.name, result.baseline))
    # A measured figure over a modelled one would be neither.
    return arm.name != result.baseline and own is base


# ---------------------------------------------------------------- time


def _speed(result: BenchResult) -> Section:
    heads = ("arm", "samples/s", "low", "high", "bubble", "reward left", "ref. left")
    rows = []
    for arm in result.arms:
        if not result.of(arm.name):
            continue
        rate = over_seeds(result, arm.name, lambda run: run.samples_per_s)
        left = (over_seeds(result, arm.name, _left(stage)) for stage in ("reward", "reference"))
        rows.append(
            (
                arm_name(result, arm),
                middle(rate),
                *ends(rate),
                per_cent(over_seeds(result, arm.name, lambda run: run.bubble)),
                *map(per_cent, left),
            )
        )
    tables = [table(heads, rows, 1, "as it ran (measured); bubble and left in %")] if rows else []
    card_rows = []
    for arm in arms_with_card(result):
        rate = over_seeds(result, arm.name, lambda run: run.samples_per_s_with_card)
        bubble = over_seeds(result, arm.name, lambda run: run.bubble_with_card)
        card_rows.append((arm_name(result, arm), middle(rate), *ends(rate), per_cent(bubble)))
    if card_rows:
        caption = "had the simulated card answered in its modelled time (modelled); bubble in %"
        tables.append(table(heads[:5], card_rows, 1, caption))
    lead = (
        "Completions a second. Bubble: share of the time in which the device on which the "
        "framework computes ran no stage. Left: share of the batches that left for the card."
    )
    return Section("speed", "Samples per second", lead, "", tuple(tables))


def _left(stage: str) -> Getter:
    """Share of the batches of a stage that left for the card."""
    return lambda run: run.offloaded.get(stage)


# ---------------------------------------------------------------- beside the arms


def _supervised(result: BenchResult) -> Section:
    known = [run for run in result.supervised if not run.missing]
    if not known:
        return Section("supervised", "Supervised training of the same policy")
    provenance = energy_provenance(known)
    heads = ("training", "tokens/J", "low", "high", "all tokens/J", "reward", "right, %")
    rate = over_supervised(result, TOKENS_PER_J)
    every = over_supervised(result, _all_tokens_per_j)
    row = (
        "supervised",
        middle(rate),
        *ends(rate),
        middle(every),
        middle(over_supervised(result, FINAL_REWARD)),
        per_cent(over_supervised(result, FINAL_CORRECT)),
    )
    tables = [table(heads, [row], 1, f"energy {provenance or 'missing'}, quality measured")]
    base = result.baseline
    runs = result.of(base)
    if runs and energy_provenance(runs) is provenance:
        rate = over_seeds(result, base, TOKENS_PER_J)
        other = (
            base,
            middle(rate, bound="<= " * is_bound(runs)),
            *ends(rate),
            MISSING,
            middle(over_seeds(result, base, FINAL_REWARD)),
            per_cent(over_seeds(result, base, FINAL_CORRECT)),
        )
        tables = [table(heads, [row, other], 1, f"energy {provenance}, quality measured")]
    lead = (
        "The same policy, prompts, rows a step and steps, on reference answers. Its tokens are "
        "those that it trains on, of the answers alone; all tokens: with those of the prompts. It "
        "generates nothing, so that a token takes less: the two rates are of two kinds of work."
    )
    return Section("supervised", "Supervised training of the same policy", lead, "", tuple(tables))


def _all_tokens_per_j(run: RunFigures) -> float | None:
    if run.machine is None or run.n_all_tokens is None or not run.machine.energy_j:
        return None
    return run.n_all_tokens / run.machine.energy_j


def _idle(result: BenchResult) -> Section:
    """A table for each provenance of the readings."""
    tables = []
    found = [r for r in result.idle if r.provenance is not None]
    for provenance in dict.fromkeys(r.provenance for r in found):
        own = [r for r in found if r.provenance is provenance]
        rows = [
            (device_id, *(_mean_w(own, device_id, when) for when in ("before", "after")))
            for device_id in dict.fromkeys(r.device_id for r in own)
        ]
        tables.append(table(("device", "before, W", "after, W"), rows, 1, str(provenance)))
    instruments = tuple(dict.fromkeys(f"{r.device_id}: {r.source}" for r in result.idle))
    lead = "" if tables else "The idle machine was not read, or no instrument answered."
    if tables:
        lead = (
            "What the devices drew with nothing running, before the first run and after the last."
        )
    return Section("idle", "The idle machine", lead, "", tuple(tables), instruments)


def _mean_w(readings: Sequence[IdleReading], device_id: str, when: str) -> str:
    own = [r.power_w for r in readings if (r.device_id, r.when) == (device_id, when)]
    known = [value for value in own if value is not None]
    return figure(sum(known) / len(known)) if known else MISSING
