"""Recorded runs to compare on, and the split between training and comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.errors import ConfigError
from ecorl.policy.evaluation.evaluate import compare
from ecorl.policy.evaluation.pools import kept_out, run_id_of, split_runs
from ecorl.policy.evaluation.summary import sentences
from ecorl.policy.planners.heuristics import always_gpu
from ecorl.policy.planners.planner import Planner
from ecorl.records import Provenance
from ecorl.sim.factors import N_POWERS, N_TIMES
from ecorl.sim.lengths import usual_lengths
from ecorl.sim.replay import Replay
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import CostView, Simulation, play
from ecorl.sim.trace import draw_trace
from tests.fakes.scenarios import SCENARIO


def run(run_id, name=None, seed=0) -> Scenario:
    rng = np.random.default_rng(seed)
    length = np.exp(rng.uniform(5.0, 5.5, 9))
    usual = usual_lengths(length, np.array(SCENARIO.mix), SCENARIO.max_length)
    time = np.exp(0.3 * rng.standard_normal((N_TIMES, 9)))
    replay = Replay(run_id, length, usual.longest, np.stack(usual.tail), time,
                    np.ones((N_POWERS, 9)), Provenance.MEASURED)  # fmt: skip
    return replace(SCENARIO, name=name or run_id, calibration="fitted", fitted=SCENARIO.table,
                   replay=replay)  # fmt: skip


RUNS = [run(f"r{i}", seed=i) for i in range(7)]


@pytest.mark.parametrize("seed", range(8))
def test_no_run_is_in_both_halves(seed):
    training, kept = split_runs([*RUNS, run("r3", "again", seed=9)], seed)
    ids = [{run_id_of(s) for s in half} for half in (training, kept)]
    assert ids[0].isdisjoint(ids[1])
    assert (len(ids[0]), len(ids[1])) == (3, 4)
    assert len(training) + len(kept) == len(RUNS) + 1
    assert split_runs(RUNS, seed) == split_runs(RUNS[::1], seed)


def test_the_split_goes_by_the_seed_and_not_by_the_order():
    def names(runs, seed):
        return {run_id_of(s) for s in split_runs(runs, seed)[0]}

    assert names(RUNS, 0) == names(RUNS[::-1], 0)
    assert len({frozenset(names(RUNS, seed)) for seed in range(8)}) > 1


def test_a_single_run_is_kept_out():
    assert split_runs(RUNS[:1]) == ((), (RUNS[0],))
    assert split_runs([]) == ((), ())


def test_replays_are_a_family_to_compare_on():
    found = kept_out("replayed", 3, n_iterations=5, runs=RUNS)
    assert [s.name for s in found] == ["r0", "r1", "r2"]
    assert {s.n_iterations for s in found} == {5}
    assert len(kept_out("replayed", 30, runs=RUNS)) == len(RUNS)
    with pytest.raises(ConfigError, match="--runs FOLDER"):
        kept_out("replayed", 3)


def test_a_comparison_on_replays_says_what_is_replayed(snapshot):
    scenarios = kept_out("replayed", 2, n_iterations=4, runs=RUNS)
    found = compare(scenarios, {"learned": always_gpu}, n_seeds=2)
    snapshot("\n".join(line for line in sentences(found, "learned") if "replayed" in line))
    first, _ = found.as_dict()["scenarios"]
    assert first["replay"] == {"run": "r0", "provenance": "replayed", "readings": "measured"}


def test_the_planner_by_the_tables_knows_nothing_of_the_run():
    episodes = [replace(RUNS[0], n_iterations=5)]
    trace = draw_trace(episodes, np.random.default_rng(0))
    for view in (CostView.NOMINAL, CostView.TRUE):
        made = play(Simulation(trace, view=view), Planner(trace.scenarios, view=view))
        assert np.isfinite(made.score).all()
    other = replace(RUNS[0].replay, time=3.0 * RUNS[0].replay.time)
    tripled = [replace(episodes[0], replay=other)]
    by_tables = [Planner(s, view=CostView.NOMINAL)._solutions[0] for s in (episodes, tripled)]
    assert np.array_equal(by_tables[0].values, by_tables[1].values)
