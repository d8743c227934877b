from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.records import Abilities, Algorithm, Stage
from ecorl.scheduler.features import N_FEATURES, NAMES, objective
from ecorl.sim.scenario import Limits
from ecorl.sim.simulation import N_STAGES, STAGES, Simulation, play
from ecorl.sim.trace import draw_trace
from ecorl.stages.figures import CONCURRENT, FPGA, GPU
from ecorl.stages.guards import gpu_only
from tests.examples import examples
from tests.fakes.iterations import flat
from tests.fakes.scenarios import SCENARIO, draw, played, with_actual

KINDS = {
    "ppo": {},
    "grpo": {"algorithm": Algorithm.GRPO},
    "dapo": {"algorithm": Algorithm.DAPO},
    "off_policy": {"off_policy": True},
    "adaptive": {"adaptive_batch": True},
    "process rewards": {"reward_calls": 4},
    "shared power": {"slow": 1.4},
    "hot": {"ambient_c": 80.0},
    "no card": {"n_cards": 0},
    "nothing allowed": {"abilities": Abilities()},
    "energy guard": {"limits": Limits(energy_margin=0.1)},
}

SMALL = replace(
    SCENARIO,
    calibration="roofline",
    sizes=dict.fromkeys(Stage, "15m") | {Stage.GENERATION: "1b"},
    n_gpus=1,
)


def always_gpu(simulation):
    return GPU


def code_list(n, seed=0):
    return np.random.default_rng(seed).integers(0, 3, n).tolist()


def steps_of(trace, codes, index=0):
    """Rewards of an episode, and the totals of each of its iterations."""
    simulation, rewards, totals = Simulation(trace, index), [], []
    for code in codes:
        rewards.append(simulation.step(code))
        if simulation.place == 0:
            totals.append(simulation.totals)
    assert simulation.done
    return rewards, totals


# ------------------------------------------------------------ reward


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_add_up_to_eq_7_of_each_iteration(kind):
    trace = draw(**KINDS[kind])
    rewards, totals = steps_of(trace, code_list(N_STAGES * trace.n_iterations))
    for k, one in enumerate(totals):
        t0, e0 = trace.gpu_only_s[k, 0], trace.gpu_only_j[k, 0]
        eq_7 = 0.40 * (t0 / one.booked_s - 1) - 0.40 * (one.booked_j / e0 - 1)
        eq_7 -= 0.20 * one.bubble_s / t0
        assert sum(rewards[N_STAGES * k : N_STAGES * (k + 1)]) == pytest.approx(eq_7, abs=1e-9)


def test_eq_7_counts_time_energy_and_bubble_relative_to_the_gpu_only_iteration():
    assert objective(10.0, 500.0, 0.0, 10.0, 500.0) == 0.0
    assert objective(8.0, 500.0, 0.0, 10.0, 500.0) == pytest.approx(0.40 * 0.25)
    assert objective(10.0, 600.0, 0.0, 10.0, 500.0) == pytest.approx(-0.40 * 0.2)
    assert objective(10.0, 500.0, 1.0, 10.0, 500.0) == pytest.approx(-0.20 * 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_always_gpu_scores_nothing_and_takes_exactly_the_gpu_only_time_and_energy(kind):
    trace = draw(n=3, **KINDS[kind])
    score, energy_j, time_s, bubble_s, _ = play(Simulation(trace), always_gpu)
    assert score == pytest.approx(np.zeros(3), abs=1e-12)
    assert energy_j == pytest.approx(trace.gpu_only_j.sum(axis=0), rel=1e-12)
    assert time_s == pytest.approx(trace.gpu_only_s.sum(axis=0), rel=1e-12)
    assert (bubble_s == 0.0).all()
    one = play(Simulation(trace, 1), always_gpu)
    assert [x[0] for x in one[:4]] == pytest.approx(
        [score[1], energy_j[1], time_s[1], 0.0], abs=1e-9
    )


def test_playing_adds_up_the_iterations():
    trace = draw(n=2)
    codes = code_list(N_STAGES * trace.n_iterations)
    made = play(
        Simulation(trace, 0), lambda simulation: codes[6 * simulation.iteration + simulation.place]
    )
    rewards, totals = steps_of(trace, codes)
    assert made[0][0] == pytest.approx(sum(rewards))
    assert made[1][0] == pytest.approx(sum(one.energy_j for one in totals))
    assert made[2][0] == pytest.approx(sum(one.time_s for one in totals))
    assert made[3][0] == pytest.approx(sum(one.bubble_s for one in totals))


def test_training_that_the_last_iteration_puts_off_is_paid():
    trace = draw(n_iterations=1)
    put_off = played(trace, [0, 0, 0, 0, 0, CONCURRENT]).totals
    at_once = played(trace, [0] * N_STAGES).totals
    swap_s = float(trace.actual.swap_s[0, 0])
    assert put_off.time_s == pytest.approx(at_once.time_s + swap_s)
    assert put_off.energy_j > at_once.energy_j
    assert put_off.after.deferred_s == 0.0


# ------------------------------------------------------------ guards


def carry_after(trace, codes):
    """The last carry; an iteration must not end with it."""
    return played(trace, codes).carry


@pytest.mark.parametrize("action", [FPGA, CONCURRENT])
@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize(
    "guard",
    [
        {"limits": Limits(l_max=100.0)},
        {"limits": Limits(l_max=4096.0, q_max=0.0)},
        {"limits": Limits(l_max=4096.0, energy_margin=-0.999)},
        {"n_cards": 0},
        {"abilities": Abilities(offload_critic=False)},
    ],
)
def test_a_guard_turns_an_offload_into_a1(guard, place, action):
    only_critic = "abilities" in guard
    trace, free = draw(load=0.0, **guard), draw(load=0.0)
    codes = [GPU] * place
    assert carry_after(free, [*codes, action]) != carry_after(free, [*codes, GPU])
    blocked = carry_after(trace, [*codes, action]) == carry_after(trace, [*codes, GPU])
    assert blocked == (not only_critic or place == 3)
    may = played(trace, codes).permitted()
    assert tuple(map(bool, may)) == (not blocked, not blocked)


def test_no_card_is_used_while_none_is_up():
    trace = with_actual(draw(), cards_up=0.0)
    trace = replace(trace, expected=trace.expected._replace(cards_up=trace.actual.cards_up))
    always = [CONCURRENT, CONCURRENT, FPGA, FPGA, GPU, GPU]
    rewards, totals = steps_of(trace, always * trace.n_iterations)
    assert rewards == pytest.approx([0.0] * len(rewards), abs=1e-12)
    assert all(one.bubble_s == 0.0 for one in totals)


@pytest.mark.parametrize(
    ("ability", "place"), [("stream", 0), ("early_forward", 4), ("defer_critic", 5)]
)
def test_what_the_framework_cannot_do_is_a1(ability, place):
    abilities = replace(SCENARIO.abilities, **{ability: False})
    codes = [CONCURRENT, FPGA, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT]
    without = [GPU if i == place else code for i, code in enumerate(codes)]
    trace, free = draw(abilities=abilities, load=0.0), draw(load=0.0)
    n = trace.n_iterations
    _, guarded = steps_of(trace, codes * n)
    assert guarded == steps_of(free, without * n)[1]
    assert guarded != steps_of(free, codes * n)[1]


def test_a_queue_beyond_the_limit_stops_offloading():
    free = played(draw(load=0.0), [GPU])
    card_s = free.actual.card_s[0]
    expectations = ((0.0, 1.0), (1.9, 1.0), (2.1, 0.0))
    for batches, passes in expectations:
        trace = draw(load=0.0, limits=Limits(l_max=4096.0, q_max=2.0))
        arriving_s = free.actual.generation_s + batches * card_s
        trace = with_actual(trace, 0, arriving_s=lambda x, s=arriving_s: x + s)
        assert played(trace, [GPU]).permitted() == (passes, passes)


def test_a_stage_that_the_algorithm_does_not_have_stays_where_it_costs_nothing():
    for algorithm, absent in ((Algorithm.GRPO, [3, 5]), (Algorithm.DAPO, [2, 3, 5])):
        for calibration in ("paper", "roofline"):
            trace = draw(algorithm=algorithm, calibration=calibration, load=0.4)
            for place in absent:
                simulation = played(trace, [GPU] * place)
                assert tuple(map(bool, simulation.permitted())) == (False, False)
                before = simulation.carry.t_s
                simulation.step(CONCURRENT)
                if place < 5:
                    assert simulation.carry.t_s == before


# ------------------------------------------------------------ floats and arrays


@pytest.mark.parametrize("kind", KINDS)
def test_one_episode_in_floats_is_that_of_all_in_arrays(kind):
    scenarios = [replace(SCENARIO, **KINDS[kind]), replace(SMALL, **KINDS[kind])]
    trace = draw_trace(scenarios * 2, np.random.default_rng(5))
    many = Simulation(trace)
    each = [Simulation(trace, i) for i in range(trace.n)]
    rng = np.random.default_rng(1)
    while not many.done:
        state, may = many.observation()
        state, may = (np.stack(np.broadcast_arrays(*figures), -1) for figures in (state, may))
        assert state.shape == (trace.n, N_FEATURES)
        codes = rng.integers(0, 3, trace.n)
        rewards = many.step(codes)
        for i, one in enumerate(each):
            own_state, own_may = one.observation()
            assert state[i] == pytest.approx(np.array(own_state), rel=1e-9, abs=1e-12)
            assert may[i].tolist() == [float(m) for m in own_may]
            own = one.step(int(codes[i]))
            assert rewards[i] == pytest.approx(own, rel=1e-9, abs=1e-12)
            assert isinstance(one.carry.t_s, float)
        if many.place == 0:
            picked = np.array([np.broadcast_to(x, trace.n) for x in flat(many.totals)])
            for i, one in enumerate(each):
                assert picked[:, i] == pytest.approx(list(flat(one.totals)), rel=1e-12, abs=1e-9)
    assert all(one.done for one in each)


def test_the_order_of_decisions_is_that_of_the_stages():
    simulation = Simulation(draw(n_iterations=2), 0)
    seen = []
    while not simulation.done:
        seen.append((simulation.iteration, simulation.stage))
        simulation.step(GPU)
    assert seen == [(k, stage) for k in range(2) for stage in STAGES]


# ------------------------------------------------------------ who knows what when


def observed(trace, codes):
    """What a policy sees after some steps, and the costs that it may count on."""
    simulation = played(trace, codes)
    state, may = simulation.observation()
    assert len(state) == N_FEATURES
    return (*state, *may, *flat(simulation.known_work()), *gpu_only(simulation.known_work()))


def other_noise(trace, k):
    """The batch of iteration `k` and all later ones turn out otherwise."""
    return with_actual(
        trace, slice(k, None), generation_s=1.3, generation_j=1.2, handover_s=1.3, gpu_s=0.7,
        gpu_j=0.8, card_s=1.4, forward_s=1.1, backward_s=1.2, actor_j=0.9, early_s=1.5,
        early_j=1.5, critic_s=0.6, critic_j=0.7, swap_s=1.1, swap_j=1.2,
        tail=lambda x: x**2, late_arriving_s=lambda x: 2 * x + 1.0, lost=lambda x: x + 0.1,
    )  # fmt: skip


def other_length(trace, k):
    """The rows of iteration `k` and all later ones turn out longer."""
    length, row_length = trace.length.copy(), trace.row_length.copy()
    length[k:] *= 1.5
    row_length[k:] *= 1.5
    return replace(trace, length=length, row_length=row_length)


@pytest.mark.parametrize("kind", ["ppo", "dapo", "off_policy"])
@settings(deadline=None, max_examples=20)
@given(k=st.integers(0, 4), seed=st.integers(0, 99))
def test_before_generation_nobody_knows_how_it_turns_out(kind, k, seed):
    trace = draw(seed=seed, n_iterations=5, **KINDS[kind])
    codes = code_list(N_STAGES * k, seed)
    changed = other_length(other_noise(trace, k), k)
    assert observed(changed, codes) == observed(trace, codes)


@settings(deadline=None, max_examples=examples(30))
@given(k=st.integers(0, 3), seed=st.integers(0, 99), place=st.integers(0, 5))
def test_nobody_knows_later_iterations(k, seed, place):
    trace = draw(seed=seed, n_iterations=5)
    codes = code_list(N_STAGES * k + place, seed)
    later = slice(k + 1, None)
    changed = with_actual(
        other_length(other_noise(trace, k + 1), k + 1), later, arriving_s=lambda x: 3 * x + 1.0,
        cards_up=0.5,
    )  # fmt: skip
    hoped = trace.expected._replace(**{
        name: np.where(np.arange(5)[:, None] > k, getattr(trace.expected, name) * 2.0,
                       getattr(trace.expected, name))
        for name in ("generation_s", "late_arriving_s", "critic_s")
    })  # fmt: skip
    changed = replace(changed, expected=hoped)
    assert observed(changed, codes) == observed(trace, codes)


def test_after_generation_the_rows_are_known():
    trace = draw()
    seen, changed = observed(trace, [GPU]), observed(other_noise(trace, 0), [GPU])
    named = dict(zip(NAMES, zip(seen, changed, strict=False), strict=False))
    for name in ("gpu_time", "card_time", "generation"):
        one, other = named[name]
        assert one != other
    assert played(trace, [GPU]).row_length() == trace.row_length[0, 0]
    assert Simulation(trace, 0).row_length() == trace.expected_row_length[0, 0]


@pytest.mark.parametrize("place", [0, 1])
def test_nobody_sees_a_failure_before_the_rows_are_sent(place):
    trace = draw(n_iterations=1)
    changed = with_actual(trace, lost=lambda x: x + 0.25)
    assert observed(changed, [GPU] * place) == observed(trace, [GPU] * place)


def test_nobody_sees_a_failure_before_the_critics_rows_are_sent():
    trace = draw(n_iterations=1)
    changed = with_actual(trace, lost=lambda x: x + 0.25)
    assert observed(changed, [GPU] * 3) == observed(trace, [GPU] * 3)


@pytest.mark.parametrize("codes", [[CONCURRENT], [CONCURRENT, GPU], [CONCURRENT, CONCURRENT]])
@pytest.mark.parametrize(
    "change",
    [{"late_arriving_s": lambda x: x + 3.0}, {"generation_s": 1.2, "handover_s": 1.2}],
)
def test_where_rows_are_streamed_nobody_knows_how_generation_ends(codes, change):
    trace = draw(n_iterations=1)
    assert observed(with_actual(trace, **change), codes) == observed(trace, codes)


def test_streamed_rows_are_placed_by_what_is_expected_of_them():
    trace = draw()
    streamed, waited = played(trace, [CONCURRENT]), played(trace, [GPU])
    assert streamed.known_work().gpu_s == streamed.expected.gpu_s
    assert waited.known_work().gpu_s == waited.actual.gpu_s
    assert streamed.row_length() == trace.expected_row_length[0, 0]
    # The critic runs when the rows are there.
    critic = played(trace, [CONCURRENT, GPU, GPU])
    assert critic.known_work().gpu_s == critic.actual.gpu_s
    assert critic.row_length() == trace.row_length[0, 0]


def test_observations_are_finite_whatever_is_done():
    for kind in KINDS.values():
        simulation = Simulation(draw(seed=3, **kind), 0)
        for code in code_list(N_STAGES * SCENARIO.n_iterations, 3):
            state, may = simulation.observation()
            assert all(math.isfinite(x) for x in state)
            assert all(m in (0.0, 1.0) for m in may)
            simulation.step(code, may)
