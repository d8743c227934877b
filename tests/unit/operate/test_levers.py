"""The levers on a step: physics, limits, and what they do together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.devices import load_profile
from ecorl.devices.clocks import DECODE_SAVED, LEAST_CLOCK, ClockCurve, clock_curves
from ecorl.errors import ConfigError
from ecorl.operate.levers.choice import (
    ALL_LEVERS,
    Lever,
    LeverLimits,
    adoption_order,
    hidden_s,
    interactions,
    least_energy,
    missing_levers,
    subsets,
)
from ecorl.operate.levers.clocks import CLOCKS, ENDS, clocked, geared, natural_clocks, training_gain
from ecorl.operate.levers.placement import accelerators, placed, placed_steps
from ecorl.operate.levers.step import PricedStep, StageDraw, priced_step
from ecorl.operate.levers.study import lever_study
from ecorl.records import Action, Algorithm, Stage
from ecorl.scheduler.tables import Setting
from ecorl.sim.scenario import Scenario

LENGTH = 1024.0


def setting(
    size="8b", other="8b", *, algorithm="grpo", n_gpus=8, gpu="h100_sxm", card="l4", n=8
) -> Setting:
    sizes = {
        Stage.GENERATION: size,
        Stage.REFERENCE: size,
        Stage.REWARD: other,
        Stage.CRITIC: other,
    }
    return Scenario(
        "t", algorithm=Algorithm(algorithm), sizes=sizes, n_gpus=n_gpus, gpu=gpu, card=card,
        n_cards=n,
    ).setting  # fmt: skip


@pytest.fixture(scope="module")
def step() -> PricedStep:
    return priced_step(setting(), LENGTH)


def draw(**figures) -> StageDraw:
    usual = {
        "stage": Stage.GENERATION, "fixed_s": 1.0, "memory_s": 5.0, "compute_s": 2.0,
        "busy_w": 350.0, "idle_w": 70.0, "memory_j": 900.0, "compute_j": 400.0, "n_params": 8e9,
        "unlimited_w": 520.0,
    }  # fmt: skip
    return StageDraw(**usual | figures)


# ---------------------------------------------------------------- the step


def test_a_step_has_the_cost_model_s_time_and_energy(step):
    of = {d.stage: d for d in step.draws}
    assert set(of) == {Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN}
    assert step.time_s == pytest.approx(sum(d.time_s for d in of.values()))
    for one in of.values():
        assert min(one.fixed_s, one.memory_s, one.compute_s, one.memory_j, one.compute_j) >= 0.0
        assert one.power_w <= step.limit_w * (1 + 1e-9)
        assert one.busy_w >= 0.0
    assert math.fsum(step.shares().values()) == pytest.approx(1.0)


def test_measured_shares_replace_those_of_the_model(step):
    told = step.with_shares({Stage.GENERATION: 0.5}, {Stage.GENERATION: 0.4})
    assert told.shares()[Stage.GENERATION] == pytest.approx(0.5)
    assert told.energy_j == pytest.approx(step.energy_j)
    assert told.time_s == pytest.approx(step.time_s)
    before, after = step.shares(), told.shares()
    # The others keep their sizes among themselves.
    assert after[Stage.REWARD] / after[Stage.ACTOR_TRAIN] == pytest.approx(
        before[Stage.REWARD] / before[Stage.ACTOR_TRAIN]
    )


def test_shares_that_cannot_be_are_refused(step, snapshot):
    lines = []
    for shares in (
        {Stage.CRITIC: 0.1}, {Stage.REWARD: 1.2}, {Stage.REWARD: 0.7, Stage.GENERATION: 0.6},
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            step.with_shares(shares, {})
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm", "h200", "a100_sxm", "l4"])
def test_a_curve_saves_in_decoding_what_was_published_and_never_more(gpu):
    from ecorl.devices.gpu_pass import decoding_pass, gpu_limits, pass_cost, pass_parameters
    from ecorl.devices.llama import model_shape

    profile = load_profile(gpu)
    curves = clock_curves(profile)
    parameters = pass_parameters(profile)
    work = decoding_pass(model_shape("8b"), 8, 512.0)
    cost = pass_cost(work, gpu_limits(profile), parameters)
    as_draw = draw(
        fixed_s=cost.fixed_s, memory_s=cost.memory_s, compute_s=cost.compute_s,
        busy_w=parameters.busy_w, idle_w=profile.value("idle_w"),
        memory_j=work.memory_bytes * parameters.j_per_byte,
        compute_j=work.ops * parameters.j_per_op,
    )  # fmt: skip
    for curve, published in zip((curves.usual, curves.high), DECODE_SAVED, strict=True):
        curve = replace(curve, knee=0.0)  # as in those small batches
        saved = 1 - clocked(as_draw, LEAST_CLOCK, curve).energy_j / as_draw.energy_j
        assert saved <= published + 1e-9
        if curve.static_share > 0.0:  # else even the whole power would not be enough
            assert saved == pytest.approx(published)


@given(
    lock=st.sampled_from(CLOCKS), natural=st.floats(0.5, 1.0), static_share=st.floats(0, 1),
    knee=st.floats(0, 1), busy_w=st.floats(71, 700), compute_s=st.floats(0, 100),
)  # fmt: skip
def test_a_lock_below_the_natural_clock_is_slower_and_one_above_it_is_nothing(
    lock, natural, static_share, knee, busy_w, compute_s
):
    before = draw(busy_w=busy_w, compute_s=compute_s)
    after = clocked(before, lock, ClockCurve(static_share, knee), natural)
    if lock >= natural:
        assert after == before
    assert after.fixed_s == before.fixed_s
    assert after.memory_s >= before.memory_s
    assert after.compute_s == pytest.approx(compute_s * max(1.0, natural / lock))
    assert before.idle_w - 1e-9 <= after.busy_w <= before.busy_w
    most = 1.0 - static_share * float(before.idle_w / before.power_w)
    assert 1.0 - float(after.energy_j) / float(before.energy_j) < most + 1e-9 <= 1.0 + 1e-9


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_low_end_saves_nothing_where_nothing_is_published(algorithm):
    """It has once priced locks of scoring and training at 1,881 MHz, where they run below that."""
    found = lever_study(setting(algorithm=algorithm), LENGTH).alone[Lever.CLOCKS]
    assert found.low == 0.0 < found.value < found.high < 1.0


def test_stages_that_draw_little_save_at_the_low_end_too(step):
    """Decoding at the power that was published, slowed by a lock as much as arithmetic is."""
    little = step.with_figures({}, {d.stage: d.energy_j * 0.4 for d in step.draws})
    chosen = least_energy(little, [Lever.CLOCKS], limits=LeverLimits(slowdown=0.2), end="low")
    usual = least_energy(little, [Lever.CLOCKS], limits=LeverLimits(slowdown=0.2))
    assert 0.0 < chosen.saved_share < usual.saved_share


def test_decoding_runs_at_the_greatest_clock_and_what_meets_the_limit_below_it(step):
    natural = natural_clocks(step)
    assert natural[Stage.GENERATION] == 1.0
    assert natural[Stage.REWARD] == natural[Stage.REFERENCE] == 1665 / 1980
    assert natural[Stage.ACTOR_TRAIN] == 1717.5 / 1980
    # The same at less than half the power: nothing limits it.
    little = step.with_figures({}, {d.stage: d.energy_j * 0.45 for d in step.draws})
    assert set(natural_clocks(little).values()) == {1.0}
    # Decoding of a batch so large that the board's limit is met.
    many = replace(setting("70b", n_gpus=32), n_rows=16384, prompt_length=16.0)
    assert natural_clocks(priced_step(many, 64.0))[Stage.GENERATION] < 1.0


@pytest.mark.parametrize("unknown", ["_clock_hz", "clock_max_hz"])
def test_natural_clocks_from_the_limit_are_near_the_measured_ones(step, unknown):
    kept = {k: v for k, v in step.gpu.figures.items() if not k.endswith(unknown)}
    modelled = natural_clocks(replace(step, gpu=replace(step.gpu, figures=kept)))
    for stage, measured in natural_clocks(step).items():
        assert modelled[stage] == pytest.approx(measured, rel=0.1)
        assert (modelled[stage] < 1.0) == (measured < 1.0)


def test_a_lock_above_what_a_stage_runs_at_is_never_chosen(step):
    chosen = least_energy(step, [Lever.CLOCKS])
    natural = natural_clocks(step)
    for lock, stage in zip(
        chosen.clocks, (Stage.GENERATION, Stage.REWARD, Stage.ACTOR_TRAIN), strict=True
    ):
        assert lock == 1.0 or lock < natural[stage]


# ---------------------------------------------------------------- gears, overlap


def test_gains_grow_with_the_model_and_keep_their_order():
    sizes = (5e8, 1e9, 8e9, 7e10, 4.05e11, 1e12)
    for end in ENDS:
        gains = [training_gain(n, end) for n in sizes]
        assert gains == sorted(gains)
    for n in sizes:
        low, usual, high = (training_gain(n, end) for end in ENDS)
        assert 1.0 < low <= usual <= high <= 1.5


def test_a_gear_touches_training_alone_unless_the_rollout_is_asked_for():
    generation, training = draw(), draw(stage=Stage.ACTOR_TRAIN)
    assert geared(generation) == generation
    assert geared(generation, rollout=True).energy_j < generation.energy_j
    assert geared(training).energy_j == pytest.approx(training.energy_j / training_gain(8e9))
    assert geared(draw(stage=Stage.REWARD), rollout=True) == draw(stage=Stage.REWARD)


@given(
    memory_s=st.floats(0.1, 50), compute_s=st.floats(0.1, 50), side_s=st.floats(0.1, 50),
    limit_w=st.floats(351, 2000), off_policy=st.booleans(),
)  # fmt: skip
def test_overlap_leaves_every_resource_its_time(memory_s, compute_s, side_s, limit_w, off_policy):
    generation = draw(memory_s=memory_s, compute_s=compute_s)
    scoring = draw(stage=Stage.REWARD, fixed_s=0.0, memory_s=0.0, compute_s=side_s)
    hidden = [
        float(hidden_s([generation, scoring], limit_w, end, off_policy=off_policy)) for end in ENDS
    ]
    assert hidden[0] == 0.0
    assert hidden == sorted(hidden)
    left_s = generation.time_s + scoring.time_s - hidden[-1]
    assert left_s >= generation.time_s - 1e-9
    assert left_s >= generation.compute_s + scoring.compute_s * 0.75 - 1e-9


def test_training_hides_only_one_step_off_policy(step):
    inside = least_energy(step, [Lever.OVERLAP])
    behind = least_energy(step, [Lever.OVERLAP], limits=LeverLimits(off_policy=True))
    assert 0.0 < inside.overlapped_s < behind.overlapped_s


# ---------------------------------------------------------------- placement


def test_nothing_placed_is_the_step_and_the_devices_standing_by(step):
    others = accelerators(setting(), LENGTH)
    found = placed(step.draws, others, {})
    assert float(found.time_s) == pytest.approx(step.time_s)
    idle_j = others.table.card_idle_w * step.time_s
    assert float(found.energy_j) == pytest.approx(step.energy_j + idle_j)


def test_every_placement_is_priced_once_and_blocking_is_never_faster(step):
    others = accelerators(setting(), LENGTH)
    found = {tuple(sorted(p.actions.items())): p for p in placed_steps(step.draws, others)}
    assert len(found) == 8
    for stage in (Stage.REWARD, Stage.REFERENCE):
        blocking = found[((stage, Action.FPGA),)]
        beside = found[((stage, Action.CONCURRENT),)]
        assert float(blocking.time_s) >= float(beside.time_s) - 1e-9


def test_a_second_device_that_costs_is_not_chosen_and_its_loss_is_told():
    study = lever_study(setting(), LENGTH)
    (verdict,) = study.devices
    assert verdict.saved_share < 0.0
    assert study.alone[Lever.PLACEMENT].value == 0.0
    assert study.all.accelerator is None


def test_a_free_and_fast_device_is_chosen():
    fast = load_profile("h100_sxm")
    figures = dict(fast.figures)
    for key in ("idle_w", "busy_w"):
        figures[key] = replace(figures[key], value=1.0, low=None, high=None)
    for key in ("active_w", "tdp_w"):
        figures[key] = replace(figures[key], value=5.0, low=None, high=None)
    second = replace(fast, figures=figures, name="made_up")
    found = lever_study(replace(setting(), card=second, n_cards=8), LENGTH)
    assert found.alone[Lever.PLACEMENT].value > 0.01
    assert found.all.accelerator == "made_up"
    assert found.all.actions


# ---------------------------------------------------------------- together


def test_the_limit_on_the_slowdown_holds_and_more_of_it_never_saves_less(step):
    saved = []
    for slowdown in (0.0, 0.02, 0.1):
        chosen = least_energy(step, ALL_LEVERS, limits=LeverLimits(slowdown=slowdown))
        assert chosen.slowdown <= slowdown + 1e-9
        saved.append(chosen.saved_share)
    assert saved == sorted(saved)


def test_more_levers_never_save_less_and_the_order_adds_up(step):
    levers = [lever for lever in ALL_LEVERS if lever is not Lever.PLACEMENT]
    found = {frozenset(s): least_energy(step, s) for s in [(), *subsets(levers)]}
    for small in found:
        for large in found:
            if small <= large:
                assert found[small].saved_share <= found[large].saved_share + 1e-9
    order = adoption_order(found)
    assert {lever for lever, _ in order} == set(levers)
    assert sum(share for _, share in order) == pytest.approx(found[frozenset(levers)].saved_share)
    one, other, beyond = interactions(found)[0]
    pair = found[frozenset({one, other})].saved_share
    alone = found[frozenset({one})].saved_share + found[frozenset({other})].saved_share
    assert beyond == pytest.approx(pair - alone)


def test_a_setting_is_what_its_parts_make(step):
    """The chosen clocks, set one by one on the draws, give the energy that was told."""
    chosen = least_energy(step, [Lever.CLOCKS, Lever.GEARS])
    curve, natural = clock_curves(step.gpu).usual, natural_clocks(step)
    groups = {Stage.GENERATION: 0, Stage.REWARD: 1, Stage.REFERENCE: 1, Stage.ACTOR_TRAIN: 2}
    assert chosen.fp8
    draws = [
        clocked(geared(d), chosen.clocks[groups[d.stage]], curve, natural[d.stage])
        for d in step.draws
    ]
    assert chosen.energy_j == pytest.approx(sum(float(d.energy_j) for d in draws))
    assert chosen.time_s == pytest.approx(sum(float(d.time_s) for d in draws))
    assert np.isclose(chosen.saved_share, 1 - chosen.energy_j / step.energy_j)


def test_what_cannot_be_priced_is_missing_with_its_reason():
    on_a100 = priced_step(setting(gpu="a100_sxm"), LENGTH)
    missing = missing_levers(on_a100, [])
    assert "no FP8" in missing[Lever.GEARS]
    assert "second device" in missing[Lever.PLACEMENT]
    on_host = priced_step(setting("15m", "15m", gpu="host_cpu", n_gpus=1, card="u55c", n=1), 64.0)
    assert "not published" in missing_levers(on_host, [])[Lever.CLOCKS]
    study = lever_study(setting("70b", n_gpus=32, card="u55c", n=4), LENGTH)
    assert "INT8 weights" in study.missing[Lever.PLACEMENT]
    assert Lever.PLACEMENT not in study.alone


def test_intervals_hold_their_value():
    study = lever_study(setting(algorithm="ppo"), LENGTH)
    for share in (*study.alone.values(), study.together, *study.beyond.values()):
        assert share.low <= share.value <= share.high
        assert share.low >= 0.0
        assert share.high < 1.0
