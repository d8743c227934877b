"""Which gear may be chosen, and what limits it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.config.trainer import GearsConfig
from ecorl.control import Gear
from ecorl.trainer.gears.formats import GearSupport
from ecorl.trainer.gears.gearbox import Barred, Gearbox, Limit

ALL = (Gear.BF16, Gear.FP8, Gear.FP16)


def box(gears=ALL, low_share=1.0, simulated=(Gear.FP8,), **config):
    return Gearbox(GearsConfig(allowed=gears, **config), GearSupport(gears, simulated), low_share)


def test_a_choice_is_taken_and_none_keeps_the_gear():
    own = box()
    assert own.gear is Gear.BF16
    assert own.shift(Gear.FP8, 10) is Gear.FP8
    assert own.shift(None, 9) is Gear.FP8
    assert own.shift(Gear.FP32, 8) is Gear.BF16  # not one of its gears


@pytest.mark.parametrize(
    ("gears", "safe"),
    [(ALL, Gear.BF16), ((Gear.FP8, Gear.FP32), Gear.FP32), ((Gear.FP32, Gear.BF16), Gear.BF16)],
)
def test_a_step_is_redone_in_bf16_where_there_is_one(gears, safe):
    assert box(gears, simulated=()).safe is safe


@given(
    share=st.floats(0.0, 0.99),
    tokens=st.lists(st.integers(50, 150), min_size=1, max_size=60),
)
def test_the_cap_on_low_tokens_holds_whoever_asks_for_more(share, tokens):
    own = box(low_share=share)
    low = 0.0
    for number, n in enumerate(tokens):
        gear = own.shift(Gear.FP8, len(tokens) - number)
        own.count(gear, n)
        low += n if gear is Gear.FP8 else 0
    # A step of unequal length is not known before it is made: one step's length of slack.
    assert low <= share * sum(tokens) + max(tokens)
    assert own.low_tokens == low
    assert own.tokens == sum(tokens)


def test_steps_of_one_length_meet_the_cap_exactly():
    own = box(low_share=0.3)
    gears = []
    for number in range(40):
        gear = own.shift(Gear.FP8, 40 - number)
        own.count(gear, 100)
        gears.append(gear)
    assert gears.count(Gear.FP8) == 12


def test_redone_tokens_leave_more_of_the_cap():
    own = box(low_share=0.5)
    own.count(Gear.FP8, 100.0)
    assert own.low_steps_left(1) == 0.0
    own.count_redone(Gear.FP8, 50.0)
    assert (own.tokens, own.low_tokens) == (100.0, 50.0)
    assert own.low_steps_left(1) == pytest.approx(0.5)


def test_what_binds_is_told():
    own = box(low_share=0.4, noise_budget=0.05)
    assert (own.low_share.share, own.low_share.limit) == (0.4, Limit.SHARE)
    own.note_noise(Gear.FP8, 1.1, 1.0)
    assert own.low_share.share == pytest.approx(0.4)
    own = box(low_share=0.4, noise_budget=0.05)
    own.note_noise(Gear.FP8, 1.5, 1.0)
    assert own.low_share.share == pytest.approx(0.1)
    assert own.low_share.limit is Limit.NOISE
    assert own.low_steps_left(50) == pytest.approx(5.0)


def test_gamma_is_the_noise_s_ratio_and_never_below_one():
    own = box()
    assert own.gamma(Gear.FP8) == 1.0
    assert own.noise_ratio(Gear.FP8) is None
    own.note_noise(Gear.FP8, 4.0, 1.0)
    assert own.gamma(Gear.FP8) == own.noise_ratio(Gear.FP8) == 2.0
    for nothing in ((None, 1.0), (1.0, None), (math.nan, 1.0), (1.0, math.inf)):
        own.note_noise(Gear.FP8, *nothing)
    assert own.gamma(Gear.FP8) == 2.0
    assert own.gamma(Gear.BF16) == 1.0
    quiet = box()
    quiet.note_noise(Gear.FP8, 0.5, 1.0)
    assert quiet.gamma(Gear.FP8) == 1.0


def test_a_later_measurement_of_noise_counts_twice_as_much():
    own = box()
    own.note_noise(Gear.FP8, 4.0, 2.0)
    own.note_noise(Gear.FP8, 6.0, 2.0)
    assert own.noise_ratio(Gear.FP8) == pytest.approx(math.sqrt((2.0 + 6.0) / (1.0 + 2.0)))


def test_rows_that_tell_next_to_nothing_count_for_next_to_nothing():
    own = box(noise_budget=0.05)
    own.note_noise(Gear.FP8, 1.0, 1.0)
    own.note_noise(Gear.FP8, 1.6e-6, 1e-9)  # 40 times the noise, of a gradient that is next to none
    assert own.gamma(Gear.FP8) == pytest.approx(1.0, abs=1e-5)
    assert own.low_share.share == 1.0


def test_three_overflows_in_a_row_retire_a_gear_for_good():
    own = box()
    assert not own.overflowed(Gear.FP16)
    assert not own.overflowed(Gear.FP16)
    own.went_well(Gear.FP16)
    assert not own.overflowed(Gear.FP16)
    assert not own.overflowed(Gear.FP16)
    assert own.overflowed(Gear.FP16)
    assert own.barred(Gear.FP16) is Barred.RETIRED
    assert own.gears == (Gear.BF16, Gear.FP8)
    assert own.n_overflows(Gear.FP16) == 5
    assert own.shift(Gear.FP16, 5) is Gear.BF16
    assert Gear.FP16 not in own.measured_gears()


def test_a_gear_too_far_from_the_rollout_is_barred_until_it_is_near_again():
    own = box(mismatch_limit=1.05)
    own.shift(Gear.FP8, 10)
    own.note_mismatch(Gear.FP8, 1.06)
    assert own.barred(Gear.FP8) is Barred.MISMATCH
    assert own.shift(None, 9) is Gear.BF16
    own.note_mismatch(Gear.FP8, None)  # nothing new is known
    assert own.barred(Gear.FP8) is Barred.MISMATCH
    own.note_mismatch(Gear.FP8, 1.01)
    assert own.shift(Gear.FP8, 8) is Gear.FP8
    own.note_mismatch(Gear.FP8, math.nan)
    assert own.barred(Gear.FP8) is Barred.MISMATCH


def test_the_control_path_is_told_what_may_be_chosen():
    own = box(low_share=0.5)
    own.overflowed(Gear.FP16), own.overflowed(Gear.FP16), own.overflowed(Gear.FP16)
    stage = own.stage(20, Gear.BF16)
    assert (stage.gear, stage.gears) == (Gear.BF16, (Gear.BF16, Gear.FP8))
    assert stage.simulated == (Gear.FP8,)
    assert stage.low_steps_left == pytest.approx(10.0)
    assert box().stage(20, None).low_steps_left is None
    assert not stage.is_redone
    assert own.stage(20, Gear.BF16, is_redone=True).is_redone


def test_a_simulated_gear_has_a_name_of_its_own():
    assert [box().label(gear) for gear in ALL] == ["BF16", "FP8 simulated", "FP16"]


def test_a_resumed_run_goes_on_with_all_that_was_known():
    first = box(low_share=0.5, noise_budget=0.2)
    for gear in (Gear.FP8, Gear.BF16, Gear.FP16):
        first.count(gear, 100)
    first.shift(Gear.FP8, 10)
    first.note_noise(Gear.FP8, 1.3, 1.0)
    first.note_mismatch(Gear.FP16, math.inf)
    first.overflowed(Gear.FP8)
    second = box(low_share=0.5, noise_budget=0.2)
    second.recall(json.loads(json.dumps(first.memory())))
    assert second.memory() == first.memory()
    assert second.stage(7, None) == first.stage(7, None)
    assert second.gear is Gear.FP8
    assert second.barred(Gear.FP16) is Barred.MISMATCH


def test_a_gear_that_a_resumed_run_has_no_more_still_counts():
    first = box(low_share=0.5)
    first.count(Gear.FP8, 100)
    first.count(Gear.FP16, 100)
    second = box(gears=(Gear.BF16, Gear.FP8), low_share=0.5)
    second.recall(json.loads(json.dumps(first.memory())))
    assert second.low_steps_left(10) == first.low_steps_left(10) == pytest.approx(5.0)


def test_a_step_of_no_tokens_is_no_measure_of_a_step():
    own = box(low_share=0.5)
    own.count(Gear.BF16, 0)
    assert own.low_steps_left(10) == pytest.approx(5.0)


@pytest.mark.parametrize(
    "memory",
    [{}, {"gears": 3}, {"gears": {"FP8": {"mismatch": "x"}}, "tokens": math.nan, "gear": "FP9"}],
)
def test_a_broken_memory_is_none(memory):
    own = box()
    own.recall(memory)
    assert own.memory() == box().memory()


def test_a_noise_budget_without_fp8_limits_nothing_and_is_refused():
    with pytest.raises(ValueError, match="noise_budget"):
        GearsConfig(allowed=(Gear.BF16, Gear.FP16), noise_budget=0.1)
