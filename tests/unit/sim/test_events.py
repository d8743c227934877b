"""The event-driven simulation: by hand, and against the stage function."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings

from ecorl.records import Algorithm, Stage
from ecorl.sim.simulation import Simulation
from ecorl.sim.trace import draw_trace
from ecorl.stages.figures import CONCURRENT, FPGA, GPU, Between, idle_work
from ecorl.stages.iteration import with_deferred_done
from tests.examples import examples
from tests.fakes.iterations import BEFORE, CODES, N_STAGES, run, works
from tests.fakes.scenarios import SCENARIO
from tests.oracles.events import check_episode, difference, play_episode, play_iteration

CLEAN = Between(0.0, 20.0, 0.0, 0.0)

PLAIN = idle_work()._replace(
    generation_s=8.0, generation_j=80.0, handover_s=(4.0, 8.0), tail=(1.0, 0.5),
    gpu_s=(1.0, 1.0, 1.0), gpu_j=(10.0, 10.0, 10.0), card_s=(4.0, 6.0, 2.0), forward_s=1.0,
    backward_s=2.0, actor_j=30.0, critic_s=3.0, critic_j=45.0, contention=0.5, gpu_idle_w=7.0,
    card_active_w=5.0, card_idle_w=2.0,
)  # fmt: skip

OFFLOADS = (
    (CONCURRENT, FPGA, CONCURRENT, GPU, CONCURRENT, CONCURRENT),
    (CONCURRENT, CONCURRENT, FPGA, CONCURRENT, GPU, GPU),
    (CONCURRENT, GPU, CONCURRENT, FPGA, GPU, CONCURRENT),
    (GPU, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
)


# ------------------------------------------------------------ by hand


def test_a_queue_is_served_in_the_order_of_arrival():
    work = PLAIN._replace(arriving_s=3.0, late_arriving_s=2.0)
    totals = play_iteration(work, CLEAN._replace(backlog_s=7.0), [0, FPGA, CONCURRENT, 0, 0, 0])
    # Others until 12 s, reward until 16 s, reference until 22 s; the critic from 16 to 17 s.
    assert totals.time_s == 22 + 3 + 3
    assert totals.bubble_s == 8 + 5
    assert totals.gpu_j == 80 + 10 + 30 + 45 + 7 * 13
    assert totals.card_j == 2 * 28 + 3 * 10
    assert totals.after.backlog_s == 0.0


def test_the_reward_goes_before_the_reference_of_the_same_rows():
    # At 4 s both send half; the reward's second half at 8 s goes before the reference's first.
    totals = play_iteration(PLAIN, CLEAN, [CONCURRENT, FPGA, CONCURRENT, 0, 0, 0])
    # 4 to 6 s reward, 6 to 8 s reference, 8 to 10 s reward, 10 to 14 s reference.
    assert totals.bubble_s == 2 + 3
    assert totals.time_s == 14 + 3 + 3


def test_what_others_send_stays_behind():
    work = PLAIN._replace(late_arriving_s=30.0)
    totals = play_iteration(work, CLEAN, [0, 0, 0, 0, 0, 0])
    assert totals.time_s == 8 + 3 + 3 + 3
    assert totals.after.backlog_s == 30 - 9
    assert totals.card_j == 2 * 17


def test_training_that_was_put_off_runs_beside_the_generation_and_after_it():
    before = CLEAN._replace(deferred_s=10.0, deferred_j=100.0)
    totals = play_iteration(PLAIN, before, [0, 0, 0, 0, 0, CONCURRENT])
    assert totals.time_s == 8 * 1.5 + 2 + 3 + 3
    assert totals.gpu_j == 80 + 100 + 30 + 30
    assert (totals.after.deferred_s, totals.after.deferred_j) == (3.0, 45.0)
    assert totals.booked_s == 20 + 3 - 10
    last = play_iteration(PLAIN, before, [0, 0, 0, 0, 0, CONCURRENT], last=True)
    assert last.time_s == 20 + 3
    assert last.gpu_j == totals.gpu_j + 45
    assert last.after.deferred_s == 0.0


def test_an_episode_hands_on_what_an_iteration_leaves():
    works_ = [PLAIN._replace(late_arriving_s=30.0), PLAIN]
    actions = [[0, 0, 0, 0, 0, CONCURRENT], [0, FPGA, 0, 0, 0, CONCURRENT]]
    first, second = play_episode(works_, actions, CLEAN)
    assert first.after.backlog_s == 30 - 6
    assert second.time_s == max(24.0, 8 + 0.5 * 3) + 4 + 2 + 3 + 3
    assert second.after.deferred_s == 0.0


def test_cards_that_are_down_and_a_wrong_number_of_actions_are_refused():
    down = PLAIN._replace(cards_up=0.0)
    assert play_iteration(down, CLEAN, [0] * N_STAGES).time_s == 17.0
    with pytest.raises(ValueError, match="is up"):
        play_iteration(down, CLEAN, [0, FPGA, 0, 0, 0, 0])
    with pytest.raises(ValueError, match="5 actions"):
        play_iteration(PLAIN, CLEAN, [0] * 5)


@pytest.mark.parametrize("name", ["time_s", "gpu_j", "card_j", "bubble_s", "booked_s", "booked_j"])
def test_a_difference_of_any_figure_counts(name):
    one = play_iteration(PLAIN, CLEAN, [0, FPGA, 0, 0, 0, CONCURRENT])
    assert difference(one, one) == 0.0
    for factor in (1 + 1e-6, 1 - 1e-6):
        other = one._replace(**{name: getattr(one, name) * factor})
        assert 1e-8 < difference(one, other) < 1e-5
        assert difference(one, other) == difference(other, one)
    assert difference(one, one._replace(**{name: float("nan")})) == float("inf")


@pytest.mark.parametrize("name", ["backlog_s", "temperature_c", "deferred_s", "deferred_j"])
def test_a_difference_of_what_is_left_counts(name):
    work = PLAIN._replace(late_arriving_s=30.0, ambient_c=20.0)
    one = play_iteration(work, CLEAN, [0, 0, 0, 0, 0, CONCURRENT])
    after = one.after._replace(**{name: getattr(one.after, name) * (1 + 1e-6)})
    assert difference(one, one._replace(after=after)) > 1e-8


# ------------------------------------------------------------ against the stage function


ALMOST_4_S = 3.882118337818178
NOTHING_TO_DRAW = PLAIN._replace(
    generation_s=ALMOST_4_S, generation_j=0.0, handover_s=(0.0, 0.0, 0.0, ALMOST_4_S),
    tail=(1.0, 0.0, 0.0, 0.0), gpu_s=(0.0,) * 3, gpu_j=(0.0,) * 3, card_s=(0.0,) * 3,
    forward_s=0.0, backward_s=0.0, actor_j=0.0, early_s=0.0, early_j=0.0, critic_s=5.0,
    critic_j=0.0, gpu_idle_w=1.0, off_policy=1.0, contention=0.0, swap_s=0.0, swap_j=0.0,
    card_idle_w=0.0,
)  # fmt: skip
"""An iteration whose only joules would be those of a bubble of 0 s, which rounding makes 1e-15."""


@settings(deadline=None, max_examples=examples(500))
@given(works(), BEFORE, CODES)
@example(PLAIN, CLEAN._replace(deferred_s=10.0, deferred_j=1.0), OFFLOADS[0])
@example(NOTHING_TO_DRAW, CLEAN, [0, 0, 0, CONCURRENT, 0, CONCURRENT])
def test_the_stage_function_agrees_with_the_events(work, before, actions):
    _, totals = run(work, before, actions)
    assert difference(totals, play_iteration(work, before, actions), work.gpu_idle_w) < 1e-9
    end = play_iteration(work, before, actions, last=True)
    assert difference(with_deferred_done(totals, work), end, work.gpu_idle_w) < 1e-9


@pytest.mark.parametrize("off_policy", [0.0, 1.0])
@pytest.mark.parametrize("actions", OFFLOADS)
@settings(deadline=None, max_examples=examples(60))
@given(work=works(), before=BEFORE)
def test_streamed_and_mixed_placements_agree(work, before, actions, off_policy):
    work = work._replace(off_policy=off_policy)
    _, totals = run(work, before, actions)
    assert difference(totals, play_iteration(work, before, actions)) < 1e-9


PAPER = replace(SCENARIO, failure_rate=0.2, n_iterations=60)
SCENARIOS = {
    "ppo": PAPER,
    "off_policy": replace(PAPER, off_policy=True, slow=1.3),
    "grpo": replace(PAPER, algorithm=Algorithm.GRPO),
    "dapo": replace(PAPER, algorithm=Algorithm.DAPO),
    "hot": replace(PAPER, ambient_c=75.0, load=0.45),
    "one card": replace(PAPER, n_cards=1, failure_rate=0.5, repair_iterations=2.0),
    "roofline": replace(PAPER, calibration="roofline", sizes={Stage.GENERATION: "1b",
        Stage.REWARD: "15m", Stage.REFERENCE: "15m", Stage.CRITIC: "15m"}, n_gpus=1),
}  # fmt: skip


def random_codes(n_iterations, seed):
    return np.random.default_rng(seed).integers(0, 3, (n_iterations, N_STAGES)).tolist()


@pytest.mark.parametrize("name", SCENARIOS)
def test_whole_episodes_agree(name):
    scenario = SCENARIOS[name]
    for seed in range(3):
        actions = random_codes(scenario.n_iterations, seed)
        assert check_episode(scenario, seed, actions) < 1e-9


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_episodes_that_are_compared_use_the_cards(name):
    scenario = SCENARIOS[name]
    simulation = Simulation(draw_trace([scenario], np.random.default_rng(0)), 0)
    own_j = bubble_s = backlog_s = 0.0
    for code in np.ravel(random_codes(scenario.n_iterations, 0)):
        idle_w = simulation.actual.card_idle_w
        simulation.step(int(code))
        if simulation.place == 0:
            totals = simulation.totals
            own_j += totals.card_j - idle_w * totals.time_s
            bubble_s, backlog_s = bubble_s + totals.bubble_s, backlog_s + totals.after.backlog_s
    assert own_j > 0
    assert bubble_s > 0
    assert backlog_s > 0
