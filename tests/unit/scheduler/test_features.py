from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.records import Stage
from ecorl.scheduler.features import HIGH, LOW, N_FEATURES, NAMES, Observed, features, objective
from ecorl.scheduler.measured.readings import Readings
from ecorl.stages.figures import BATCH, CONCURRENT, GPU, Between, idle_work
from ecorl.stages.guards import Rules, gpu_only, permitted
from ecorl.stages.iteration import advance, finish
from tests.examples import examples
from tests.fakes.iterations import BEFORE, CODES, run, stacked, works

G, RW, RF, C, A, CT = list(Stage)
RULES = Rules(1.0, 0.0, 1.0, (1.0, 1.0, 1.0), 8.0, 2048.0, 1e30)
WORK = works().map(
    lambda w: w._replace(generation_j=w.generation_j + 1e3, backward_s=w.backward_s + 1.0)
)
"""Iterations of which neither time nor energy is next to nothing: the state is relative to them."""
SEEN = Observed(700.0, 0.6, 0.04, 0.6, 0.05, 8.0)

CLEAN = Between(0.0, 20.0, 0.0, 0.0)
PLAIN = idle_work()._replace(
    generation_s=10.0, generation_j=100.0, handover_s=(10.0,), gpu_s=(1.0, 1.0, 1.0),
    gpu_j=(10.0, 10.0, 10.0), card_s=(8.0, 8.0, 8.0), forward_s=1.0, backward_s=2.0,
    actor_j=30.0, card_active_w=5.0, card_idle_w=2.0, gpu_idle_w=7.0,
)  # fmt: skip


def state_before(stage, work, before, codes, rules=RULES, may=None):
    """The named numbers before a decision, after the codes of the stages before it."""
    carries, _ = run(work, before, codes)
    carry = carries[list(Stage).index(stage)]
    may = may or permitted(stage, carry, work, rules, SEEN.row_length)
    made = features(stage, carry, work, rules, SEEN, may)
    return dict(zip(NAMES, made, strict=True)), carry


def value_of(stage, carry, work, codes):
    """Eq. 7 of the iteration that goes on with these codes, then with a1."""
    place = list(Stage).index(stage)
    rest = [*codes, *[GPU] * (6 - place - len(codes))]
    for one, code in zip(list(Stage)[place:], rest, strict=True):
        carry = advance(one, carry, work, code)
    totals = finish(carry, work)
    return objective(totals.booked_s, totals.booked_j, totals.bubble_s, *gpu_only(work))


def near(gain):
    return pytest.approx(8.0 * gain, rel=1e-6, abs=1e-6)


def test_every_number_has_a_name_of_its_own():
    assert len(set(NAMES)) == len(NAMES) == N_FEATURES


@settings(deadline=None)
@given(WORK, BEFORE, CODES, st.sampled_from(list(Stage)))
def test_all_numbers_are_finite_and_the_stage_is_marked(work, before, codes, stage):
    state, _ = state_before(stage, work, before, codes)
    assert all(np.isfinite(x) for x in state.values())
    assert [s for s in Stage if state[f"stage_{s}"]] == [stage]


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.tuples(WORK, BEFORE, CODES), min_size=1, max_size=4),
    st.sampled_from(list(Stage)),
)
def test_arrays_give_the_numbers_of_floats(cases, stage):
    place = list(Stage).index(stage)
    work, before = stacked([c[0] for c in cases]), stacked([c[1] for c in cases])
    codes = np.array([c[2] for c in cases]).T
    carries, _ = run(work, before, list(codes), BATCH)
    may = permitted(stage, carries[place], work, RULES, SEEN.row_length, BATCH)
    many = features(stage, carries[place], work, RULES, SEEN, may, BATCH)
    many = np.stack([np.broadcast_to(x, len(cases)) for x in many], -1)
    for i, (own_work, own_before, own_codes) in enumerate(cases):
        one, _ = state_before(stage, own_work, own_before, own_codes)
        assert many[i] == pytest.approx(list(one.values()), rel=1e-9, abs=1e-9)


TIMES = (
    "generation_s", "handover_s", "gpu_s", "card_s", "resync_s", "forward_s", "backward_s",
    "early_s", "critic_s", "swap_s", "arriving_s", "late_arriving_s", "wake_s", "timeout_s",
)  # fmt: skip
ENERGIES = ("generation_j", "gpu_j", "actor_j", "early_j", "critic_j", "swap_j")
POWERS = ("gpu_idle_w", "card_active_w", "card_idle_w", "asleep_w")


def scaled(work, factors):
    def times(value, factor):
        return tuple(x * factor for x in value) if isinstance(value, tuple) else value * factor

    return work._replace(**{n: times(getattr(work, n), f) for n, f in factors.items()})


@settings(deadline=None)
@given(WORK, BEFORE, CODES, st.sampled_from(list(Stage)), st.sampled_from([0.25, 8.0]),
       st.sampled_from([0.5, 32.0]))  # fmt: skip
def test_the_state_does_not_know_how_large_the_cluster_is(
    work, before, codes, stage, seconds, joules
):
    factors = dict.fromkeys(TIMES, seconds) | dict.fromkeys(ENERGIES, joules)
    factors |= dict.fromkeys(POWERS, joules / seconds)
    other = scaled(work, factors)
    other_before = before._replace(
        backlog_s=before.backlog_s * seconds,
        deferred_s=before.deferred_s * seconds,
        deferred_j=before.deferred_j * joules,
        due_s=before.due_s * seconds,
    )
    one, _ = state_before(stage, work, before, codes)
    same, _ = state_before(stage, other, other_before, codes)
    assert list(same.values()) == pytest.approx(list(one.values()), rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(WORK, BEFORE, CODES, st.sampled_from([RW, RF, C]))
def test_the_gains_are_those_of_the_iterations_that_are_played_to_their_end(
    work, before, codes, stage
):
    state, carry = state_before(stage, work, before, codes, may=(1.0, 1.0))
    base = value_of(stage, carry, work, [GPU])
    assert state["gain_a3"] == near(value_of(stage, carry, work, [CONCURRENT]) - base)
    sent = [CONCURRENT, CONCURRENT] if stage is RW else [CONCURRENT]
    assert state["gain_both"] == near(value_of(stage, carry, work, sent) - base)


@settings(deadline=None)
@given(WORK, BEFORE)
def test_before_generation_the_gains_are_those_of_streaming(work, before):
    state, carry = state_before(G, work, before, [GPU] * 6)
    base = value_of(G, carry, work, [GPU])
    for name, sent in (("gain_a3", [CONCURRENT] * 3), ("gain_both", [CONCURRENT] * 2)):
        assert state[name] == near(value_of(G, carry, work, sent) - base)


@settings(deadline=None)
@given(WORK, BEFORE, CODES, st.sampled_from([A, CT]))
def test_before_training_both_gains_are_that_of_a3(work, before, codes, stage):
    state, carry = state_before(stage, work, before, codes, may=(0.0, 1.0))
    base = value_of(stage, carry, work, [GPU])
    assert state["gain_a3"] == near(value_of(stage, carry, work, [CONCURRENT]) - base)
    assert state["gain_both"] == state["gain_a3"]


@settings(deadline=None)
@given(WORK, BEFORE, CODES, st.sampled_from(list(Stage)))
def test_what_the_guards_refuse_gains_nothing(work, before, codes, stage):
    state, _ = state_before(stage, work, before, codes, may=(0.0, 0.0))
    assert (state["may_a2"], state["may_a3"]) == (0.0, 0.0)
    assert (state["gain_a3"], state["gain_both"]) == (0.0, 0.0)


def test_a_stage_that_cannot_leave_is_not_counted_on():
    rules = RULES._replace(usable=(1.0, 0.0, 0.0))
    state, _ = state_before(RW, PLAIN, CLEAN, [GPU] * 6, rules, (1.0, 1.0))
    assert state["gain_both"] == state["gain_a3"] != 0.0
    assert state["later_card_time"] == 0.0
    all_usable, _ = state_before(RW, PLAIN, CLEAN, [GPU] * 6, RULES, (1.0, 1.0))
    assert all_usable["gain_both"] != all_usable["gain_a3"]
    assert all_usable["later_card_time"] == pytest.approx(16.0 / gpu_only(PLAIN)[0])


def test_every_number_has_limits():
    assert len(LOW) == len(HIGH) == N_FEATURES
    assert all(low < high for low, high in zip(LOW, HIGH, strict=True))


def test_the_queue_counts_in_batches_like_the_one_at_hand():
    state, _ = state_before(RW, PLAIN, CLEAN._replace(backlog_s=26.0), [GPU] * 6)
    # Generation ends at 10 s, the cards are free at 26 s, a batch takes 8 s.
    assert state["queue_batches"] == pytest.approx(2.0 / 4.0)
    gpu_s, gpu_j = gpu_only(PLAIN)
    assert state["backlog"] == pytest.approx(16.0 / gpu_s)
    assert state["gpu_time"] == pytest.approx(1.0 / gpu_s)
    assert state["card_time"] == pytest.approx(8.0 / gpu_s)
    assert state["card_energy"] == pytest.approx(8.0 * 5.0 / gpu_j)
    assert state["later_gpu_time"] == pytest.approx(2.0 / gpu_s)


# ---------------------------------------------------------------- one decision of a run

CAN = st.sampled_from([0.0, 1.0])
ANY_RULES = st.builds(
    Rules, CAN, CAN, CAN, st.tuples(CAN, CAN, CAN), st.just(8.0), st.just(2048.0),
    st.sampled_from([1.0, 1e30]),
)  # fmt: skip
READ = st.builds(
    Readings, st.floats(0.1, 9.0), st.floats(0.1, 9.0), st.floats(0.0, 2.0), st.floats(0.0, 30.0),
    st.floats(0.0, 50.0),
)  # fmt: skip


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(
        st.tuples(WORK, st.floats(0.0, 80.0), st.sampled_from([20.0, 88.0]), CODES),
        min_size=1, max_size=3,
    ),
    st.sampled_from([RW, RF]), ANY_RULES, READ, READ, st.tuples(CAN, CAN),
)  # fmt: skip
def test_floats_have_the_numbers_of_arrays(cases, stage, rules, on_gpu, on_card, may):
    seen = SEEN._replace(on_gpu=on_gpu, on_card=on_card)
    works_, befores = [c[0] for c in cases], [Between(c[1], c[2], 0.0, 0.0) for c in cases]
    codes = np.array([[GPU, *c[3][1:]] for c in cases]).T
    carries, _ = run(stacked(works_), stacked(befores), list(codes), BATCH)
    place = list(Stage).index(stage)
    many = features(stage, carries[place], stacked(works_), rules, seen, may, BATCH)
    many = np.stack([np.broadcast_to(x, len(cases)) for x in many], -1)
    for i, (work, before) in enumerate(zip(works_, befores, strict=True)):
        carry = run(work, before, codes[:, i].tolist())[0][place]
        found = features(stage, carry, work, rules, seen, may)
        assert len(found) == N_FEATURES
        for name, one, array in zip(NAMES, found, many[i], strict=True):
            assert one == pytest.approx(array, rel=1e-9, abs=1e-9), name
