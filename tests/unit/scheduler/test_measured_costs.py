"""Look-ahead by what the run has measured: the level of a nominal cost, and the words for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.config import DeviceConfig, LookaheadPolicyConfig, PlacementConfig
from ecorl.devices import StageCost, load_profile
from ecorl.records import Action, Algorithm, ModelShape, PathCost, Provenance, Stage, StageWork
from ecorl.scheduler import CostModel, Lookahead, build_policy
from ecorl.scheduler.measured.readings import at_length, at_measured_level, level, seen_on
from ecorl.scheduler.words import adjusted

GPU, U55C, L4 = load_profile("h100_sxm"), load_profile("u55c"), load_profile("l4")
SMALL = ModelShape(2, 64, 128, 4, 2, 16, 256, 120_000, 100_000)
COSTS = CostModel(GPU, U55C)
WORK = StageWork(Stage.REWARD, 64, 64 * 400, 64 * 200, 900, SMALL)


def seen(costs, state, ratio, j_ratio, *, on_card=False, length=100.0, n_recent=6, **changes):
    """As measured when a stage took so many times what its profile says, at some length."""
    work = replace(state.work, stage=changes.pop("stage", state.stage))
    work = at_length(work, length)
    cost = (costs.fpga_cost if on_card else costs.gpu_cost)(work)
    energy_j = None if j_ratio is None else j_ratio * cost.energy_j / work.n_output_tokens
    return PathCost(
        work.stage, 9.0, None if energy_j is None else 9.0, n_recent + 1, Provenance.MEASURED,
        recent_s_per_token=ratio * cost.time_s / work.n_output_tokens, recent_j_per_token=energy_j,
        n_recent=n_recent, age=1, mean_length=length, on_card=on_card, **changes,
    )  # fmt: skip


def estimates(costs, state, *paths):
    """Costs by action, nominal and as measured."""
    known = replace(state, paths=paths)
    nominal, measured = costs.estimate(known), costs.estimate(known, measured=True)
    return {c.action: c for c in nominal.costs}, {c.action: c for c in measured.costs}


def test_both_paths_are_brought_to_their_level(make_state):
    state = make_state()
    before, after = estimates(
        COSTS, state, seen(COSTS, state, 3.0, 2.0), seen(COSTS, state, 1.5, 4.0, on_card=True)
    )
    assert after[Action.GPU].time_s == pytest.approx(level(3.0, 6) * before[Action.GPU].time_s)
    assert after[Action.GPU].energy_j == pytest.approx(level(2.0, 6) * before[Action.GPU].energy_j)
    card_s = level(1.5, 6) * before[Action.FPGA].time_s
    assert after[Action.FPGA].time_s == pytest.approx(card_s)
    idle_w = GPU.value("idle_w")
    own_j = before[Action.FPGA].energy_j - idle_w * before[Action.FPGA].time_s
    assert after[Action.FPGA].energy_j == pytest.approx(level(4.0, 6) * own_j + idle_w * card_s)


def test_without_a_measured_energy_the_power_stays(make_state):
    state = make_state()
    before, after = estimates(COSTS, state, seen(COSTS, state, 3.0, None))
    for figure in ("time_s", "energy_j"):
        assert getattr(after[Action.GPU], figure) == pytest.approx(
            level(3.0, 6) * getattr(before[Action.GPU], figure)
        )
    assert after[Action.FPGA] == before[Action.FPGA]


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(1, 2000))
def test_a_measurement_as_nominal_changes_nothing_at_any_length(ratio, j_ratio, length):
    work, nominal = WORK, COSTS.gpu_cost(WORK)
    measured_at = at_length(work, length)
    then = COSTS.gpu_cost(measured_at)
    n = measured_at.n_output_tokens
    as_nominal = PathCost(
        work.stage, 1.0, 1.0, 9, Provenance.MEASURED, recent_s_per_token=then.time_s / n,
        recent_j_per_token=then.energy_j / n, n_recent=8, mean_length=length,
    )  # fmt: skip
    same = at_measured_level(nominal, work, as_nominal, COSTS.gpu_cost)
    assert same.time_s == pytest.approx(nominal.time_s)
    assert same.energy_j == pytest.approx(nominal.energy_j)
    other = replace(
        as_nominal,
        recent_s_per_token=ratio * then.time_s / n,
        recent_j_per_token=j_ratio * then.energy_j / n,
    )
    scaled = at_measured_level(nominal, work, other, COSTS.gpu_cost)
    assert scaled.time_s == pytest.approx(level(ratio, 8) * nominal.time_s)
    assert scaled.power_w * scaled.time_s == pytest.approx(scaled.energy_j)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_recent": 0, "recent_s_per_token": None, "recent_j_per_token": None},
        {"role_name": "math"},
        {"stage": Stage.REFERENCE},
        {"recent_s_per_token": 0.0},
    ],
)
def test_what_says_nothing_of_the_stage_leaves_it_nominal(make_state, changes):
    state = make_state()
    other = replace(seen(COSTS, state, 3.0, 3.0), **changes)
    before, after = estimates(COSTS, state, other)
    assert after == before
    before, after = estimates(COSTS, make_state(rows=0), other)
    assert after == before


def test_an_unknown_cost_stays_unknown(make_state):
    state = make_state()
    path = seen(COSTS, state, 3.0, 3.0)
    unknown = StageCost("l4", 1, note="why")
    assert at_measured_level(unknown, state.work, path, COSTS.gpu_cost) is unknown
    nominal = COSTS.gpu_cost(state.work)
    assert at_measured_level(nominal, state.work, path, lambda work: unknown) is nominal
    without = replace(state, work=replace(state.work, model=None), paths=(path,))
    assert "shape" in COSTS.estimate(without, measured=True).unknown


def test_the_overlapping_work_is_at_its_level_too(make_state):
    costs = CostModel(GPU, U55C, None, {Stage.CRITIC: SMALL})
    state = replace(make_state(), algorithm=Algorithm.PPO)
    critic = replace(state, work=replace(state.work, model=SMALL))
    known = replace(state, paths=(seen(costs, critic, 3.0, 3.0, stage=Stage.CRITIC),))
    assert costs.overlap_s(known) == costs.overlap_s(state) > 0
    assert costs.overlap_s(known, measured=True) == pytest.approx(
        level(3.0, 6) * costs.overlap_s(state)
    )


def test_rows_keep_their_number_and_prompts_at_another_length(make_state):
    work = make_state(rows=10, length=512).work  # 256 tokens of prompt and of completion
    longer = at_length(work, 512.0)
    assert (longer.n_sequences, longer.n_output_tokens) == (10, 5120)
    assert longer.n_tokens - longer.n_output_tokens == work.n_tokens - work.n_output_tokens
    assert longer.max_length == 768
    assert at_length(work, None) is work
    empty = make_state(rows=0).work
    assert at_length(empty, 5.0) is empty


def test_a_path_is_found_by_role_and_side(make_state):
    state = make_state()
    own, card = seen(COSTS, state, 1, 1), seen(COSTS, state, 1, 1, on_card=True)
    known = replace(state, paths=(own, card))
    assert seen_on(known, "reward", on_card=False) is own
    assert seen_on(known, "reward", on_card=True) is card
    assert seen_on(known, "reward:math", on_card=True) is None


# ---------------------------------------------------------------- the policy


def lookahead(**settings):
    config = PlacementConfig(
        policy=LookaheadPolicyConfig(energy_weight=0.0, time_weight=1.0, **settings)
    )
    return build_policy(config, GPU, L4, DeviceConfig(n_gpus=1))


def test_a_profile_that_promises_too_little_is_overruled_by_what_was_measured(make_state):
    costs = CostModel(GPU, L4)
    state = make_state()
    # An L4 that is a hundred times as fast as said, and time alone is known of it.
    quick = seen(costs, state, 0.01, None, on_card=True, n_recent=30)
    own = seen(costs, state, 2.0, 2.0, n_recent=30)
    assert lookahead().propose(state).action is Action.GPU
    known = replace(state, paths=(own, quick))
    proposal = lookahead().propose(known)
    assert proposal.action is Action.CONCURRENT
    assert "GPU measured, card measured time" in proposal.reason
    assert {c.provenance for c in proposal.costs} == {Provenance.MODELLED}
    # Without a deciding measurement, and by config, it is the profile that counts.
    by_profile = lookahead(measured=False).propose(known)
    assert by_profile == lookahead().propose(state)
    assert by_profile.action is Action.GPU
    assert "measured" not in by_profile.reason


def test_measurements_count_unless_the_config_says_otherwise():
    assert LookaheadPolicyConfig().measured
    assert lookahead().measured
    assert Lookahead(COSTS).measured
    assert not lookahead(measured=False).measured


def test_words_for_what_was_adjusted(snapshot):
    own = PathCost(Stage.REWARD, 1.0, 1.0, 3, Provenance.MODELLED, recent_j_per_token=1.0)
    card = PathCost(Stage.REWARD, 1.0, None, 3, Provenance.MEASURED, on_card=True)
    snapshot(adjusted((own, card), "host"))
    assert adjusted((), "host") == ""
