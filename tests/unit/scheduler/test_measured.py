"""What a run has measured on both paths, in the arithmetic and in a run's cost table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.config import DeviceConfig, LearnedPolicyConfig, PlacementConfig
from ecorl.devices import load_profile
from ecorl.devices.llama import model_shape
from ecorl.records import Algorithm, PathCost, Provenance, SchedulerState, Stage, StageWork
from ecorl.scheduler import build_policy
from ecorl.scheduler.measured.readings import PRIOR_COUNT, UNREAD, Readings, level
from ecorl.scheduler.run_costs import RunTable
from ecorl.scheduler.tables import COLUMN
from ecorl.statistics import RECENT_ALPHA, recent_weight

STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)
MODELS = {s: model_shape("1b", scalar_head=s is Stage.REWARD) for s in STAGES}
ROWS, LENGTH = 64, 300
ON_CARD = {Stage.REWARD: 0, Stage.REFERENCE: 1}


# ---------------------------------------------------------------- arithmetic


def test_one_reading_weighs_two_thirds_and_none_nothing():
    assert level(4.0, 0) == 1.0
    assert level(4.0, 1) == pytest.approx(1.0 + 3.0 / (1.0 + PRIOR_COUNT))
    assert level(4.0, 1) == pytest.approx(3.0)
    assert level(4.0, 10_000) == pytest.approx(4.0, rel=1e-3)
    assert level(1.0, 7) == 1.0


@given(st.floats(1e-3, 1e3), st.integers(0, 100))
def test_a_level_lies_between_the_nominal_cost_and_the_measured_one(ratio, n_recent):
    found = level(ratio, n_recent)
    assert min(1.0, ratio) * (1 - 1e-12) <= found <= max(1.0, ratio) * (1 + 1e-12)
    assert abs(level(ratio, n_recent + 1) - ratio) <= abs(found - ratio) + 1e-9


def test_a_recent_weight_is_that_of_a_plain_mean_until_it_would_forget_too_slowly():
    assert [recent_weight(n) for n in (1.0, 2.0, 3.0, 4.0, 50.0)] == [
        1.0, 0.5, 1.0 / 3.0, RECENT_ALPHA, RECENT_ALPHA,
    ]  # fmt: skip


def test_floats_and_arrays_have_the_same_figures():
    n = np.array([1.0, 2.0, 9.0])
    assert recent_weight(n, np.maximum).tolist() == [recent_weight(float(x)) for x in n]
    assert level(2.0 * n, n).tolist() == [level(2.0 * float(x), float(x)) for x in n]


def test_nothing_read_changes_nothing():
    assert Readings(1.0, 1.0, 0.0, 0.0, 0.0) == UNREAD
    assert level(UNREAD.ratio, UNREAD.count) == 1.0


# ---------------------------------------------------------------- the table of a run


def state(paths=(), stage=Stage.REWARD, role_name="", length=LENGTH):
    n_output = ROWS * length
    work = StageWork(
        stage, ROWS, n_output + 100 * ROWS, n_output, 2 * length, MODELS[stage], role_name
    )
    return SchedulerState(
        3, Algorithm.GRPO, stage, (0.5,), (0.5,), 0, True, work, batch=2, paths=paths
    )


@pytest.fixture(scope="module")
def table() -> RunTable:
    config = PlacementConfig(policy=LearnedPolicyConfig(), l_max=8192)
    policy = build_policy(
        config, load_profile("h100_sxm"), load_profile("u55c"), DeviceConfig(n_gpus=1), MODELS
    )
    return policy._tables.of(state())


def nominal(table, column, length):
    """A computed figure for each output token."""
    return float(table.table.at(length)[COLUMN[column]]) / (ROWS * length)


def path(stage, time_s, energy_j, n_recent=6, **changes):
    fields = {
        "recent_s_per_token": time_s, "recent_j_per_token": energy_j, "n_recent": n_recent,
        "spread": 0.1, "age": 2, "mean_length": 400.0,
    }  # fmt: skip
    return PathCost(
        stage, 9.0, 9.0, n_recent + 1, Provenance.MEASURED, **(fields | changes)
    )  # fmt: skip


def on_gpu(table, stage, ratio, j_ratio, length=400.0, **changes):
    """As measured when a stage took so many times what the table says."""
    return path(
        stage, ratio * nominal(table, f"{stage}_s", length),
        j_ratio * nominal(table, f"{stage}_j", length), mean_length=length, **changes,
    )  # fmt: skip


def on_card(table, stage, ratio, j_ratio, length=400.0, **changes):
    time_s = nominal(table, f"{stage}_card_s", length)
    card_w = table.table.card_active_w * table.table.card_share
    return path(
        stage, ratio * time_s, j_ratio * time_s * card_w, mean_length=length, on_card=True,
        **changes,
    )  # fmt: skip


def test_both_paths_are_scaled_each_by_its_own_readings(table):
    before = table.work(state())
    paths = (on_gpu(table, Stage.REWARD, 3.0, 2.0), on_card(table, Stage.REWARD, 1.5, 1.5))
    after = table.work(state(paths))
    assert after.gpu_s[0] == pytest.approx(before.gpu_s[0] * level(3.0, 6))
    assert after.gpu_j[0] == pytest.approx(before.gpu_j[0] * level(2.0, 6))
    assert after.card_s[0] == pytest.approx(before.card_s[0] * level(1.5, 6))
    assert after.card_active_w == pytest.approx(before.card_active_w)
    assert (after.gpu_s[1], after.card_s[1]) == (before.gpu_s[1], before.card_s[1])
    assert table.levels.measured == table.levels.measured_on_card == {Stage.REWARD}


def test_a_measurement_on_the_card_leaves_the_gpu_path_alone(table):
    before = table.work(state())
    after = table.work(state((on_card(table, Stage.REWARD, 4.0, 4.0),)))
    assert (after.gpu_s, after.gpu_j) == (before.gpu_s, before.gpu_j)
    assert table.levels.measured == frozenset()
    assert table.levels.measured_on_card == {Stage.REWARD}


def test_the_card_s_power_is_the_mean_of_energies_over_times(table):
    before = table.work(state())
    paths = (on_card(table, Stage.REWARD, 2.0, 3.0), on_card(table, Stage.REFERENCE, 1.0, 0.5))
    after = table.work(state(paths))
    shares = (level(3.0, 6) / level(2.0, 6), level(0.5, 6) / level(1.0, 6))
    assert after.card_active_w == pytest.approx(before.card_active_w * sum(shares) / 2)
    assert table.work(state()).card_active_w == before.card_active_w


def test_the_first_reading_alone_changes_nothing(table):
    before = table.work(state())
    first = {"n_recent": 0, "recent_s_per_token": None, "recent_j_per_token": None}
    for one in (path(Stage.REWARD, 0, 0, **first), path(Stage.REWARD, 0, 0, **first, on_card=True)):
        assert table.work(state((one,))) == before
        assert table.levels.measured == table.levels.measured_on_card == frozenset()
        assert table.levels.readings(Stage.REWARD) == (UNREAD, UNREAD)


def test_a_record_without_recent_figures_counts_by_its_plain_mean(table):
    before, middle = table.work(state()), table.table.lengths[len(table.table.lengths) // 2]
    time_s = 3.0 * nominal(table, "reward_s", middle)
    old = PathCost(Stage.REWARD, time_s, 1.0, 5, Provenance.MEASURED)
    assert table.work(state((old,))).gpu_s[0] == pytest.approx(3.0 * before.gpu_s[0])
    assert table.work(state((replace(old, count=4),))) == before
    assert table.levels.readings(Stage.REWARD) == (UNREAD, UNREAD)


def test_longer_rows_do_not_pass_for_slower_ones(table):
    before = table.work(state())
    lengths = (table.table.lengths[0], 400.0, table.table.lengths[-1])
    for length in lengths:
        paths = (on_gpu(table, Stage.REWARD, 1.0, 1.0, length),)
        assert table.work(state(paths)).gpu_s[0] == pytest.approx(before.gpu_s[0])
    # Beyond the table's lengths it is the nearest one.
    far = on_gpu(table, Stage.REWARD, 2.0, 2.0, lengths[-1])
    at_end = table.work(state((far,))).gpu_s[0]
    assert table.work(state((replace(far, mean_length=9e9),))).gpu_s[0] == at_end
    assert table.work(state((replace(far, mean_length=None),))).gpu_s[0] != at_end


def test_readings_say_how_far_from_nominal_how_sure_and_how_old(table):
    paths = (
        on_gpu(table, Stage.REWARD, 3.0, 2.0, spread=0.2, age=1, n_recent=9),
        on_card(table, Stage.REFERENCE, 1.5, 1.2, spread=0.0, age=7, n_recent=1),
        path(Stage.GENERATION, 1.0, 1.0),
    )
    table.work(state(paths))
    own, card = table.levels.readings(Stage.REWARD)
    assert own == pytest.approx((3.0, 2.0, 0.2, 9.0, 1.0))
    assert card == UNREAD
    own, card = table.levels.readings(Stage.REFERENCE)
    assert own == UNREAD
    assert card == pytest.approx((1.5, 1.2, 0.0, 1.0, 7.0))
    assert table.levels.readings(Stage.CRITIC) == (UNREAD, UNREAD)
    # Generation is told against a longest row midway between the two that are priced.
    at = [nominal(table, f"generation_{name}_s", 400.0) for name in ("short", "long")]
    assert table.levels.readings(Stage.GENERATION)[0].ratio == pytest.approx(2.0 / sum(at))
    assert all(isinstance(x, float) for x in table.levels.readings(Stage.GENERATION)[0])


def test_generation_costs_what_it_has_cost_whatever_its_longest_row(table):
    paths = (path(Stage.GENERATION, 1e-3, 0.5, n_recent=10**9, mean_length=float(LENGTH)),)
    work = table.work(state(paths))
    assert work.generation_s == pytest.approx(1e-3 * ROWS * LENGTH)
    assert work.generation_j == pytest.approx(0.5 * ROWS * LENGTH)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_generation_is_priced_by_the_policy_s_part_of_the_rows(table, share):
    """A quarter of each row is the policy's: the rest, an environment's, is read and not made."""
    n_made = share * LENGTH
    paths = (
        path(Stage.GENERATION, 1e-3, 0.5, n_recent=10**9, mean_length=n_made),
        on_gpu(table, Stage.ACTOR_TRAIN, 1.0, 1.0, float(LENGTH)),
    )
    work = table.work(state(paths))
    assert work.generation_s == pytest.approx(1e-3 * ROWS * n_made)
    assert work.generation_j == pytest.approx(0.5 * ROWS * n_made)


@pytest.mark.parametrize("is_on_card", [False, True])
def test_models_of_a_stage_count_alone_at_hand_and_together_elsewhere(table, is_on_card):
    make = on_card if is_on_card else on_gpu
    math_runs = make(table, Stage.REWARD, 1.0, 1.0, n_recent=4, age=3, role_name="math")
    code_runs = make(table, Stage.REWARD, 3.0, 3.0, 500.0, n_recent=9, spread=0.4, role_name="code")
    paths = (math_runs, code_runs)

    def read(**asked):
        work = table.work(state(paths, **asked))
        figure = work.card_s[0] if is_on_card else work.gpu_s[0]
        return figure, table.levels.readings(Stage.REWARD)[is_on_card]

    plain = table.work(state())
    before = plain.card_s[0] if is_on_card else plain.gpu_s[0]
    figure, own = read(role_name="code")
    assert figure == pytest.approx(before * level(3.0, 9))
    assert (own.ratio, own.count) == (pytest.approx(3.0), 9.0)
    figure, own = read(role_name="math")
    assert figure == pytest.approx(before)
    assert (own.ratio, own.spread, own.age) == (pytest.approx(1.0), 0.1, 3.0)
    figure, own = read(stage=Stage.REFERENCE)
    assert figure == pytest.approx(before * level(4.0, 4))
    assert (own.ratio, own.count, own.age) == (pytest.approx(4.0), 4.0, 3.0)
    assert 0.1 < own.spread < 0.4
    assert read(role_name="poems") == (before, UNREAD)
    # A sum that lacks a model would be too low.
    paths = (math_runs, replace(code_runs, n_recent=0, recent_s_per_token=None, count=1))
    assert read(stage=Stage.REFERENCE) == (before, UNREAD)


def unmetered(cost):
    """The same cost of a device whose energy nobody meters."""
    return replace(cost, energy_j_per_token=None, recent_j_per_token=None)


def test_a_card_of_which_times_alone_are_known_is_scaled_at_the_power_it_has(table):
    before = table.work(state())
    after = table.work(state((unmetered(on_card(table, Stage.REWARD, 3.0, 1.0)),)))
    assert after.card_s[0] == pytest.approx(before.card_s[0] * level(3.0, 6))
    assert after.card_active_w == before.card_active_w
    assert (after.gpu_s, after.gpu_j) == (before.gpu_s, before.gpu_j)
    assert (table.levels.measured, table.levels.measured_on_card) == (frozenset(), {Stage.REWARD})
    assert table.levels.readings(Stage.REWARD)[1] == pytest.approx((3.0, 3.0, 0.1, 6.0, 2.0))


def test_energies_of_the_gpu_path_follow_its_times_where_they_are_not_known(table):
    before = table.work(state())
    generation = unmetered(path(Stage.GENERATION, 1e-3, 0.0, 10**9, mean_length=float(LENGTH)))
    after = table.work(state((unmetered(on_gpu(table, Stage.REWARD, 3.0, 1.0)), generation)))
    assert after.gpu_s[0] == pytest.approx(before.gpu_s[0] * level(3.0, 6))
    assert after.gpu_j[0] == pytest.approx(before.gpu_j[0] * level(3.0, 6))
    assert after.generation_s == pytest.approx(1e-3 * ROWS * LENGTH)
    power_w = before.generation_j / before.generation_s
    assert after.generation_j / after.generation_s == pytest.approx(power_w, rel=0.05)
    for stage in (Stage.REWARD, Stage.GENERATION):
        own = table.levels.readings(stage)[0]
        assert own.ratio == pytest.approx(own.j_ratio)


def test_the_card_s_power_is_told_by_metered_stages_alone(table):
    metered = on_card(table, Stage.REWARD, 2.0, 3.0)
    unknown = unmetered(on_card(table, Stage.REFERENCE, 4.0, 1.0))
    alone = table.work(state((metered,)))
    both = table.work(state((metered, unknown)))
    assert both.card_active_w == alone.card_active_w
    assert both.card_s[1] == pytest.approx(alone.card_s[1] * level(4.0, 6))


def test_a_stage_of_which_one_model_is_metered_tells_no_power(table):
    before = table.work(state(stage=Stage.REFERENCE))
    metered = on_card(table, Stage.REWARD, 1.0, 3.0, role_name="math")
    unknown = unmetered(on_card(table, Stage.REWARD, 1.0, 1.0, role_name="code"))
    after = table.work(state((metered, unknown), Stage.REFERENCE))
    assert after.card_s[0] == pytest.approx(before.card_s[0] * level(2.0, 6))
    assert after.card_active_w == before.card_active_w


def test_plain_times_without_energy_count_as_plain_means_do(table):
    before, middle = table.work(state()), table.table.lengths[len(table.table.lengths) // 2]
    time_s = 3.0 * nominal(table, "reward_s", middle)
    old = PathCost(Stage.REWARD, time_s, None, 5, Provenance.MEASURED)
    after = table.work(state((old,)))
    assert after.gpu_s[0] == pytest.approx(3.0 * before.gpu_s[0])
    assert after.gpu_j[0] == pytest.approx(3.0 * before.gpu_j[0])
    first = replace(old, count=1)
    assert table.work(state((first,))) == before


def test_what_is_no_figure_of_the_table_is_passed_over(table):
    before = table.work(state())
    paths = (
        path(Stage.GENERATION, 1.0, 1.0, on_card=True),
        path(Stage.CRITIC, 1.0, 1.0),
        path(Stage.REWARD, 0.0, 0.0),
    )
    assert table.work(state(paths)) == before
    assert table.levels.measured_on_card == frozenset()


RATIOS = st.floats(0.05, 50.0)
COUNTS = st.integers(1, 40)


@given(RATIOS, RATIOS, RATIOS, COUNTS, st.floats(50, 2000))
@settings(deadline=None)
def test_scaled_measurements_scale_the_believed_costs_by_their_level(
    table, ratio, j_ratio, c, n_recent, length
):
    length = min(max(length, table.table.lengths[0]), table.table.lengths[-1])
    before = table.work(state())
    paths = tuple(
        make(table, stage, ratio * c, j_ratio, length, n_recent=n_recent)
        for stage in ON_CARD
        for make in (on_gpu, on_card)
    )
    work = table.work(state(paths))
    for stage, place in ON_CARD.items():
        believed = level(ratio * c, n_recent)
        assert work.gpu_s[place] == pytest.approx(before.gpu_s[place] * believed)
        assert work.card_s[place] == pytest.approx(before.card_s[place] * believed)
        assert work.gpu_j[place] == pytest.approx(before.gpu_j[place] * level(j_ratio, n_recent))
        card_j = work.card_active_w * work.card_s[place]
        nominal_j = before.card_active_w * before.card_s[place]
        assert card_j == pytest.approx(nominal_j * level(j_ratio, n_recent))
        assert table.levels.readings(stage)[1].ratio == pytest.approx(ratio * c)


@given(st.lists(st.tuples(st.sampled_from(STAGES), RATIOS, COUNTS, st.booleans()), max_size=6))
@settings(deadline=None)
def test_equal_paths_give_equal_tables(table, made):
    def costs():
        return tuple(
            path(stage, ratio * 1e-4, ratio, n_recent, on_card=card)
            for stage, ratio, n_recent, card in made
        )

    first = table.work(state(costs()))
    read = [table.levels.readings(stage) for stage in Stage]
    table.work(state((path(Stage.REWARD, 1.0, 1.0),)))
    assert table.work(state(costs())) == first
    assert [table.levels.readings(stage) for stage in Stage] == read
    assert all(math.isfinite(x) for both in read for one in both for x in one)
