"""Figures over seeds as cells of a table."""

from __future__ import annotations

from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult
from ecorl.bench.tokens_per_joule.summary import OverSeeds, energy_provenance
from ecorl.records import Provenance
from ecorl.report.render.numbers import MISSING, figure


def arm_name(result: BenchResult, arm: ArmEntry) -> str:
    """An arm's name; with the number of its runs where some are missing.

    Args:
        result: of the benchmark.
        arm: of it.
    """
    n, n_all = len(result.of(arm.name)), sum(run.arm == arm.name for run in result.runs)
    return arm.name if n == n_all else f"{arm.name} ({n} of {n_all})"


def grouped_arms(result: BenchResult) -> list[tuple[Provenance | None, list[ArmEntry]]]:
    """The arms by the provenance of their joules; those without runs stand with the first group."""
    groups: dict[Provenance | None, list[ArmEntry]] = {}
    without = []
    for arm in result.arms:
        runs = result.of(arm.name)
        if runs:
            groups.setdefault(energy_provenance(runs), []).append(arm)
        else:
            without.append(arm)
    if not groups:
        return [(None, without)]
    next(iter(groups.values())).extend(without)
    order = [*Provenance, None]
    return sorted(groups.items(), key=lambda item: order.index(item[0]))


def arms_with_card(result: BenchResult) -> list[ArmEntry]:
    """The arms in which a card was simulated."""
    return [a for a in result.arms if has_card(result, a)]


def has_card(result: BenchResult, arm: ArmEntry) -> bool:
    """Whether a card was simulated in some run of an arm."""
    return any(run.card is not None for run in result.of(arm.name))


def is_simulating(result: BenchResult, arm: ArmEntry) -> bool:
    """Whether this host computed what the card would, in steps that count."""
    cards = (run.card for run in result.of(arm.name))
    return any(card is not None and card.work_j != 0 for card in cards)


def n_seeds(result: BenchResult) -> str:
    """How many seeds there are, in words."""
    n = len(result.seeds)
    return f"{n} seed{'s' * (n != 1)}"


FACTOR_ONE = 1.0


def middle(found: OverSeeds | None, factor: float = FACTOR_ONE, bound: str = "") -> str:
    """The median; ``-`` where there is none.

    Args:
        found: over the seeds.
        factor: by which the unit shown is smaller.
        bound: what stands before it where it is a bound only.
    """
    if found is None:
        return MISSING
    return f"{bound}{figure(found.median * factor)}"


def ends(found: OverSeeds | None, factor: float = FACTOR_ONE) -> tuple[str, str]:
    """The ends of the spread; ``-`` where there is none.

    Args:
        found: over the seeds.
        factor: by which the unit shown is smaller.
    """
    if found is None or found.interval is None:
        return MISSING, MISSING
    low, high = found.interval
    return figure(low * factor), figure(high * factor)


def per_cent(found: OverSeeds | None) -> str:
    """The median of a share, in per cent without the sign."""
    return MISSING if found is None else f"{100 * found.median:.1f}"
