"""The shipped policy on scenarios that its training did not see, and where it did not take it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.policy.evaluation.evaluate import FilePolicy
from ecorl.policy.evaluation.pools import kept_out
from ecorl.policy.planners.heuristics import Random, algorithm1
from ecorl.policy.planners.planner import Planner
from ecorl.scheduler.learned import PolicyFile, shipped_path
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace


@pytest.mark.parametrize("family", ["roofline", "paper", "ood"])
def test_in_groups_of_16_it_is_no_worse_than_the_gpus_alone(family):
    pool = [replace(s, group_size=16) for s in kept_out(family, 8, n_iterations=50)]
    trace = draw_trace([s for s in pool for _ in range(3)], np.random.default_rng(3))
    policy = FilePolicy(PolicyFile(shipped_path()))
    score, energy_j, time_s, _ = play(Simulation(trace), policy)
    assert (energy_j / trace.gpu_only_j.sum(axis=0)).max() <= 1.005
    assert (time_s / trace.gpu_only_s.sum(axis=0)).max() <= 1.005
    # Half a percent of the energy, weighted as Eq. 7 does.
    assert (score / trace.n_iterations).min() >= -0.40 * 0.005
    assert score.max() > 0.0  # and it does offload


CHOICES = (2, 3, 7)
"""Kept-out scenarios in which neither chance nor Algorithm 1 with an eager policy does well."""
MEAN_SHARE, LEAST_SHARE = 0.90, 0.80


@pytest.fixture(scope="module")
def hard():
    """Episodes of them, and what the best planner that knows no future reaches in each."""
    pool = kept_out("roofline", max(CHOICES) + 1, n_iterations=30)
    trace = draw_trace([pool[i] for i in CHOICES], np.random.default_rng(3))
    planned, _, _, _ = play(Simulation(trace), Planner(trace.scenarios))
    assert planned.min() > 0.1  # there is something to share
    return trace, planned


def reaches(trace, planned, policy):
    """Whether a policy reaches its share of the planner, and never more energy than the GPUs."""
    score, energy_j, _, _ = play(Simulation(trace), policy)
    shares = score / planned
    frugal = (energy_j <= trace.gpu_only_j.sum(axis=0)).all()
    return bool(shares.mean() >= MEAN_SHARE and shares.min() >= LEAST_SHARE and frugal)


def test_it_reaches_its_share_of_the_best_causal_planner_and_takes_no_more_energy(hard):
    assert reaches(*hard, FilePolicy(PolicyFile(shipped_path())))


def test_what_has_learned_nothing_does_not(hard):
    for policy in (Random(0), algorithm1, _UpsideDown(PolicyFile(shipped_path()))):
        assert not reaches(*hard, policy)


class _UpsideDown(FilePolicy):
    """The shipped network with its preferences reversed."""

    def __init__(self, file):
        super().__init__(_Negated(file))


class _Negated:
    def __init__(self, file):
        self.energy_margin, self._file = file.energy_margin, file

    def batch(self, states):
        return -self._file.batch(states)
