"""What policies reached on the same episodes, scenario by scenario, and how they compare.

The scale: 0 % is always-GPU, 100 % the clairvoyant dynamic programme, both in Eq. 7; the causal
share has the best planner that knows no future as its 100 %. Both know the true costs, which the
other policies do not. A share counts only on scenarios that are hard enough, which is judged on
episodes of their own; where the dynamic programme gains less than `LITTLE` over always-GPU a share
means nothing, and the loss in energy stands in its place.

What there is to gain at all is told against the same GPUs in a machine without cards
(`PolicyComparison.value`): cards that stand by draw power too.

Every policy plays the same drawn episodes, and episodes differ far more from one another than
policies do. So two policies are compared episode by episode: the differences are tested against 0
(the paired t-test), with Bonferroni's correction where one policy is compared with several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from scipy import stats

from ecorl.scheduler.tables import Float64
from ecorl.sim.scenario import Scenario

LEVEL = 0.05
"""Level of all comparisons of one policy together, and 1 less the coverage of an interval."""

_ROUNDING = 1e-12
"""Spread over size below which values count as equal: rounding alone leaves less."""


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean and how far it can be trusted.

    Attributes:
        mean: in the unit of the values.
        error: its standard error; 0 where the values are equal.
        low, high: interval of Student's t around it.
        n: values.
    """

    mean: float
    error: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Difference:
    """One policy against another on the same episodes.

    Attributes:
        mean: mean difference, in the unit of the values.
        low, high: its interval, at the corrected level.
        p_value: of the two-sided paired t-test, uncorrected; None where all differences are equal.
        significant: whether the difference is other than 0 at the corrected level.
        level: the corrected level.
    """

    mean: float
    low: float
    high: float
    p_value: float | None
    significant: bool
    level: float


def estimate(values: Float64, level: float = LEVEL) -> MeanEstimate:
    """Mean of independent values, with its standard error and interval.

    Args:
        values: ``[n] float64``, one a seed, n of 2 or more.
        level: 1 less the coverage of the interval.

    Raises:
        ValueError: with fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("at least two values are needed")
    mean = float(np.mean(values))
    if np.ptp(values) <= _ROUNDING * np.abs(values).max():
        return MeanEstimate(mean, 0.0, mean, mean, n)
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    half = float(stats.t.ppf(1.0 - level / 2.0, n - 1)) * error
    return MeanEstimate(mean, error, mean - half, mean + half, n)


def paired(ours: Float64, theirs: Float64, n_comparisons: int = 1) -> Difference:
    """Paired t-test of two policies on the same episodes.

    Args:
        ours: ``[n] float64``, one value an episode or seed, n of 2 or more.
        theirs: the same of the other policy, in the same order.
        n_comparisons: that are made with the same policy; `LEVEL` is divided by it (Bonferroni).

    Raises:
        ValueError: with fewer than two values, an unequal number of them, or no comparison.
    """
    if len(ours) != len(theirs) or n_comparisons < 1:
        raise ValueError("as many values on each side and at least one comparison are needed")
    corrected = LEVEL / n_comparisons
    # Rounding is judged by the size of what is subtracted, not by that of the difference.
    scale = max(float(np.abs(ours).max()), float(np.abs(theirs).max()))
    off = np.asarray(ours, dtype=np.float64) - theirs
    if np.ptp(off) <= _ROUNDING * scale:
        off = np.full(len(off), off.mean() if abs(off.mean()) > _ROUNDING * scale else 0.0)
    found = estimate(off, corrected)
    if found.error == 0.0:
        differs = found.mean != 0.0
        return Difference(found.mean, found.low, found.high, None, differs, corrected)
    p_value = float(2.0 * stats.t.sf(abs(found.mean) / found.error, found.n - 1))
    return Difference(found.mean, found.low, found.high, p_value, p_value < corrected, corrected)


def ratio_values(numerator: Float64, denominator: Float64) -> Float64:
    """Values whose mean is a ratio of means, and whose spread is that ratio's (delta method).

    To first order the error of ``R = mean(x) / mean(y)`` is the mean of ``(x - R y) / mean(y)``:
    where both were measured on the same episodes, what they have in common cancels.

    Args:
        numerator: ``[n] float64``, x of each episode.
        denominator: ``[n] float64``, y of the same episodes; its mean is not 0.

    Returns:
        ``[n] float64``: ``R + (x - R y) / mean(y)``, for `estimate` and `paired`.
    """
    below = float(np.mean(denominator))
    ratio = float(np.mean(numerator)) / below
    return np.asarray(ratio + (numerator - ratio * denominator) / below)


LITTLE = 0.001
"""Eq. 7 an iteration below which there is nothing to share: a tenth of a percent of an iteration's
time or energy, weighted."""

HARD_RULE = 0.90
"""Most of the planner's score that the best rule reaches in a hard scenario."""
RULES = (
    "always_gpu", "always_a3", "static", "threshold", "algorithm1", "edi", "edi_queue",
    "gain_greedy", "lookahead", "lookahead_defer", "lookahead_measured", "lookahead_probing",
)  # fmt: skip
"""Policies without training that a run could have; `lookahead_measured` is the ``lookahead`` of its
config."""
TUNED = ("static", "threshold", "lookahead_probing")
"""Those of them whose choices are made for each job, on trial runs of jobs of its kind."""
UNTUNED = tuple(name for name in RULES if name not in TUNED)
"""Those that are as they come."""
ORDER = (*RULES, "random", "planner_nominal", "planner", "dp")
"""Policies that are always in the comparison; trained ones stand between the rules and the last."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Score, energy and time of one policy in one scenario, a value a seed.

    Attributes:
        score: Eq. 7 an iteration, against the cards standing by.
        score_alone: Eq. 7 an iteration, against the same GPUs in a machine without cards.
        energy: energy over that of always-GPU, whose bill holds the cards that stand by, 1.
        time: time over that of always-GPU, 1.
        energy_without_cards: energy over that of the same GPUs in a machine without cards, 1.
    """

    score: Float64
    score_alone: Float64
    energy: Float64
    time: Float64
    energy_without_cards: Float64


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Scores of all policies in one scenario.

    Attributes:
        scenario: which.
        scores: by policy.
        judged: mean score of each rule and of the planner on other episodes; empty where the rules
            did not play.
    """

    scenario: Scenario
    scores: Mapping[str, Scores]
    judged: Mapping[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """What the dynamic programme gains over always-GPU, Eq. 7 an iteration."""
        return float(self.scores["dp"].score.mean())

    @property
    def has_value(self) -> bool:
        """Whether there is something to share."""
        return self.gain >= LITTLE

    def share(self, policy: str, of: str = "dp") -> float:
        """Mean score over the mean of another policy.

        Args:
            policy: name of the policy.
            of: name of the policy that is 100 %.
        """
        return float(self.scores[policy].score.mean() / self.scores[of].score.mean())

    def share_values(self, policy: str, of: str = "dp") -> Float64:
        """A value a seed ``[n_seeds] float64`` whose mean is the share, and whose spread its error.

        Args:
            policy: name of the policy.
            of: name of the policy that is 100 %; it played the same episodes.
        """
        return ratio_values(self.scores[policy].score, self.scores[of].score)

    @property
    def hard(self) -> bool:
        """Whether simple rules fail: on other episodes the best reaches 90 % of the planner."""
        if not self.judged or self.judged["planner"] < LITTLE:
            return False
        best = max(self.judged[name] for name in RULES)
        return self.has_value and best <= HARD_RULE * self.judged["planner"]

    def worst_loss(self, policy: str) -> float:
        """Most energy above always-GPU's over the seeds, as a share of it; 0 without a loss."""
        return float(np.maximum(self.scores[policy].energy - 1.0, 0.0).max())


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """Scores of all policies over several scenarios.

    Attributes:
        results: one a scenario.
        policies: names, in the order of the table.
    """

    results: tuple[ScenarioResult, ...]
    policies: tuple[str, ...]

    def hard(self) -> tuple[ScenarioResult, ...]:
        """The scenarios in which a share counts."""
        return tuple(r for r in self.results if r.hard)

    def valued(self) -> tuple[ScenarioResult, ...]:
        """The scenarios in which there is something to share."""
        return tuple(r for r in self.results if r.has_value)

    def mean_share(
        self, policy: str, of: str = "dp", results: Sequence[ScenarioResult] | None = None
    ) -> MeanEstimate | None:
        """Share of a policy, mean over scenarios, with its error over seeds.

        Args:
            policy: name of the policy.
            of: name of the policy that is 100 %.
            results: scenarios that count; None: the hard ones.

        Returns:
            None without any scenario.
        """
        chosen = self.hard() if results is None else results
        return mean_share(chosen, policy, of)

    def best_rule(self, rules: Sequence[str] = RULES) -> str:
        """Name the rule with the greatest mean score; it is picked by what it reached here.

        Args:
            rules: of which.
        """
        return max(rules, key=lambda name: float(np.mean(self._means(name))))

    def gain(self, ours: str, other: str) -> Difference:
        """Compare two policies, Eq. 7 an iteration, by the means of each scenario.

        Scenarios are independent jobs, so the interval is over them.

        Args:
            ours: name of the policy that is compared.
            other: name of the policy that it is compared with, on the same episodes.
        """
        return paired(self._means(ours), self._means(other))

    def value(self, policy: str = "dp") -> tuple[Float64, Float64]:
        """Return what a policy saves over the same GPUs without cards, energy and time, shares.

        Args:
            policy: name of the policy.

        Returns:
            One value a scenario each, ``[n_scenarios] float64``; negative where it costs more.
        """
        scores = [r.scores[policy] for r in self.results]
        energy = [1.0 - float(s.energy_without_cards.mean()) for s in scores]
        return np.array(energy), np.array([1.0 - float(s.time.mean()) for s in scores])

    def _means(self, policy: str) -> Float64:
        return np.array([float(r.scores[policy].score.mean()) for r in self.results])

    def differences(
        self, ours: str, results: Sequence[ScenarioResult] | None = None
    ) -> dict[str, Difference]:
        """Share of the optimum of one policy less that of each other one, on the same episodes.

        Args:
            ours: name of the policy that is compared with the others.
            results: scenarios that count; None: the hard ones.

        Returns:
            By the other policy's name, corrected for their number; empty without any scenario.
        """
        chosen = self.hard() if results is None else results
        others = [p for p in self.policies if p not in (ours, "dp", "always_gpu")]
        if not chosen:
            return {}
        mine = _share_values(chosen, ours, "dp")
        return {
            other: paired(mine, _share_values(chosen, other, "dp"), len(others)) for other in others
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain data: scores of all policies, scenarios and seeds."""
        return {
            "policies": list(self.policies),
            "scenarios": [
                {
                    "name": r.scenario.name,
                    "replay": r.scenario.replay and r.scenario.replay.origin(),
                    "gain": r.gain,
                    "has_value": r.has_value,
                    "hard": r.hard,
                    "scores": {
                        name: {f.name: getattr(s, f.name).tolist() for f in fields(s)}
                        for name, s in r.scores.items()
                    },
                }
                for r in self.results
            ],
        }


def mean_share(results: Sequence[ScenarioResult], policy: str, of: str) -> MeanEstimate | None:
    """Share of a policy, mean over scenarios, with its error over seeds; None without scenarios.

    Args:
        results: the scenarios; each counts as much as the others.
        policy: name of the policy.
        of: name of the policy that is 100 %.
    """
    return estimate(_share_values(results, policy, of)) if results else None


def _share_values(results: Sequence[ScenarioResult], policy: str, of: str) -> Float64:
    # Episodes of different scenarios are independent, so a seed's mean over them has their error.
    return np.asarray(np.mean([r.share_values(policy, of) for r in results], axis=0))
