"""Jobs that differ from their tables, and what a run learns of them by measuring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError
from ecorl.records import EdiReading, Provenance, Stage
from ecorl.scheduler.measured.readings import UNREAD
from ecorl.sim.divergence import EXACT, Divergence
from ecorl.sim.factors import (
    CARD_PLACE,
    CARD_POWER,
    GPU_PLACE,
    N_POWERS,
    N_TIMES,
    Beliefs,
    expected_of_all,
    scaled,
)
from ecorl.sim.scenario import Limits
from ecorl.sim.simulation import N_STAGES, CostView, Simulation
from ecorl.sim.trace import draw_trace
from ecorl.stages.figures import CONCURRENT, GPU
from ecorl.stages.guards import offload_bids
from ecorl.statistics import expected
from tests.fakes.scenarios import SCENARIO

WRONG = Divergence(
    table_error=0.3, seed=5, clock_std=0.1, contention=0.3, contention_slow=2.0, growth=1.6,
    reading_noise=0.02, report_lag=1, report_noise=0.3,
)  # fmt: skip
JOB = replace(
    SCENARIO, divergence=WRONG, rows="drawn", n_iterations=40, load=0.2, failure_rate=0.05,
    timeout_iterations=0.5, n_rows=64,
)  # fmt: skip


def draw(scenario=JOB, n=3, seed=0):
    return draw_trace([scenario] * n, np.random.default_rng(seed))


def play(simulation, codes):
    for code in codes:
        simulation.step(np.full(simulation.trace.n, code))


def test_the_truth_is_the_tables_times_what_was_drawn():
    trace = draw()
    assert trace.diverged is not None
    again = scaled(trace.table_actual, trace.diverged.time, trace.diverged.power)
    assert np.array_equal(again.card_s[0], trace.actual.card_s[0])
    place = GPU_PLACE[Stage.REFERENCE]
    assert trace.actual.gpu_s[1] == pytest.approx(
        trace.table_actual.gpu_s[1] * trace.diverged.time[place]
    )
    time, power = WRONG.own_factors
    assert (np.abs(time - 1.0) <= 0.3).all()
    assert (np.abs(power - 1.0) <= 0.3).all()
    assert np.ptp(time) > 0.1
    assert draw(replace(JOB, divergence=EXACT)).diverged is None


def test_a_tenant_slows_the_cards_for_its_share_of_the_iterations():
    calm = Divergence(contention=0.25, contention_slow=3.0, spell=4.0)
    trace = draw(replace(JOB, divergence=calm, n_iterations=4000, n_rows=8), n=1)
    factors = trace.diverged.time[CARD_PLACE[Stage.REWARD], :, 0]
    assert set(factors.round(6)) == {1.0, 3.0}
    assert (factors > 1.0).mean() == pytest.approx(0.25, abs=0.05)
    assert (trace.diverged.time[GPU_PLACE[Stage.REWARD]] == 1.0).all()


def test_answers_grow_and_every_row_is_drawn():
    trace = draw(replace(JOB, n_iterations=400, divergence=Divergence(growth=4.0)), n=1)
    length = trace.length[:, 0]
    ratio = np.log(length[200:]).mean() - np.log(length[:200]).mean()
    assert ratio == pytest.approx(np.log(4.0) / 2, abs=0.35)
    # A heavy tail: the longest of 64 rows is far beyond what a log-normal gives.
    longest = trace.actual.handover_s[-1]
    assert np.isfinite(longest).all()
    surprise = np.log(trace.length / trace.expected_length).std()
    assert surprise == pytest.approx(float(trace.surprise[0]), rel=1e-9)
    assert surprise > 0.1


def test_views_agree_where_the_tables_are_exact_and_known():
    seen = replace(JOB, divergence=Divergence(reading_noise=1e-12))
    trace = draw(seen)
    for codes in ([0] * 6, [2, 2, 2, 0, 2, 2], [0, 1, 2, 1, 0, 0]):
        made = {}
        for view in CostView:
            simulation = Simulation(trace, view=view)
            play(simulation, codes)
            play(simulation, codes[:2])
            made[view] = (simulation.known_work(), simulation.known_carry())
        for view in (CostView.NOMINAL, CostView.MEASURED):
            for name in ("gpu_s", "card_s", "generation_s", "card_active_w"):
                one, other = (getattr(made[v][0], name) for v in (view, CostView.TRUE))
                assert np.asarray(one) == pytest.approx(np.asarray(other), rel=1e-9)


def test_a_run_learns_what_it_measures_and_nothing_else():
    # Nobody else on the cards and no failure, so that the guards let each offload pass.
    alone = replace(JOB, divergence=Divergence(table_error=0.3, seed=3), failure_rate=0.0, load=0.0)
    trace = draw(replace(alone, limits=Limits(1e9, 1e9, None)))
    simulation = Simulation(trace)
    time, _ = trace.scenarios[0].divergence.own_factors
    for _ in range(12):
        play(simulation, [GPU] * N_STAGES)
    on_gpu, on_card = simulation.beliefs.readings(Stage.REWARD)
    assert on_gpu.ratio == pytest.approx(time[GPU_PLACE[Stage.REWARD]], rel=1e-9)
    assert (on_gpu.age == 1.0).all()
    assert (np.asarray(on_card.count) == 0.0).all()
    nominal = simulation.known_work(view=CostView.NOMINAL).card_s[0]
    assert np.array_equal(simulation.known_work().card_s[0], nominal)
    for _ in range(12):
        play(simulation, [GPU, CONCURRENT, GPU, GPU, GPU, GPU])
    _, on_card = simulation.beliefs.readings(Stage.REWARD)
    assert on_card.ratio == pytest.approx(time[CARD_PLACE[Stage.REWARD]], rel=1e-9)
    true_s = simulation.known_work(view=CostView.TRUE).card_s[0]
    # The tables keep the weight of half a reading.
    assert simulation.known_work().card_s[0] == pytest.approx(true_s, rel=0.02)
    on_gpu, _ = simulation.beliefs.readings(Stage.REWARD)
    assert (on_gpu.age == 13.0).all()


def test_the_first_reading_counts_in_nothing_and_later_ones_are_followed():
    beliefs = Beliefs(())
    used, power = np.ones(N_TIMES), np.ones(N_POWERS)
    beliefs.read(used, np.full(N_TIMES, 10.0), power)
    assert beliefs.readings(Stage.REWARD)[1] == UNREAD._replace(age=0.0)
    assert (beliefs.time == 1.0).all()
    for _ in range(20):
        beliefs.read(used, np.full(N_TIMES, 2.0), power * 1.5)
    on_gpu, on_card = beliefs.readings(Stage.REWARD)
    assert on_gpu == on_card
    assert (on_card.ratio, on_card.j_ratio, on_card.count) == pytest.approx((2.0, 3.0, 20.0))
    assert on_card.spread == pytest.approx(0.0, abs=1e-9)
    assert beliefs.power[CARD_POWER] == pytest.approx(1.5, rel=0.02)


def test_what_is_expected_of_many_is_what_is_expected_of_each():
    rng = np.random.default_rng(0)
    recent, mean, spread = rng.uniform(0.1, 3.0, (3, 400))
    spread[::7], age = 0.0, rng.integers(0, 40, 400)
    recent[::5] = mean[::5]
    together = expected_of_all(recent, mean, spread, age)
    alone = [expected(*map(float, row)) for row in zip(recent, mean, spread, age, strict=True)]
    assert together == pytest.approx(alone, rel=1e-12)
    assert 0 < (together == mean).sum() < 400


@pytest.mark.parametrize("seed", range(4))
def test_from_the_same_readings_it_believes_what_a_run_believes(seed):
    """A run keeps them in its EDI matrix, the simulator in arrays."""
    rng = np.random.default_rng(seed)
    beliefs, matrix = Beliefs(()), EdiMatrix()
    place, n_tokens, table_s, table_w = CARD_PLACE[Stage.REWARD], 1000, 2.0, 50.0
    for batch in range(60):
        used, time, power = np.zeros(N_TIMES), np.ones(N_TIMES), np.ones(N_POWERS)
        if rng.random() < (0.9 if batch % 20 < 10 else 0.1):
            used[place], time[place] = 1.0, rng.lognormal(0.3 * (batch > 30), 0.2)
            power[CARD_POWER] = rng.lognormal(0.0, 0.1)
            time_s = table_s * time[place]
            energy_j = time_s * table_w * power[CARD_POWER]
            reading = EdiReading(
                Stage.REWARD, "card", energy_j, n_tokens, energy_j / n_tokens, Provenance.MEASURED,
                time_s, n_sequences=10, batch=batch,
            )  # fmt: skip
            matrix.update(reading)
        beliefs.read(used, time, power)
        found = matrix.path_costs("card", batch + 1, on_card=True)
        _, on_card = beliefs.readings(Stage.REWARD)
        if not found or not found[0].n_recent:
            assert on_card.count == 0.0
            continue
        (cost,) = found
        assert (cost.n_recent, cost.age) == (on_card.count, on_card.age)
        assert cost.spread == pytest.approx(on_card.spread, abs=1e-9)
        time_s, energy_j = cost.expected_per_token
        assert time_s == pytest.approx(on_card.ratio * table_s / n_tokens)
        # Recent means of energy and of power times that of time differ where both scatter.
        j_ratio = energy_j * n_tokens / (table_s * table_w)
        assert j_ratio == pytest.approx(on_card.j_ratio, rel=0.1)


def test_a_single_reading_has_no_spread_whatever_its_rounding():
    times = np.exp(np.random.default_rng(0).uniform(-2.0, 2.0, (N_TIMES, 200)))
    beliefs = Beliefs((200,))
    for _ in range(2):  # the first one counts in nothing
        beliefs.read(np.ones((N_TIMES, 200)), times, np.ones((N_POWERS, 200)))
    on_gpu, on_card = beliefs.readings(Stage.REWARD)
    assert (on_gpu.count == 1.0).all()
    assert (on_gpu.spread == 0.0).all()
    assert (on_card.spread == 0.0).all()


def test_the_report_of_the_queue_is_old_and_noisy():
    queued = replace(JOB, load=0.6, divergence=Divergence(report_lag=1))
    trace = draw(queued, n=2)
    simulation = Simulation(trace)
    queues = []
    for _ in range(10):
        queues.append(np.array(simulation.carry.card_s))
        known = simulation.known_carry().card_s
        assert known == pytest.approx(queues[max(len(queues) - 2, 0)])
        play(simulation, [GPU] * N_STAGES)
    assert np.ptp(queues) > 0.0


def test_the_guards_judge_by_what_the_policy_knows():
    exact = Simulation(draw(replace(JOB, divergence=EXACT, load=0.0), n=1))
    play(exact, [GPU])
    work, rules = exact.known_work(), exact.rules
    bid = offload_bids(Stage.REWARD, exact.known_carry(), work, rules)[-1]
    # The tables say that it takes a little less than the limit.
    ratio = 1.01 * float((bid.energy_j / work.gpu_j[0])[0])
    limits = Limits(1e9, 1e9, ratio - 1.0)
    seen = {view: [] for view in CostView}
    for seed in range(12):
        off = Divergence(table_error=0.9, seed=seed)
        job = replace(JOB, limits=limits, divergence=off, load=0.0, n_iterations=2)
        trace = draw(job, n=1)
        for view in CostView:
            simulation = Simulation(trace, view=view)
            play(simulation, [GPU])
            seen[view].append(bool(simulation.permitted()[1][0]))
            assert simulation.permitted()[1] == simulation.permitted(view)[1]
    # Nothing has been measured of the card yet, so a run judges it by its tables.
    assert seen[CostView.NOMINAL] != seen[CostView.TRUE]


def test_one_episode_in_floats_is_that_of_all_in_arrays():
    trace = draw()
    one, many = Simulation(trace, 1), Simulation(trace)
    rng = np.random.default_rng(1)
    while not one.done:
        single, all_of = one.observation()[0], many.observation()[0]
        picked = [float(np.broadcast_to(figure, trace.n)[1]) for figure in all_of]
        assert single == pytest.approx(picked, rel=1e-9, abs=1e-9)
        codes = rng.integers(0, 3, trace.n)
        assert many.step(codes)[1] == pytest.approx(one.step(int(codes[1])), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("key", "value"),
    [("table_error", 1.0), ("contention", 1.0), ("contention_slow", 0.5), ("spell", 0.0),
     ("growth", 0.0), ("report_lag", 3), ("reading_noise", -0.1), ("clock_memory", 1.0)],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_key(key, value):
    with pytest.raises(ConfigError, match=f"scenario.divergence.{key}"):
        Divergence(**{key: value})
