"""Compares policies on scenarios that training did not see, on the same episodes.

Every policy plays the same drawn episodes. `ecorl.policy.evaluation.comparison` says what is made
of what they reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

import numpy as np

from ecorl.child_process import quiet_worker
from ecorl.policy.evaluation.comparison import ORDER, PolicyComparison, ScenarioResult, Scores
from ecorl.policy.planners import heuristics
from ecorl.policy.planners.planner import Clairvoyant, Planner
from ecorl.policy.planners.search import Codes, lookahead
from ecorl.policy.training.network import permitted_codes
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.sim.batched import observe
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import CostView, Simulation, play
from ecorl.sim.trace import Trace, draw_trace

SimPolicy = Callable[[Simulation], Codes]

N_SEEDS = 10
_SEED = 0
_TUNING_SEED, _EVALUATION_SEED, _JUDGING_SEED = 31, 57, 83
_N_TUNING, _TUNING_ITERATIONS = 3, 40
"""Episodes, and iterations of each, on which the simple rules are tuned. Where tables are wrong
each is of another job, since nobody knows beforehand how they are."""
_N_JUDGING = 2
"""Episodes on which it is judged whether a scenario is hard."""

N_WORKERS = 2
"""Processes that play scenarios."""

_VIEWS = {
    **dict.fromkeys(
        ("lookahead", "lookahead_defer", "planner_nominal", "without_measured"), CostView.NOMINAL
    ),
    **dict.fromkeys(("planner", "dp"), CostView.TRUE),
}
"""What policies know of costs; the others have what a run has measured."""


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
    tell: Callable[[str, float], None] | None = None,
) -> PolicyComparison:
    """Play all policies on the same episodes.

    Static and threshold are tuned on other episodes of the same scenario.

    Args:
        scenarios: to compare on.
        trained: further policies by name.
        n_seeds: episodes of each scenario.
        tell: told how far it is.
    """
    tell = tell or (lambda step, share: None)
    tuned = _tune(scenarios, tell)
    jobs = [_Job(s, i, n_seeds, trained, tuned) for i, s in enumerate(scenarios)]
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
    thresholds: Sequence[heuristics.ThresholdBaseline]
    probing: Sequence[heuristics.MeasuredLookahead]

    def rules(self, i: int) -> dict[str, SimPolicy]:
        """The rules of one scenario, in the order of `RULES`."""
        return {
            "always_gpu": heuristics.always_gpu,
            "always_a3": heuristics.always_concurrent,
            "static": heuristics.StaticBaseline(self.statics[i]),
            "threshold": self.thresholds[i],
            "algorithm1": heuristics.algorithm1,
            "edi": heuristics.edi_greedy,
            "edi_queue": heuristics.edi_queue,
            "gain_greedy": heuristics.gain_greedy,
            "lookahead": lookahead,
            "lookahead_defer": heuristics.lookahead_deferring,
            "lookahead_measured": heuristics.MeasuredLookahead(),
            "lookahead_probing": self.probing[i],
        }


@dataclass(frozen=True, slots=True)
class _Job:
    """One scenario of a comparison."""

    scenario: Scenario
    place: int
    n_seeds: int
    trained: Mapping[str, SimPolicy]
    tuned: _Tuned

    def play(self) -> ScenarioResult:
        """Play all policies on the same episodes."""
        i, n_seeds = self.place, self.n_seeds
        trace = self._trace(_EVALUATION_SEED, n_seeds)
        policies: dict[str, SimPolicy] = {
            "always_gpu": heuristics.always_gpu,
            **self.tuned.rules(i),
            "random": heuristics.Random(_SEED + i),
            **self.trained,
            "planner_nominal": Planner(trace.scenarios, view=CostView.NOMINAL),
            "planner": Planner(trace.scenarios),
            "dp": Clairvoyant(trace),
        }
        judged = self._judged(self.tuned.rules(i))
        scores = {name: _scores(trace, name, policy) for name, policy in policies.items()}
        return ScenarioResult(self.scenario, scores, judged)

    def _trace(self, of: int, n: int) -> Trace:
        return draw_trace([self.scenario] * n, np.random.default_rng([_SEED, of, self.place]))

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


def _tune(scenarios: Sequence[Scenario], tell: Callable[[str, float], None]) -> _Tuned:
    """Find the best choices of the simple rules for each scenario, on episodes of their own."""
    rng = np.random.default_rng([_SEED, _TUNING_SEED])
    n_iterations = min(_TUNING_ITERATIONS, *(s.n_iterations for s in scenarios))
    short = [replace(s, n_iterations=n_iterations) for s in scenarios]
    # Of the same kind, but not the same job: how its tables are wrong is drawn anew.
    jobs = [_another(s, k, rng) for s in short for k in range(_N_TUNING)]
    groups = np.repeat(np.arange(len(short)), _N_TUNING)
    trace = draw_trace(jobs, rng)
    tell("tuning the static policy", 0.0)
    statics = heuristics.best_static(trace, groups)[::_N_TUNING]
    tell("tuning the thresholds", 0.15)
    best = heuristics.best_threshold(trace, groups)
    columns = [np.asarray(x)[::_N_TUNING] for x in (best.max_length, best.max_wait, best.defer)]
    thresholds = [
        heuristics.ThresholdBaseline(*(float(c[i]) for c in columns)) for i in range(len(short))
    ]
    tell("tuning the look-ahead by measured costs", 0.3)
    best_probes = heuristics.best_measured(trace, groups)
    probes = [np.asarray(x)[::_N_TUNING] for x in (best_probes.probe, best_probes.defer)]
    probing = [
        heuristics.MeasuredLookahead(*(float(p[i]) for p in probes)) for i in range(len(short))
    ]
    return _Tuned([statics[i] for i in range(len(short))], thresholds, probing)


def _another(scenario: Scenario, k: int, rng: np.random.Generator) -> Scenario:
    """Return a job of the same kind whose tables are wrong in another way."""
    if scenario.divergence.table_error <= 0.0:
        return scenario
    drawn = replace(scenario.divergence, seed=int(rng.integers(1 << 30)))
    return replace(scenario, name=f"{scenario.name}-{k}", divergence=drawn)
