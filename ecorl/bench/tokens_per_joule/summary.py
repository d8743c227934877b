"""The arms over all seeds as cells of tables: medians with their spread, and over the baseline.

Comparisons are in pairs: an arm's run over the baseline's run with the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ecorl.bench.stats import LEAST_VALUES, bootstrap_interval, median
from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult
from ecorl.records import Provenance, weakest
from ecorl.report.render.numbers import MISSING, figure

Getter = Callable[[RunFigures], float | None]


def figure_of(path: str) -> Getter:
    """Take the figure at a dotted path of a run; None where a part on the way is missing.

    Args:
        path: e.g. ``machine.energy_j``.
    """

    def take(run: RunFigures) -> float | None:
        found: Any = run
        for name in path.split("."):
            found = None if found is None else getattr(found, name)
        value: float | None = found
        return value

    return take


TOKENS_PER_J, WITH_CARD = figure_of("tokens_per_j"), figure_of("tokens_per_j_with_card")
FINAL_REWARD, FINAL_CORRECT = figure_of("final.reward"), figure_of("final.correct")


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """A figure over the seeds of an arm.

    Attributes:
        median: of the runs that have the figure.
        interval: lowest and highest of the runs where they are fewer than `LEAST_VALUES`, else the
            95 % bootstrap interval of their median; None of one run.
        n: runs that have the figure, of ``n_runs`` that were to be made.
        values: one a run, in the order of seeds.
    """

    median: float
    interval: tuple[float, float] | None
    n: int
    n_runs: int
    values: tuple[float, ...]

    @property
    def spread_name(self) -> str:
        """What the interval is."""
        return f"range of {self.n} runs" if self.n < LEAST_VALUES else "95 % interval"


def over_seeds(result: BenchResult, arm: str, getter: Getter) -> OverSeeds | None:
    """Sum up a figure of an arm; None where no run has it.

    Args:
        result: of the benchmark.
        arm: its name.
        getter: takes the figure from a run.
    """
    runs = [run for run in result.runs if run.arm == arm]
    return _summed(runs, getter)


def over_supervised(result: BenchResult, getter: Getter) -> OverSeeds | None:
    """Sum up a figure of supervised training; None where no run has it.

    Args:
        result: of the benchmark.
        getter: takes the figure from a run.
    """
    return _summed(result.supervised, getter)


def _summed(runs: Sequence[RunFigures], getter: Getter) -> OverSeeds | None:
    found = [None if run.missing else getter(run) for run in runs]
    values = [value for value in found if value is not None]
    if not values:
        return None
    interval = bootstrap_interval(values)
    if interval is None and len(values) > 1:
        interval = min(values), max(values)
    return OverSeeds(median(values), interval, len(values), len(runs), tuple(values))


def over_baseline(
    result: BenchResult, arm: str, getter: Getter, of_baseline: Getter | None = None
) -> OverSeeds | None:
    """Divide an arm's figure by the baseline's, seed by seed; None without a pair.

    Args:
        result: of the benchmark.
        arm: its name.
        getter: takes the figure from a run of the arm.
        of_baseline: takes it from a run of the baseline; by default the same.
    """
    take = of_baseline or getter
    base = {run.seed: take(run) for run in result.of(result.baseline)}
    runs = [run for run in result.runs if run.arm == arm]

    def ratio(run: RunFigures) -> float | None:
        own, other = getter(run), base.get(run.seed)
        return own / other if own is not None and other else None

    return _summed(runs, ratio)


def energy_provenance(runs: Sequence[RunFigures]) -> Provenance | None:
    """Where the machine's joules of some runs come from: the weakest; None without any."""
    found = [run.machine.provenance for run in runs if run.machine is not None]
    return weakest(*found) if found else None


def ratio_bound(result: BenchResult, arm: str) -> str | None:
    """What stands before a ratio to the baseline: ``<= `` or ``>= `` where joules are missing.

    Args:
        result: of the benchmark.
        arm: its name.

    Returns:
        Nothing where both are whole; None where both lack joules, so that nothing follows.
    """
    own, other = is_bound(result.of(arm)), is_bound(result.of(result.baseline))
    if own and other:
        return None
    return "<= " if own else ">= " if other else ""


def is_bound(runs: Sequence[RunFigures]) -> bool:
    """Whether joules are missing from some of these runs, so that figures are bounds."""
    return any(run.machine is not None and run.machine.at_least for run in runs)


def spread_words(result: BenchResult) -> str:
    """Say what the low and the high end of a figure over the seeds are."""
    if len(result.seeds) < LEAST_VALUES:
        return "the lowest and the highest of the runs"
    return "the 95 % bootstrap interval"


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


def middle(found: OverSeeds | None, factor: float = 1.0, bound: str = "") -> str:
    """The median; ``-`` where there is none.

    Args:
        found: over the seeds.
        factor: by which the unit shown is smaller.
        bound: what stands before it where it is a bound only.
    """
    if found is None:
        return MISSING
    return f"{bound}{figure(found.median * factor)}"


def ends(found: OverSeeds | None, factor: float = 1.0) -> tuple[str, str]:
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
