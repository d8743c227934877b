"""Imitation of the causal planner: what each action of each visited state costs in the long run.

The planner's look-ahead prices all three actions, so the loss is the expected regret of the
network's choice rather than a count of mismatches: two actions that are as good may be confused,
one that hurts may not. The planner knows the true costs and the network does not: over many jobs
it learns what they are likely to be, given its readings. States are gathered in rounds; from the
second on the network itself plays (DAgger), so that it learns what to do where its own mistakes
lead.

The planner has nothing to find out. What a reading is worth is therefore added: where the cards
turn out to be better, it is known from then on and used in the iterations that follow
(`WORTH_OF_READING`); where they do not, one iteration was worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
import torch

from ecorl.child_process import quiet_worker
from ecorl.policy.planners.planner import Planner
from ecorl.policy.training.network import Float32, PolicyNetwork, logits_in_numpy, permitted_codes
from ecorl.scheduler.features import N_FEATURES
from ecorl.sim.batched import observe
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import CostView, Simulation
from ecorl.sim.trace import draw_trace
from ecorl.stages.graph import FROZEN_STAGES

EXPLORE = 0.05
"""Share of steps with a random action, so that states off the beaten path are seen."""

_REGRET_UNIT = 0.01
"""Eq. 7 units that weigh as much as one nat of cross-entropy. An iteration is worth some 0.1."""

_REGRET_CAP = 1.0
_ENTROPY_WEIGHT = 0.05
_LEAST_BATCH, _MOST_BATCH = 64, 2048
_LEARNING_RATE = 1e-3

N_JOBS = 3
"""Jobs of each scenario in a round: each has tables that are wrong in a way of its own."""

WORTH_OF_READING = 6.0
"""Iterations in which a reading of the cards is used before it has to be taken again."""
READING_AGE = 15.0
"""Batches in which a reading loses two thirds of its worth: tenants come and go in as many."""

Arrays = dict[str, Float32]


@dataclass(frozen=True, slots=True)
class Labels:
    """States, and how much worse each action is than the best.

    Attributes:
        states: ``[n, n_features] float32``.
        regrets: ``[n, 3] float32``, Eq. 7 units, 0 for the best.
    """

    states: Float32
    regrets: Float32

    def __len__(self) -> int:
        return len(self.states)


def joined(parts: Sequence[Labels]) -> Labels:
    """Several sets as one."""
    return Labels(
        np.concatenate([p.states for p in parts]), np.concatenate([p.regrets for p in parts])
    )


class Teacher:
    """The planner for a pool of scenarios, solved and asked in worker processes.

    Args:
        scenarios: the pool.
        n_workers: processes.
        seed: of the sampled iterations.
        view: what the network knows of costs; the planner knows the true ones.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        n_workers: int = 2,
        seed: int = 0,
        view: CostView = CostView.MEASURED,
    ) -> None:
        self._parts = [list(scenarios[i::n_workers]) for i in range(n_workers)]
        self._parts = [part for part in self._parts if part]
        context = get_context("fork")
        # One process a part, since each keeps its solved planners.
        self._pools = [
            ProcessPoolExecutor(1, context, initializer=_prepare, initargs=(part, seed, view))
            for part in self._parts
        ]

    def label(self, arrays: Arrays | None, seed: int) -> Labels:
        """One round of episodes of all scenarios, each state labelled.

        Args:
            arrays: weights of the network that plays; None: the planner plays.
            seed: of the episodes.
        """
        futures = [
            pool.submit(_label, arrays, seed * 1000 + i) for i, pool in enumerate(self._pools)
        ]
        return joined([future.result() for future in futures])

    def close(self) -> None:
        """End the worker processes."""
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)


_held: list[tuple[list[Scenario], Planner, CostView]] = []


def _prepare(scenarios: list[Scenario], seed: int, view: CostView) -> None:
    """In a worker: solve the scenarios once."""
    quiet_worker()
    # What is left to the next iteration is worth about as much whatever the tables' error is.
    right = [replace(s, divergence=replace(s.divergence, table_error=0.0)) for s in scenarios]
    _held[:] = [(scenarios, Planner(right * N_JOBS, seed), view)]


def _label(arrays: Arrays | None, seed: int) -> Labels:
    scenarios, planner, view = _held[0]
    rng = np.random.default_rng([seed, 23])
    jobs = [job_of(s, rng) for _ in range(N_JOBS) for s in scenarios]
    return label_episodes(jobs, planner, arrays, seed, view)


def job_of(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    """Return the scenario with tables that are wrong in another way; as it is where they are right.

    Args:
        scenario: of the pool.
        rng: source of chance.
    """
    if scenario.divergence.table_error <= 0.0:
        return scenario
    drawn = replace(scenario.divergence, seed=int(rng.integers(1 << 30)))
    return replace(scenario, divergence=drawn)


def label_episodes(
    scenarios: Sequence[Scenario],
    planner: Planner,
    arrays: Arrays | None,
    seed: int,
    view: CostView = CostView.MEASURED,
) -> Labels:
    """Play one episode of each scenario and price every state's actions.

    Args:
        scenarios: one episode each.
        planner: for the same scenarios in the same order.
        arrays: weights of the network that plays; None: the planner plays.
        seed: of the episodes.
        view: what the network knows of costs.
    """
    rng = np.random.default_rng([seed, 3])
    simulation = Simulation(draw_trace(scenarios, rng), view=view)
    states, regrets = [], []
    while not simulation.done:
        seen, may = observe(simulation)
        choice = np.maximum(*np.broadcast_arrays(*may)) > 0.0
        codes = np.zeros(len(scenarios), dtype=np.int64)
        if choice.any():
            best, worth = planner.look(simulation)
            states.append(seen[choice])
            worth = worth + _worth_of_reading(simulation, worth)
            regrets.append(_regrets(worth, may)[choice])
            codes = best if arrays is None else permitted_codes(logits_in_numpy(arrays, seen), may)
        wild = rng.random(len(scenarios)) < EXPLORE
        codes = np.where(wild, rng.integers(0, 3, len(scenarios)), codes)
        simulation.step(codes, may)
    if not states:
        sizes = (N_FEATURES, 3)
        return Labels(*(np.zeros((0, n), dtype=np.float32) for n in sizes))
    return Labels(np.concatenate(states), np.concatenate(regrets))


def _worth_of_reading(simulation: Simulation, worth: np.ndarray) -> np.ndarray:
    """Compute what finding out about the cards is worth beside the iteration, ``[n, 3]``.

    Only what turns out well is used again: so it is the gain over a1, where there is one, times the
    iterations in which a reading counts and the share in which nothing is known now.
    """
    if simulation.trace.diverged is None or simulation.stage not in FROZEN_STAGES:
        return np.zeros_like(worth)
    _, on_card = simulation.beliefs.readings(simulation.stage)
    known = on_card.count / (on_card.count + 1.0) * np.exp(-on_card.age / READING_AGE)
    gain = np.where(np.isfinite(worth), worth - worth[:, [0]], 0.0)
    again = WORTH_OF_READING * (1.0 - known)
    return np.asarray(again[:, None] * np.maximum(gain, 0.0))


def _regrets(worth: np.ndarray, may: tuple[np.ndarray, np.ndarray]) -> Float32:
    """Worth of the best action less that of each; what the guards refuse is a1."""
    worth = worth.copy()
    for code in (1, 2):
        refused = (np.asarray(may[code - 1]) <= 0.0) | ~np.isfinite(worth[:, code])
        worth[:, code] = np.where(refused, worth[:, 0], worth[:, code])
    regrets = worth.max(axis=1, keepdims=True) - worth
    return np.asarray(np.minimum(regrets, _REGRET_CAP), dtype=np.float32)


def fit(
    network: PolicyNetwork,
    labels: Labels,
    *,
    n_epochs: int,
    seed: int,
) -> list[float]:
    """Train a network on labels; the learning rate falls to 0 along a cosine.

    Args:
        network: trained in place.
        labels: states and regrets.
        n_epochs: passes over the labels.
        seed: of their order.

    Returns:
        Mean regret of the network's choices in each epoch, Eq. 7 units.
    """
    generator = torch.Generator().manual_seed(seed)
    states, regrets = torch.from_numpy(labels.states), torch.from_numpy(labels.regrets)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    # Fewer states a step where there are few, so that each pass has several steps.
    batch_size = min(_MOST_BATCH, max(_LEAST_BATCH, len(labels) // 8))
    n_steps = max(1, n_epochs * -(-len(labels) // batch_size))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, n_steps)
    curve = []
    for _ in range(n_epochs):
        order, total = torch.randperm(len(labels), generator=generator), 0.0
        for start in range(0, len(labels), batch_size):
            picked = order[start : start + batch_size]
            probability = torch.softmax(network(states[picked]), dim=1)
            regret = (probability * regrets[picked]).sum(dim=1)
            best = (regrets[picked] <= 1e-9).float()
            likely = (probability * best).sum(dim=1).clamp_min(1e-6)
            loss = regret.mean() / _REGRET_UNIT - _ENTROPY_WEIGHT * likely.log().mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += float(regret.detach().sum())
        curve.append(total / max(len(labels), 1))
    return curve
