"""The shipped policy where its training pool did not take it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.policy.evaluation.evaluate import FilePolicy
from ecorl.policy.evaluation.pools import kept_out
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
