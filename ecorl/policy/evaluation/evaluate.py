"""Compares policies on scenarios that training did not see, on the same episodes.

The scale: 0 % is always-GPU, 100 % the clairvoyant dynamic programme, both in Eq. 7; the causal
share has the best planner that knows no future as its 100 %. A share counts only on scenarios that
are hard enough (`Hardness`); where the dynamic programme gains less than `LITTLE` over always-GPU
a share means nothing, and the loss in energy stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from ecorl.child_process import quiet_worker
from ecorl.policy.evaluation.statistics import (
    Difference,
    MeanEstimate,
    estimate,
    paired,
    ratio_values,
)
from ecorl.policy.planners.heuristics import (
    Random,
    StaticBaseline,
    ThresholdBaseline,
    algorithm1,
    always_gpu,
    best_static,
    best_threshold,
    edi_greedy,
    edi_queue,
)
from ecorl.policy.planners.planner import Clairvoyant, Planner
from ecorl.policy.planners.search import Codes, lookahead
from ecorl.policy.training.network import permitted_codes
from ecorl.scheduler.learned import PolicyFile
from ecorl.scheduler.tables import Float64
from ecorl.sim.batched import observe
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace

SimPolicy = Callable[[Simulation], Codes]

N_SEEDS = 10
LITTLE = 0.001
"""Eq. 7 an iteration below which there is nothing to share: a tenth of a percent of an iteration's
time or energy, weighted."""

HARD_RANDOM, HARD_STATIC, HARD_THRESHOLD = 0.0, 0.60, 0.90
_TUNING_SEED, _EVALUATION_SEED = 31, 57
_TUNING_ITERATIONS = 50
"""Of each of four episodes on which the simple rules are tuned."""

N_WORKERS = 2
"""Processes that play scenarios."""

ORDER = (
    "always_gpu", "random", "edi", "edi_queue", "algorithm1", "static", "threshold", "lookahead",
    "planner", "dp",
)  # fmt: skip
"""Policies that are always in the comparison; trained ones stand between the last three."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Score, energy and time of one policy in one scenario, a value a seed.

    Attributes:
        score: Eq. 7 an iteration.
        energy: energy over that of always-GPU, whose bill holds the cards that idle, 1.
        time: time over that of always-GPU, 1.
        energy_without_cards: energy over that of the same GPUs in a machine without cards, 1.
    """

    score: Float64
    energy: Float64
    time: Float64
    energy_without_cards: Float64


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Scores of all policies in one scenario.

    Attributes:
        scenario: which.
        scores: by policy.
    """

    scenario: Scenario
    scores: Mapping[str, Scores]

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
        """Whether simple rules fail: random at most 0 %, static 60 %, threshold 90 %."""
        return (
            self.has_value
            and self.share("random") <= HARD_RANDOM
            and self.share("static") <= HARD_STATIC
            and self.share("threshold") <= HARD_THRESHOLD
        )

    def energy_without_cards(self, policy: str) -> float:
        """Mean energy of a policy over that of the same GPUs in a machine without cards."""
        return float(self.scores[policy].energy_without_cards.mean())

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

    def differences(
        self, ours: str, of: str = "dp", results: Sequence[ScenarioResult] | None = None
    ) -> dict[str, Difference]:
        """Share of one policy less that of each other one, on the same episodes.

        Args:
            ours: name of the policy that is compared with the others.
            of: name of the policy that is 100 %.
            results: scenarios that count; None: the hard ones.

        Returns:
            By the other policy's name, corrected for their number; empty without any scenario.
        """
        chosen = self.hard() if results is None else results
        others = [p for p in self.policies if p not in (ours, of, "always_gpu")]
        if not chosen:
            return {}
        mine = _share_values(chosen, ours, of)
        return {
            other: paired(mine, _share_values(chosen, other, of), len(others)) for other in others
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain data: scores of all policies, scenarios and seeds."""
        return {
            "policies": list(self.policies),
            "scenarios": [
                {
                    "name": r.scenario.name,
                    "gain": r.gain,
                    "has_value": r.has_value,
                    "hard": r.hard,
                    "scores": {
                        name: {
                            "score": s.score.tolist(),
                            "energy": s.energy.tolist(),
                            "time": s.time.tolist(),
                            "energy_without_cards": s.energy_without_cards.tolist(),
                        }
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


@dataclass(slots=True)
class FilePolicy:
    """A policy file on a batched simulation.

    Attributes:
        file: loaded.
    """

    file: PolicyFile = field(repr=False)

    def __call__(self, simulation: Simulation) -> Codes:
        """The best action that the guards let through, and the guard that it learned beside."""
        rules, margin = simulation.rules, self.file.energy_margin
        if margin is not None:
            limit = np.minimum(rules.energy_limit, 1.0 + margin)
            simulation.rules = rules._replace(energy_limit=limit)
        seen, may = observe(simulation)
        simulation.rules = rules
        return permitted_codes(self.file.batch(seen), may)


def compare(
    scenarios: Sequence[Scenario],
    trained: Mapping[str, SimPolicy],
    *,
    n_seeds: int = N_SEEDS,
    seed: int = 0,
    baselines: bool = True,
    tell: Callable[[str, float], None] | None = None,
) -> PolicyComparison:
    """Play all policies on the same episodes.

    Static and threshold are tuned on other episodes of the same scenario.

    Args:
        scenarios: to compare on.
        trained: further policies by name.
        n_seeds: episodes of each scenario.
        seed: of the episodes.
        baselines: False: only always-GPU, planner, dynamic programme and the trained ones; then
            no scenario counts as hard.
        tell: told how far it is.
    """
    tell = tell or (lambda step, share: None)
    tuned = _tune(scenarios, seed, tell) if baselines else None
    jobs = [_Job(s, i, seed, n_seeds, trained, tuned) for i, s in enumerate(scenarios)]
    found: list[ScenarioResult] = []
    # Forked: a loaded policy cannot be handed over, but it can be inherited.
    _inherited[:] = jobs
    try:
        with ProcessPoolExecutor(N_WORKERS, get_context("fork"), initializer=quiet_worker) as pool:
            for i, result in enumerate(pool.map(_play_job, range(len(jobs)))):
                found.append(result)
                tell(result.scenario.name, 0.4 + 0.6 * (i + 1) / len(jobs))
    finally:
        _inherited.clear()
    names = tuple(found[0].scores) if found else ORDER
    return PolicyComparison(tuple(found), names)


@dataclass(frozen=True, slots=True)
class _Job:
    """One scenario of a comparison."""

    scenario: Scenario
    place: int
    seed: int
    n_seeds: int
    trained: Mapping[str, SimPolicy]
    tuned: tuple[list[Codes], list[ThresholdBaseline]] | None

    def play(self) -> ScenarioResult:
        """Play all policies on the same episodes."""
        i, n_seeds = self.place, self.n_seeds
        rng = np.random.default_rng([self.seed, _EVALUATION_SEED, i])
        trace = draw_trace([self.scenario] * n_seeds, rng)
        policies: dict[str, SimPolicy] = {"always_gpu": always_gpu}
        if self.tuned is not None:
            statics, thresholds = self.tuned
            policies |= {
                "random": Random(self.seed + i),
                "edi": edi_greedy,
                "edi_queue": edi_queue,
                "algorithm1": algorithm1,
                "static": StaticBaseline(statics[i]),
                "threshold": thresholds[i],
                "lookahead": lookahead,
            }
        policies |= self.trained
        policies |= {"planner": Planner(trace.scenarios), "dp": Clairvoyant(trace)}
        gpu_j, gpu_s = trace.gpu_only_j.sum(axis=0), trace.gpu_only_s.sum(axis=0)
        idle_j = (trace.actual.card_idle_w * trace.gpu_only_s).sum(axis=0)
        scores = {}
        for name, policy in policies.items():
            score, energy_j, time_s, _ = play(Simulation(trace), policy)
            scores[name] = Scores(
                np.broadcast_to(score, (n_seeds,)) / trace.n_iterations,
                energy_j / gpu_j,
                time_s / gpu_s,
                energy_j / (gpu_j - idle_j),
            )
        return ScenarioResult(self.scenario, scores)


_inherited: list[_Job] = []


def _play_job(place: int) -> ScenarioResult:
    return _inherited[place].play()


def _tune(
    scenarios: Sequence[Scenario], seed: int, tell: Callable[[str, float], None]
) -> tuple[list[Codes], list[ThresholdBaseline]]:
    """The best static sequence and thresholds of each scenario, on episodes of their own."""
    n_tuning = 4
    rng = np.random.default_rng([seed, _TUNING_SEED])
    n_iterations = min(_TUNING_ITERATIONS, *(s.n_iterations for s in scenarios))
    short = [replace(s, n_iterations=n_iterations) for s in scenarios]
    trace = draw_trace([s for s in short for _ in range(n_tuning)], rng)
    tell("tuning the static policy", 0.0)
    statics = best_static(trace)[::n_tuning]
    tell("tuning the thresholds", 0.25)
    best = best_threshold(trace)
    columns = [np.asarray(x)[::n_tuning] for x in (best.max_length, best.max_wait, best.defer)]
    thresholds = [ThresholdBaseline(*(float(c[i]) for c in columns)) for i in range(len(scenarios))]
    return [statics[i] for i in range(len(scenarios))], thresholds
