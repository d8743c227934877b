"""Episodes that go through the batches of a recorded run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.errors import ConfigError
from ecorl.records import Provenance, Stage
from ecorl.sim.divergence import Divergence
from ecorl.sim.factors import CARD_PLACE, GPU_PLACE, N_POWERS, N_TIMES
from ecorl.sim.lengths import N_HANDOVERS, usual_lengths
from ecorl.sim.replay import Replay, carried, lay, mean_so_far
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import draw_trace, select, supposing
from tests.fakes.iterations import flat
from tests.fakes.scenarios import SCENARIO

N = 7
REWARD = GPU_PLACE[Stage.REWARD]
ON_CARD = CARD_PLACE[Stage.REWARD]


def recorded(n=N, **changes):
    """A run of `n` batches, each longer than the one before, on the tables' times."""
    length = 200.0 + 10.0 * np.arange(n)
    usual = usual_lengths(length, np.array(SCENARIO.mix), SCENARIO.max_length)
    given = {
        "longest": 2.5 * length,
        "tail": np.stack(usual.tail),
        "time": np.ones((N_TIMES, n)),
        "power": np.ones((N_POWERS, n)),
    }
    return Replay("r", length, readings=Provenance.MEASURED, **given | changes)


def job(replay, **changes):
    base = replace(SCENARIO, calibration="fitted", fitted=SCENARIO.table, n_iterations=2 * N + 3)
    return replace(base, replay=replay, **changes)


def draw(scenario, n=3, seed=0):
    return draw_trace([scenario] * n, np.random.default_rng(seed))


def uneven(seed=1):
    """A run whose times and powers are off the tables by chance."""
    rng = np.random.default_rng(seed)
    return recorded(
        time=np.exp(0.3 * rng.standard_normal((N_TIMES, N))),
        power=np.exp(0.1 * rng.standard_normal((N_POWERS, N))),
    )


def test_batches_come_in_their_order_and_around():
    laid = lay(recorded(), start=5, n_iterations=10)
    assert laid.at.tolist() == [5, 6, 0, 1, 2, 3, 4, 5, 6, 0]
    assert laid.length.tolist() == [200.0 + 10.0 * k for k in laid.at]
    assert laid.tail.shape == (N_HANDOVERS, 10)
    trace = draw(job(recorded()), n=40)
    steps = np.diff(trace.length, axis=0)
    assert set(np.unique(steps.round(9))) == {10.0, -10.0 * (N - 1)}
    assert len(np.unique(trace.length[0])) == N  # any of them is the first


def test_a_path_that_did_not_run_takes_the_last_factor_before():
    nan = np.nan
    factors = np.array([[nan, 2.0, nan, nan, 3.0, nan], [nan] * 6, [1.5, nan, nan, nan, nan, nan]])
    filled = carried(factors)
    assert filled[0].tolist() == [3.0, 2.0, 2.0, 2.0, 3.0, 3.0]
    assert (filled[1] == 1.0).all()
    assert (filled[2] == 1.5).all()


def test_what_is_expected_is_the_mean_of_the_batches_so_far():
    assert mean_so_far(np.array([4.0, 8.0, 3.0]), 7.0).tolist() == [7.0, 4.0, 6.0]
    scenario = job(recorded())
    trace = draw(scenario)
    assert trace.expected_length[0] == pytest.approx(scenario.nominal_length, rel=1e-9)
    for k in (1, 2, 9):
        assert trace.expected_length[k] == pytest.approx(trace.length[:k].mean(axis=0), rel=1e-9)
    for one, other in zip(flat(supposing(trace, 0.0)), flat(trace.expected), strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    # The longest completion is 2.5 times the mean, which a run knows after its first batch.
    assert trace.stretch[1:] == pytest.approx(2.5)
    assert trace.surprise == pytest.approx(np.log(trace.length / trace.expected_length).std(axis=0))


def test_a_run_that_cost_what_the_table_says_has_factors_of_one():
    trace = draw(job(recorded()))
    assert (trace.diverged.time == 1.0).all()
    assert (trace.diverged.reading == 1.0).all()
    for one, other in zip(flat(trace.actual), flat(trace.table_actual), strict=True):
        assert np.array_equal(one, other)


def test_costs_are_the_tables_times_what_was_measured():
    replay = uneven()
    trace = draw(job(replay))
    at = ((trace.length - 200.0) / 10.0).round().astype(int)
    assert trace.diverged.time[REWARD] == pytest.approx(replay.time[REWARD][at])
    assert trace.actual.gpu_s[0] == pytest.approx(
        trace.table_actual.gpu_s[0] * replay.time[REWARD][at]
    )
    assert trace.actual.card_s[0] == pytest.approx(
        trace.table_actual.card_s[0] * replay.time[ON_CARD][at]
    )
    assert (trace.diverged.reading == 1.0).all()


def test_the_scenarios_own_divergence_comes_on_top():
    replay, own = uneven(), Divergence(table_error=0.3, seed=4)
    trace = draw(job(replay, divergence=own))
    at = ((trace.length - 200.0) / 10.0).round().astype(int)
    time, _ = own.own_factors
    assert trace.diverged.time[REWARD] == pytest.approx(replay.time[REWARD][at] * time[REWARD])


def test_scenarios_beside_a_replay_are_as_without_it():
    plain = replace(job(None), n_rows=64)
    beside = draw_trace([plain, job(uneven()), plain], np.random.default_rng(0))
    alone = draw_trace([plain, plain, plain], np.random.default_rng(0))
    for column in (0, 2):
        assert np.array_equal(beside.length[:, column], alone.length[:, column])
        assert (beside.diverged.time[..., column] == 1.0).all()
        assert np.isnan(beside.stretch[:, column]).all()
    picked = select(beside, np.array([1]))
    assert np.array_equal(picked.stretch[:, 0], beside.stretch[:, 1])


def test_one_episode_in_floats_is_that_of_all_in_arrays():
    trace = draw(job(uneven(), divergence=Divergence(report_lag=1, reading_noise=0.02)))
    one, many = Simulation(trace, 1), Simulation(trace)
    rng = np.random.default_rng(1)
    while not one.done:
        single, all_of = one.observation()[0], many.observation()[0]
        picked = [float(np.broadcast_to(figure, trace.n)[1]) for figure in all_of]
        assert single == pytest.approx(picked, rel=1e-9, abs=1e-9)
        codes = rng.integers(0, 3, trace.n)
        assert many.step(codes)[1] == pytest.approx(one.step(int(codes[1])), rel=1e-9, abs=1e-12)


def test_the_digest_is_of_all_that_is_replayed():
    assert recorded().digest == recorded().digest
    assert len({recorded().digest, recorded(N + 1).digest, uneven().digest}) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [("longest", np.full(N, 9.0)), ("tail", np.ones((N_HANDOVERS, N - 1))),
     ("time", np.zeros((N_TIMES, N))), ("time", np.ones((N_TIMES, N + 1))),
     ("power", np.ones((N_POWERS, N - 1)))],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_key(key, value):
    with pytest.raises(ConfigError, match=f"scenario.replay.{key}"):
        recorded(**{key: value})


def test_a_replay_needs_the_table_of_its_run():
    with pytest.raises(ConfigError, match=r"scenario\.replay"):
        replace(SCENARIO, replay=recorded())
