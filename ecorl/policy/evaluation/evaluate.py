"""Compares policies on scenarios that training did not see, on the same episodes.

The scale: 0 % is always-GPU, 100 % the clairvoyant dynamic programme, both in Eq. 7; the causal
share has the best planner that knows no future as its 100 %. Both know the true costs, which the
other policies do not. A share counts only on scenarios that are hard enough, which is judged on
episodes of their own; where the dynamic programme gains less than `LITTLE` over always-GPU a share
means nothing, and the loss in energy stands in its place.

What there is to gain at all is told against the same GPUs in a machine without cards
(`PolicyComparison.value`): cards that stand by draw power too.
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
    MeasuredLookahead,
    Random,
    StaticBaseline,
    ThresholdBaseline,
    algorithm1,
    always_concurrent,
    always_gpu,
    best_measured,
    best_static,
    best_threshold,
    edi_greedy,
    edi_queue,
    gain_greedy,
    lookahead_deferring,
)
from ecorl.policy.planners.planner import Clairvoyant, Planner
from ecorl.policy.planners.search import Codes, lookahead
from ecorl.policy.training.network import permitted_codes
from ecorl.scheduler.learned import PolicyFile
from ecorl.scheduler.tables import Float64
from ecorl.sim.batched import observe
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import CostView, Simulation, play
from ecorl.sim.trace import Trace, draw_trace

SimPolicy = Callable[[Simulation], Codes]

N_SEEDS = 10
LITTLE = 0.001
"""Eq. 7 an iteration below which there is nothing to share: a tenth of a percent of an iteration's
time or energy, weighted."""

HARD_RULE = 0.90
"""Most of the planner's score that the best rule reaches in a hard scenario."""
_TUNING_SEED, _EVALUATION_SEED, _JUDGING_SEED = 31, 57, 83
_N_TUNING, _TUNING_ITERATIONS = 3, 40
"""Episodes, and iterations of each, on which the simple rules are tuned. Where tables are wrong
each is of another job, since nobody knows beforehand how they are."""
_N_JUDGING = 2
"""Episodes on which it is judged whether a scenario is hard."""

N_WORKERS = 2
"""Processes that play scenarios."""

RULES = (
    "always_gpu", "always_a3", "static", "threshold", "algorithm1", "edi", "edi_queue",
    "gain_greedy", "lookahead", "lookahead_defer", "lookahead_measured",
)  # fmt: skip
"""Policies without training that a run could have."""
ORDER = (*RULES, "random", "planner_nominal", "planner", "dp")
"""Policies that are always in the comparison; trained ones stand between the rules and the last."""

_VIEWS = {
    **dict.fromkeys(
        ("lookahead", "lookahead_defer", "planner_nominal", "without_measured"), CostView.NOMINAL
    ),
    **dict.fromkeys(("planner", "dp"), CostView.TRUE),
}
"""What policies know of costs; the others have what a run has measured."""


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

    def best_rule(self) -> str:
        """Name the rule with the greatest mean score; it is picked by what it reached here."""
        return max(RULES, key=lambda name: float(np.mean(self._means(name))))

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
                    "replay": r.scenario.replay and r.scenario.replay.origin(),
                    "gain": r.gain,
                    "has_value": r.has_value,
                    "hard": r.hard,
                    "scores": {
                        name: {
                            "score": s.score.tolist(),
                            "score_alone": s.score_alone.tolist(),
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
class _Tuned:
    """Simple rules, each with the best of its choices for every scenario of a comparison."""

    statics: Sequence[Codes]
    thresholds: Sequence[ThresholdBaseline]
    measured: Sequence[MeasuredLookahead]

    def rules(self, i: int) -> dict[str, SimPolicy]:
        """The rules of one scenario, in the order of `RULES`."""
        return {
            "always_gpu": always_gpu,
            "always_a3": always_concurrent,
            "static": StaticBaseline(self.statics[i]),
            "threshold": self.thresholds[i],
            "algorithm1": algorithm1,
            "edi": edi_greedy,
            "edi_queue": edi_queue,
            "gain_greedy": gain_greedy,
            "lookahead": lookahead,
            "lookahead_defer": lookahead_deferring,
            "lookahead_measured": self.measured[i],
        }


@dataclass(frozen=True, slots=True)
class _Job:
    """One scenario of a comparison."""

    scenario: Scenario
    place: int
    seed: int
    n_seeds: int
    trained: Mapping[str, SimPolicy]
    tuned: _Tuned | None

    def play(self) -> ScenarioResult:
        """Play all policies on the same episodes."""
        i, n_seeds = self.place, self.n_seeds
        trace = self._trace(_EVALUATION_SEED, n_seeds)
        policies: dict[str, SimPolicy] = {"always_gpu": always_gpu}
        judged: dict[str, float] = {}
        if self.tuned is not None:
            policies |= self.tuned.rules(i) | {"random": Random(self.seed + i)}
            judged = self._judged(self.tuned.rules(i))
        policies |= self.trained
        if self.tuned is not None:
            policies["planner_nominal"] = Planner(trace.scenarios, view=CostView.NOMINAL)
        policies |= {"planner": Planner(trace.scenarios), "dp": Clairvoyant(trace)}
        scores = {name: _scores(trace, name, policy) for name, policy in policies.items()}
        return ScenarioResult(self.scenario, scores, judged)

    def _trace(self, of: int, n: int) -> Trace:
        return draw_trace([self.scenario] * n, np.random.default_rng([self.seed, of, self.place]))

    def _judged(self, rules: Mapping[str, SimPolicy]) -> dict[str, float]:
        """Play the rules and the planner on episodes of their own."""
        trace = self._trace(_JUDGING_SEED, _N_JUDGING)
        played = dict(rules) | {"planner": Planner(trace.scenarios)}
        return {name: float(_scores(trace, name, p).score.mean()) for name, p in played.items()}


def _scores(trace: Trace, name: str, policy: SimPolicy) -> Scores:
    """Play one policy on the episodes of one scenario."""
    made = play(Simulation(trace, view=_VIEWS.get(name, CostView.MEASURED)), policy)
    gpu_j, gpu_s = trace.gpu_only_j.sum(axis=0), trace.gpu_only_s.sum(axis=0)
    n_iter = trace.n_iterations
    return Scores(
        np.broadcast_to(made.score, (trace.n,)) / n_iter,
        np.broadcast_to(made.score_alone, (trace.n,)) / n_iter,
        made.energy_j / gpu_j,
        made.time_s / gpu_s,
        made.energy_j / trace.without_cards_j.sum(axis=0),
    )


_inherited: list[_Job] = []


def _play_job(place: int) -> ScenarioResult:
    return _inherited[place].play()


def _tune(scenarios: Sequence[Scenario], seed: int, tell: Callable[[str, float], None]) -> _Tuned:
    """Find the best choices of the simple rules for each scenario, on episodes of their own."""
    rng = np.random.default_rng([seed, _TUNING_SEED])
    n_iterations = min(_TUNING_ITERATIONS, *(s.n_iterations for s in scenarios))
    short = [replace(s, n_iterations=n_iterations) for s in scenarios]
    # Of the same kind, but not the same job: how its tables are wrong is drawn anew.
    jobs = [_another(s, k, rng) for s in short for k in range(_N_TUNING)]
    groups = np.repeat(np.arange(len(short)), _N_TUNING)
    trace = draw_trace(jobs, rng)
    tell("tuning the static policy", 0.0)
    statics = best_static(trace, groups)[::_N_TUNING]
    tell("tuning the thresholds", 0.15)
    best = best_threshold(trace, groups)
    columns = [np.asarray(x)[::_N_TUNING] for x in (best.max_length, best.max_wait, best.defer)]
    thresholds = [ThresholdBaseline(*(float(c[i]) for c in columns)) for i in range(len(short))]
    tell("tuning the look-ahead by measured costs", 0.3)
    probing = best_measured(trace, groups)
    probes = [np.asarray(x)[::_N_TUNING] for x in (probing.probe, probing.defer)]
    measured = [MeasuredLookahead(*(float(p[i]) for p in probes)) for i in range(len(short))]
    return _Tuned([statics[i] for i in range(len(short))], thresholds, measured)


def _another(scenario: Scenario, k: int, rng: np.random.Generator) -> Scenario:
    """Return a job of the same kind whose tables are wrong in another way."""
    if scenario.divergence.table_error <= 0.0:
        return scenario
    drawn = replace(scenario.divergence, seed=int(rng.integers(1 << 30)))
    return replace(scenario, name=f"{scenario.name}-{k}", divergence=drawn)
