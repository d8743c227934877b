"""The stage function: by hand, by its own laws, and its two sets of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.records import Stage
from ecorl.stages.figures import BATCH, CONCURRENT, FPGA, GPU, Between, idle_work
from ecorl.stages.guards import Rules, gpu_only, outlook, permitted
from ecorl.stages.iteration import advance, begin, card_done_s, finish, with_deferred_done
from tests.examples import examples
from tests.fakes.iterations import BEFORE, CODES, N_STAGES, SECONDS, flat, run, stacked, works

G, RW, RF, C, A, CT = list(Stage)
CLEAN = Between(0.0, 20.0, 0.0, 0.0)
A1 = [GPU] * N_STAGES

BY_HAND = idle_work()._replace(
    generation_s=8.0, generation_j=80.0, handover_s=(2.0, 4.0, 6.0, 8.0),
    tail=(1.0, 0.75, 0.5, 0.25), gpu_s=(1.0, 2.0, 3.0), gpu_j=(10.0, 20.0, 30.0),
    card_s=(4.0, 6.0, 5.0), resync_s=1.0, forward_s=2.0, backward_s=4.0, actor_j=60.0,
    early_s=0.5, early_j=5.0, critic_s=3.0, critic_j=45.0, swap_s=0.25, swap_j=2.0,
    contention=0.5, gpu_idle_w=7.0, card_active_w=5.0, card_idle_w=2.0,
)  # fmt: skip


def near(value):
    return pytest.approx(value, rel=1e-12)


# ------------------------------------------------------------ by hand


def test_all_on_the_gpus():
    _, totals = run(BY_HAND, CLEAN, A1)
    assert totals.time_s == near(8 + 6 + 6 + 3)
    assert totals.gpu_j == near(80 + 60 + 60 + 45)
    assert totals.card_j == near(2.0 * 23)
    assert (totals.bubble_s, totals.after.backlog_s, totals.after.deferred_s) == (0.0, 0.0, 0.0)
    assert gpu_only(BY_HAND) == (totals.time_s, totals.energy_j)


def test_the_gpus_wait_for_a_blocking_stage_and_for_what_is_queued_before_it():
    work = BY_HAND._replace(arriving_s=9.0, late_arriving_s=2.0)
    carries, totals = run(work, CLEAN._replace(backlog_s=1.0), [GPU, FPGA, GPU, GPU, GPU, GPU])
    # Others: 10 s at the start, 2 s at 8 s, so until 12 s; then the reward until 16 s.
    assert carries[2].t_s == near(16.0)
    assert totals.bubble_s == near(8.0)
    assert totals.time_s == near(16 + 5 + 6 + 3)
    assert totals.gpu_j == near(80 + 50 + 60 + 45 + 7.0 * 8)
    assert totals.card_j == near(2.0 * 30 + 3.0 * 4)
    assert totals.after.backlog_s == 0.0


def test_of_two_cards_the_second_batch_finds_half_the_queue():
    work = BY_HAND._replace(n_cards=2.0, card_share=0.5)
    carries, totals = run(work, CLEAN, [GPU, CONCURRENT, CONCURRENT, GPU, GPU, GPU])
    # Reward 8 to 12 s, of which the server is busy until 10 s; then the reference until 16 s.
    assert (carries[2].pending_s, carries[2].card_s) == (near(12.0), near(10.0))
    assert (carries[3].pending_s, carries[3].card_s) == (near(16.0), near(13.0))
    assert totals.bubble_s == near(5.0)
    assert totals.card_j == near(2.0 * totals.time_s + 3.0 * 5)


def test_of_streamed_rows_only_the_last_hand_over_is_still_on_its_way():
    work = BY_HAND._replace(n_cards=2.0, card_share=0.5)
    carries, _ = run(work, CLEAN, [CONCURRENT, CONCURRENT, GPU, GPU, GPU, GPU])
    # 2 s of both cards from 2 s on; the last quarter comes at 8 s and takes one card 1 s.
    assert carries[2].pending_s == near(9.0)
    assert carries[2].card_s == near(8.5)


@given(works(), BEFORE, CODES, st.sampled_from([2, 3, 8]))
def test_more_cards_that_answer_a_batch_each_never_make_an_iteration_longer(
    work, before, codes, n_cards
):
    several = work._replace(card_share=1.0 / n_cards)
    carries, totals = run(several, before, codes)
    _, alone = run(work, before, codes)
    assert totals.time_s <= alone.time_s * (1 + 1e-12)
    for stage, carry, after in zip(Stage, carries, carries[1:], strict=False):
        if stage in (RW, RF, C) and codes[list(Stage).index(stage)] == CONCURRENT:
            _, card_s = card_done_s(stage, carry, several, 1.0)
            # A batch itself is as long as ever, and so is each hand-over.
            sent = [(carry.t_s, 1.0)]
            if carry.streaming and stage is not C:
                parts = np.subtract(work.tail, (*work.tail[1:], 0.0))
                sent = [(s * carry.stretch, x) for s, x in zip(work.handover_s, parts, strict=True)]
            done_s = max(since_s + card_s * part for since_s, part in sent)
            assert after.pending_s >= done_s * (1 - 1e-12)


def test_concurrent_stages_queue_and_join_before_the_backward_pass():
    _, totals = run(BY_HAND, CLEAN, [GPU, CONCURRENT, CONCURRENT, GPU, GPU, GPU])
    # Cards: reward 8 to 12 s, reference 12 to 18 s. GPUs: critic 8 to 11 s, then they wait.
    assert totals.bubble_s == near(7.0)
    assert totals.time_s == near(18 + 6 + 3)


def test_an_early_forward_pass_hides_behind_the_barrier_at_its_price():
    _, totals = run(BY_HAND, CLEAN, [GPU, CONCURRENT, CONCURRENT, GPU, CONCURRENT, GPU])
    assert totals.bubble_s == near(7.0 - 2.5)
    assert totals.time_s == near(18 + 4 + 3)
    assert totals.gpu_j == near(80 + 30 + 60 + 45 + 5.0 + 7.0 * 4.5)


def test_streamed_rows_are_answered_while_generation_goes_on():
    # The reward's rows come at 2, 4, 6 and 8 s, 1 s of card time each: done at 9 s.
    carries, _ = run(BY_HAND, CLEAN, [CONCURRENT, FPGA, GPU, GPU, GPU, GPU])
    assert carries[2].t_s == near(9.0)
    # With the reference's 1.5 s each time, the cards are busy from 2 s on: done at 12 s.
    carries, _ = run(BY_HAND, CLEAN, [CONCURRENT, FPGA, CONCURRENT, GPU, GPU, GPU])
    assert carries[2].t_s == near(9.0)
    assert carries[3].pending_s == near(12.0)


def test_others_late_work_comes_after_streamed_rows_and_before_what_is_sent_later():
    work = BY_HAND._replace(late_arriving_s=10.0)
    carries, totals = run(work, CLEAN, [CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT, GPU, GPU])
    assert carries[3].pending_s == near(12.0)
    assert carries[4].pending_s == near(12 + 10 + 6)
    assert totals.time_s == near(28 + 6 + 3)


def test_put_off_training_stretches_the_next_generation_and_its_hand_overs():
    short, long = CLEAN._replace(deferred_s=4.0), CLEAN._replace(deferred_s=10.0)
    carries, _ = run(BY_HAND, short, [CONCURRENT, FPGA, GPU, GPU, GPU, GPU])
    assert carries[1].t_s == near(8 + 0.5 * 4)
    assert carries[2].t_s == near(10 + 1)
    carries, _ = run(BY_HAND, long, A1)
    assert carries[1].t_s == near(8 * 1.5 + 2)


def test_a_step_that_is_put_off_costs_its_swap_now_and_itself_later():
    _, totals = run(BY_HAND, CLEAN, [GPU, GPU, GPU, GPU, GPU, CONCURRENT])
    assert totals.time_s == near(8 + 6 + 6 + 0.25)
    assert (totals.after.deferred_s, totals.after.deferred_j) == (3.0, 45.0)
    assert totals.booked_s == near(8 + 6 + 6 + 0.25 + 3)
    end = with_deferred_done(totals, BY_HAND)
    assert (end.time_s, end.energy_j) == (near(totals.booked_s), near(totals.booked_j))
    assert end.after.deferred_s == end.after.deferred_j == 0.0


def test_lost_rows_are_answered_by_the_gpus_at_the_barrier():
    work = BY_HAND._replace(lost=0.25)
    _, totals = run(work, CLEAN, [GPU, FPGA, CONCURRENT, GPU, GPU, GPU])
    # Reward until 12 s, reference until 18 s; the critic until 15 s; 3 s of waiting.
    assert totals.time_s == near(18 + 0.25 * 3 + 6 + 3)
    assert totals.gpu_j == near(80 + 30 + 60 + 45 + 0.25 * 30 + 7.0 * (4 + 3))


def test_one_step_off_policy_joins_at_the_end():
    work = BY_HAND._replace(off_policy=1.0, lost=0.5)
    _, totals = run(work, CLEAN, [GPU, CONCURRENT, GPU, GPU, CONCURRENT, GPU])
    # The GPUs are done at 8 + 5 + 6 + 3 = 22 s, long after the cards (12 s); no early price.
    assert totals.bubble_s == 0.0
    assert totals.time_s == near(22 + 0.5)
    assert totals.gpu_j == near(80 + 50 + 60 + 45 + 5)


def test_a_shared_power_cap_slows_what_runs_beside_the_gpus_alone():
    carry = begin(BY_HAND._replace(slow=1.5, cards_up=0.5), CLEAN)
    work = BY_HAND._replace(slow=1.5, cards_up=0.5)
    assert card_done_s(RW, carry, work, 0.0) == (8.0, 8.0)
    assert card_done_s(RW, carry, work, 1.0) == (12.0, 12.0)
    # The new weights of the critic do not travel faster or slower.
    assert card_done_s(C, carry, work, 1.0)[1] == near(15.0 + 1.0)


def test_hot_cards_slow_down_evenly_and_move_towards_the_temperature_of_their_power():
    work = BY_HAND._replace(
        limit_c=80.0, throttle=0.5, ambient_c=20.0, rise_c_per_w=2.0, tau_s=23.0, n_cards=1.0
    )
    speeds = ((20.0, 1.0), (80.0, 1.0), (85.0, 0.75), (90.0, 0.5), (120.0, 0.5))
    for temperature_c, speed in speeds:
        assert begin(work, CLEAN._replace(temperature_c=temperature_c)).speed == near(speed)
    half = work._replace(cards_up=0.5)
    assert begin(half, CLEAN._replace(temperature_c=85.0)).speed == near(0.375)
    _, totals = run(work, CLEAN._replace(temperature_c=81.0), A1)
    assert totals.time_s == 23.0
    # Idle at 2 W: 24 degrees in the long run, and exp(-1) of the way is still to go.
    assert totals.after.temperature_c == near(24.0 + (81.0 - 24.0) * np.exp(-1.0))


# ------------------------------------------------------------ laws


@settings(deadline=None)
@given(works(), BEFORE, CODES)
def test_nothing_is_negative_and_the_gpus_never_wait_longer_than_the_iteration(
    work, before, actions
):
    carries, totals = run(work, before, actions)
    assert all(figure >= -1e-9 * totals.time_s for figure in flat(totals))
    assert totals.bubble_s <= totals.time_s
    clocks = np.array([carry.t_s for carry in carries] + [totals.time_s])
    assert (np.diff(clocks) >= -1e-12 * totals.time_s).all()
    least_w = min(work.card_idle_w, work.asleep_w) if before.asleep else work.card_idle_w
    rounding_w = 1e-12 * max(work.card_idle_w, work.asleep_w)
    assert totals.card_j >= (least_w - rounding_w) * totals.time_s


@settings(deadline=None)
@given(works(), BEFORE, CODES, SECONDS, st.sampled_from(["backlog", "arriving", "late"]))
def test_more_work_of_others_never_makes_anything_earlier(work, before, actions, more_s, where):
    busy, busy_before = work, before
    if where == "backlog":
        busy_before = before._replace(backlog_s=before.backlog_s + more_s)
    elif where == "arriving":
        busy = work._replace(arriving_s=work.arriving_s + more_s)
    else:
        busy = work._replace(late_arriving_s=work.late_arriving_s + more_s)
    free, full = run(work, before, actions), run(busy, busy_before, actions)
    for one, other in zip(free[0], full[0], strict=True):
        assert other.t_s >= one.t_s * (1 - 1e-12)
        assert other.pending_s >= one.pending_s * (1 - 1e-12)
        assert other.card_s >= one.card_s * (1 - 1e-12)
    assert full[1].time_s >= free[1].time_s * (1 - 1e-12)
    assert full[1].bubble_s >= free[1].bubble_s - 1e-12 * free[1].time_s


@settings(deadline=None)
@given(works(slow=1.0), BEFORE, CODES, st.sampled_from([1, 2, 3]))
def test_waiting_at_once_is_never_faster_than_waiting_at_the_barrier(work, before, actions, place):
    waits, joins = list(actions), list(actions)
    waits[place], joins[place] = FPGA, CONCURRENT
    blocking, concurrent = run(work, before, waits)[1], run(work, before, joins)[1]
    assert concurrent.time_s <= blocking.time_s * (1 + 1e-12)


@settings(deadline=None)
@given(works(), BEFORE, CODES, st.sampled_from([1, 2, 3]))
def test_faster_cards_never_make_an_iteration_longer(work, before, actions, place):
    card_s = [0.5 * s if i == place - 1 else s for i, s in enumerate(work.card_s)]
    fast = run(work._replace(card_s=tuple(card_s)), before, actions)[1]
    assert fast.time_s <= run(work, before, actions)[1].time_s * (1 + 1e-12)


@settings(deadline=None)
@given(works(), BEFORE, CODES, st.sampled_from([G, A, CT]))
def test_actions_without_a_meaning_are_the_gpu_path(work, before, actions, stage):
    place = list(Stage).index(stage)
    actions = list(actions)
    actions[place] = FPGA
    blocking = run(work, before, actions)
    actions[place] = GPU
    assert blocking == run(work, before, actions)


@settings(deadline=None)
@given(works(off_policy=1.0), BEFORE, CODES)
def test_off_policy_there_is_no_barrier_for_a_forward_pass_to_be_early_for(work, before, actions):
    early, late = list(actions), list(actions)
    early[4], late[4] = CONCURRENT, GPU
    assert run(work, before, early) == run(work, before, late)


@settings(deadline=None)
@given(works(), BEFORE)
def test_gpu_only_is_the_iteration_of_a1_alone_whatever_others_do(work, before):
    # Cards that nobody used in the iteration before either.
    before = before._replace(deferred_s=0.0, deferred_j=0.0, asleep=work.sleeps, due_s=0.0)
    _, totals = run(work, before, A1)
    time_s, energy_j = gpu_only(work)
    assert (totals.time_s, totals.energy_j) == (near(time_s), near(energy_j))
    assert (totals.booked_s, totals.booked_j) == (near(time_s), near(energy_j))
    assert totals.bubble_s == 0.0


@settings(deadline=None, max_examples=examples(50))
@given(
    st.lists(
        st.tuples(works(card_idle_w=3.0, card_active_w=8.0, asleep_w=1.0), CODES),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_booked_adds_up_to_what_is_used(iterations):
    before, used, booked = CLEAN, np.zeros(2), np.zeros(2)
    for i, (work, actions) in enumerate(iterations):
        _, totals = run(work, before, actions)
        if i + 1 == len(iterations):
            totals = with_deferred_done(totals, work)
        before = totals.after
        used += (totals.time_s, totals.energy_j)
        booked += (totals.booked_s, totals.booked_j)
    assert booked == pytest.approx(used, rel=1e-12)


# ------------------------------------------------------------ the outlook


@settings(deadline=None)
@given(works(), BEFORE, CODES, st.sampled_from(list(Stage)))
def test_the_outlook_is_the_chain_of_a1_and_the_end(work, before, actions, last):
    place = list(Stage).index(last) + 1
    carries, totals = run(work, before, actions[:place] + A1[place:])
    seen = outlook(last, carries[place], work)
    assert seen == (near(totals.booked_s), near(totals.booked_j), near(totals.bubble_s))


@settings(deadline=None)
@given(works(), BEFORE, CODES, st.sampled_from([G, RW, RF, C]))
def test_the_outlook_takes_the_forward_pass_early_where_that_is_faster(work, before, actions, last):
    place = list(Stage).index(last) + 1
    ends = []
    for action in (GPU, CONCURRENT):
        rest = [*A1[place:4], action, GPU]
        carries, totals = run(work, before, actions[:place] + rest)
        ends.append((totals.booked_s, totals.booked_j, totals.bubble_s))
    seen = outlook(last, carries[place], work, early=1.0)
    assert seen[0] == near(min(end[0] for end in ends))
    better = ends[1] if ends[1][0] < ends[0][0] * (1 - 1e-12) else None
    if better is not None:
        assert seen == tuple(map(near, better))


# ------------------------------------------------------------ arrays


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.tuples(works(), BEFORE, CODES), min_size=1, max_size=5))
def test_arrays_give_the_numbers_of_floats(cases):
    singles = [run(*case) for case in cases]
    work, before = stacked([c[0] for c in cases]), stacked([c[1] for c in cases])
    actions = np.array([c[2] for c in cases]).T
    carries, totals = run(work, before, list(actions), BATCH)
    for i, (own_carries, own_totals) in enumerate(singles):
        for many, one in zip([*carries, totals], [*own_carries, own_totals], strict=True):
            picked = [np.broadcast_to(figure, len(cases))[i] for figure in flat(many)]
            # What is booked is a difference: rounding is that of what it is the difference of.
            scale = own_totals.time_s + own_totals.after.backlog_s
            scale += own_totals.energy_j + own_carries[0].brought_j
            assert picked == pytest.approx(list(flat(one)), rel=1e-12, abs=1e-12 * scale)
    for stage, carry in zip(Stage, carries[1:], strict=True):
        many = np.array(outlook(stage, carry, work, 1.0, BATCH))
        place = list(Stage).index(stage) + 1
        for i, (case, (own, _)) in enumerate(zip(cases, singles, strict=True)):
            one = outlook(stage, own[place], case[0], 1.0)
            assert many[:, i] == pytest.approx(one, rel=1e-12, abs=1e-9)


def test_all_actions_of_a_stage_broadcast_against_one_work():
    carry = advance(G, begin(BY_HAND, CLEAN), BY_HAND, GPU)
    many = advance(RW, carry, BY_HAND, np.arange(3), BATCH)
    for action in range(3):
        one = advance(RW, carry, BY_HAND, action)
        picked = [np.broadcast_to(figure, 3)[action] for figure in many]
        assert picked == pytest.approx(list(one), rel=1e-12)
    assert np.broadcast_to(finish(many, BY_HAND, BATCH).time_s, 3).shape == (3,)


# ------------------------------------------------------------ the guards

OPEN = Rules(1.0, 1.0, 1.0, (1.0, 1.0, 1.0), 8.0, 2048.0, 1e30)


def after_generation(work, before=CLEAN):
    return advance(G, begin(work, before), work, GPU)


@pytest.mark.parametrize("stage", [RW, RF, C])
def test_a_stage_may_leave_when_every_guard_lets_it(stage):
    assert permitted(stage, after_generation(BY_HAND), BY_HAND, OPEN, 512.0) == (1.0, 1.0)


@pytest.mark.parametrize("stage", [RW, RF, C])
def test_every_guard_alone_keeps_a_stage_on_the_gpus(stage):
    place = [RW, RF, C].index(stage)
    unusable = tuple(0.0 if i == place else 1.0 for i in range(3))
    carry = after_generation(BY_HAND)
    down = BY_HAND._replace(cards_up=0.0)
    assert permitted(stage, carry, down, OPEN, 512.0) == (0.0, 0.0)
    assert permitted(stage, carry, BY_HAND, OPEN._replace(usable=unusable), 512.0) == (0.0, 0.0)
    assert permitted(stage, carry, BY_HAND, OPEN, 2049.0) == (0.0, 0.0)
    assert permitted(stage, carry, BY_HAND, OPEN, 2048.0) == (1.0, 1.0)
    assert permitted(stage, carry, BY_HAND, OPEN._replace(energy_limit=0.01), 9.0) == (0.0, 0.0)


def test_a_queue_of_so_many_batches_stops_offloading():
    # The reward takes 4 s on the cards; generation ends at 8 s.
    for backlog_s, passes in ((8 + 4 * 8.0 - 1e-6, 1.0), (8 + 4 * 8.0, 0.0)):
        carry = after_generation(BY_HAND, CLEAN._replace(backlog_s=backlog_s))
        assert permitted(RW, carry, BY_HAND, OPEN, 9.0) == (passes, passes)


def test_the_energy_guard_counts_waiting_gpus_and_what_is_sure_to_hide_the_wait():
    carry = after_generation(BY_HAND)
    # Reward: cards 5 W x 4 s; a2 waits 4 s, a3 at least 2 s beside the early forward pass.
    for limit_j, expected in ((20 + 28, (1.0, 1.0)), (20 + 27, (0.0, 1.0)), (20 + 13, (0.0, 0.0))):
        rules = OPEN._replace(energy_limit=limit_j / BY_HAND.gpu_j[0])
        assert permitted(RW, carry, BY_HAND, rules, 9.0) == expected
    # A critic that cannot leave hides 3 s more.
    rules = OPEN._replace(usable=(1.0, 1.0, 0.0), energy_limit=20 / BY_HAND.gpu_j[0])
    assert permitted(RW, carry, BY_HAND, rules, 9.0) == (0.0, 1.0)


def test_the_other_stages_have_what_the_framework_can_do():
    carry = after_generation(BY_HAND)
    for stage, name in ((G, "stream"), (A, "early"), (CT, "defer")):
        assert permitted(stage, carry, BY_HAND, OPEN, 9.0) == (0.0, 1.0)
        closed = OPEN._replace(**{name: 0.0})
        assert permitted(stage, carry, BY_HAND, closed, 9.0) == (0.0, 0.0)
    off_policy = BY_HAND._replace(off_policy=1.0)
    assert permitted(A, carry, off_policy, OPEN, 9.0) == (0.0, 0.0)


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.tuples(works(), BEFORE, CODES), min_size=1, max_size=5),
    st.sampled_from([0.5, 1.0, 5.0, 1e30]),
    st.sampled_from([0.5, 2.0, 8.0]),
)
def test_the_guards_say_the_same_of_arrays(cases, energy_limit, q_max):
    rules = OPEN._replace(energy_limit=energy_limit, q_max=q_max)
    work, before = stacked([c[0] for c in cases]), stacked([c[1] for c in cases])
    actions = np.array([c[2] for c in cases]).T
    carries, _ = run(work, before, list(actions), BATCH)
    for place, stage in enumerate(Stage):
        many = permitted(stage, carries[place], work, rules, 9.0, BATCH)
        for i, (own_work, own_before, own_actions) in enumerate(cases):
            own, _ = run(own_work, own_before, own_actions)
            one = permitted(stage, own[place], own_work, rules, 9.0)
            assert tuple(np.broadcast_to(m, len(cases))[i] for m in many) == one
