"""A real TRL training's ledger as episodes of the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ecorl.policy.calibration.costs import N_BOTH_WAYS
from ecorl.policy.calibration.readings import read_run
from ecorl.policy.calibration.replayed import replayed
from ecorl.records import Stage
from ecorl.sim.factors import CARD_PLACE, GPU_PLACE
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace
from roll_adapters.trl_hooks import attach
from tests.integration.checks import config

IN_TURNS = {"type": "threshold"}


def test_a_trl_run_is_replayed_batch_by_batch(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=N_BOTH_WAYS)
    placement = {"profile_both_paths": True, "n_profiling": N_BOTH_WAYS}
    attach(trainer, config(tmp_path, policy=IN_TURNS, **placement))
    trainer.train()
    scenario = replayed(tmp_path / "run")
    replay, run = scenario.replay, read_run(tmp_path / "run")
    assert replay.n_batches == N_BOTH_WAYS
    assert replay.length.tolist() == [r.length for r in run.rollouts]
    for stage in (Stage.REWARD, Stage.REFERENCE):
        on_gpu, on_card = (replay.time[place[stage]] for place in (GPU_PLACE, CARD_PLACE))
        assert not (np.isfinite(on_gpu) & np.isfinite(on_card)).any()
        assert np.isfinite(on_card).sum() >= 10
        assert 0.5 < np.nanmedian(on_gpu) < 2.0
    episodes = [replace(scenario, n_iterations=2 * N_BOTH_WAYS)] * 3
    trace = draw_trace(episodes, np.random.default_rng(0))
    assert np.array_equal(trace.length[:N_BOTH_WAYS], trace.length[N_BOTH_WAYS:])
    made = play(Simulation(trace), lambda simulation: np.full(3, 2))
    assert np.isfinite(made.score).all()
    assert (made.energy_j > 0).all()
