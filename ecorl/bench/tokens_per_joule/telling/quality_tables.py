"""What a trainer asks: seconds and joules to a given held-out quality, and the final quality."""

from __future__ import annotations

from collections.abc import Callable

from ecorl.bench.tokens_per_joule.reading.model import QualityPoint, RunFigures
from ecorl.bench.tokens_per_joule.reading.quality import QualityTarget, first_reached
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult
from ecorl.bench.tokens_per_joule.summary import (
    Getter,
    OverSeeds,
    energy_provenance,
    over_seeds,
)
from ecorl.bench.tokens_per_joule.telling.cells import middle, per_cent
from ecorl.records import Provenance
from ecorl.report.render.layout import Section, Table, table
from ecorl.report.render.numbers import MISSING, figure, share

NAMES = {"reward": "reward", "correct": "share of right answers"}


def quality_section(result: BenchResult) -> Section:
    """Make the tables of the time and the joules to each target, and of the final quality.

    Args:
        result: of the benchmark.
    """
    tables: list[Table] = []
    remarks = []
    for target in result.targets:
        name = NAMES[target.measure]
        if target.value is None:
            remarks.append(f"No target for the held-out {name}: {target.why}.")
            continue
        tables += _target_tables(result, target)
    final = [_final_row(result, arm) for arm in result.arms if _has_final(result, arm)]
    if final:
        heads = ("arm", "reward", "right, %")
        tables.append(table(heads, final, 1, "at the end of training (measured)"))
    lead = (
        "Time and joules of the training up to the first evaluation at or above the target, "
        "warm-up included and evaluations left out; nothing is interpolated between evaluations. "
        "Medians of the runs that reached it; a dash: none did."
    )
    return Section("quality", "To a given quality", lead, "quality", tuple(tables), tuple(remarks))


def _has_final(result: BenchResult, arm: ArmEntry) -> bool:
    return any(run.final is not None for run in result.of(arm.name))


def _target_tables(result: BenchResult, target: QualityTarget) -> list[Table]:
    shown = share(target.value, 1) if target.measure == "correct" else figure(target.value)
    what = f"held-out {NAMES[target.measure]} of {shown} ({target.why})"
    tables = []
    groups: dict[Provenance | None, list[ArmEntry]] = {}
    for arm in result.arms:
        if result.of(arm.name):
            groups.setdefault(energy_provenance(result.of(arm.name)), []).append(arm)
    for provenance, arms in groups.items():
        rows = [
            (
                arm.name,
                _reached(result, arm, target),
                _step(over_seeds(result, arm.name, at_target(target, lambda p: p.step))),
                middle(over_seeds(result, arm.name, at_target(target, lambda p: p.time_s))),
                middle(
                    over_seeds(result, arm.name, at_target(target, lambda p: p.energy_j)),
                    bound=">= " * any(_is_bound(run, target) for run in result.of(arm.name)),
                ),
            )
            for arm in arms
        ]
        caption = f"{what}; time measured, energy {provenance or 'missing'}"
        tables.append(table(("arm", "reached", "step", "s", "J"), rows, 1, caption))
    cards = [
        (
            arm.name,
            middle(over_seeds(result, arm.name, at_target(target, lambda p: p.with_card_s))),
            middle(over_seeds(result, arm.name, at_target(target, lambda p: p.with_card_j))),
        )
        for arm in result.arms
        if any(run.card is not None for run in result.of(arm.name))
    ]
    if cards:
        caption = "the same with the simulated card in its modelled time (modelled)"
        tables.append(table(("arm", "s", "J"), cards, 1, caption))
    return tables


def at_target(target: QualityTarget, take: Callable[[QualityPoint], float | None]) -> Getter:
    """Take something from the first evaluation of a run at or above a target.

    Args:
        target: the quality.
        take: takes it from the evaluation.
    """

    def found(run: RunFigures) -> float | None:
        point = first_reached(run, target)
        return None if point is None else take(point)

    return found


def _step(found: OverSeeds | None) -> str:
    return MISSING if found is None else f"{found.median:g}"


def _is_bound(run: RunFigures, target: QualityTarget) -> bool:
    point = first_reached(run, target)
    return point is not None and point.at_least


def _reached(result: BenchResult, arm: ArmEntry, target: QualityTarget) -> str:
    runs = result.of(arm.name)
    n = sum(first_reached(run, target) is not None for run in runs)
    return f"{n} of {len(runs)}"


def _final_row(result: BenchResult, arm: ArmEntry) -> tuple[str, ...]:
    return (
        arm.name,
        middle(over_seeds(result, arm.name, final_reward)),
        per_cent(over_seeds(result, arm.name, final_correct)),
    )


def final_reward(run: RunFigures) -> float | None:
    """The held-out reward after training; None where that was not evaluated."""
    return None if run.final is None else run.final.reward


def final_correct(run: RunFigures) -> float | None:
    """The share of right answers after training; None where that was not evaluated."""
    return None if run.final is None else run.final.correct
