from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.config import DeviceConfig
from ecorl.devices import load_profile
from ecorl.devices.llama import MODEL_SIZES, model_shape
from ecorl.errors import ConfigError
from ecorl.records import Algorithm, Stage
from ecorl.scheduler import CostModel, RoleDevices
from ecorl.scheduler.paper_table import GENERATION_W, INFERENCE_W, TRAINING_W, paper_table
from ecorl.scheduler.tables import (
    COLUMN,
    COLUMNS,
    LONG,
    SHORT,
    TP_EFFICIENCY,
    CostTable,
    Setting,
    length_grid,
    roofline_table,
    stage_work,
)

H100, U55C, V80 = (load_profile(name) for name in ("h100_sxm", "u55c", "v80"))
LENGTHS = length_grid(64.0, 2048.0)


def setting(sizes="1b", **changes):
    """Every stage with a model of one size."""
    models = {s: model_shape(sizes, scalar_head=s is Stage.REWARD) for s in Stage}
    made = Setting(
        algorithm=Algorithm.PPO, models=models, n_rows=64, prompt_length=200.0, gpu=H100,
        n_gpus=8, card=U55C, n_cards=1,
    )  # fmt: skip
    return replace(made, **changes)


def column(table, name):
    return table.values[:, COLUMN[name]]


def test_a_role_with_devices_of_its_own_is_priced_on_them():
    l4 = load_profile("l4")
    served = setting(by_role={Stage.REWARD: RoleDevices(l4)})
    one, other, alone = (
        roofline_table(s, LENGTHS) for s in (setting(), served, setting(gpu=l4, n_gpus=1))
    )
    for name in ("reward_s", "reward_j"):
        assert column(other, name) == pytest.approx(column(alone, name))
    for name in ("reference_s", "reference_j", "actor_train_s"):
        assert column(other, name) == pytest.approx(column(one, name))


# ------------------------------------------------------------ the table itself


def some_table():
    rng = np.random.default_rng(0)
    values = rng.random((len(LENGTHS), len(COLUMNS)))
    return CostTable(LENGTHS, values, gpu_idle_w=1.0, card_active_w=1.0, card_idle_w=1.0)


def test_the_grid_is_even_in_the_logarithm():
    assert LENGTHS[[0, -1]] == pytest.approx([64.0, 2048.0])
    assert np.diff(np.log(LENGTHS)) == pytest.approx(np.log(32) / (len(LENGTHS) - 1))


@pytest.mark.parametrize("ends", [(0.0, 10.0), (-1.0, 10.0), (10.0, 10.0), (20.0, 10.0)])
def test_a_grid_that_does_not_rise_is_refused(ends):
    with pytest.raises(ConfigError, match="lengths"):
        length_grid(*ends)


def test_grid_points_are_hit_and_lengths_outside_are_held():
    table = some_table()
    assert table.at(LENGTHS) == pytest.approx(table.values, rel=1e-9)
    for i, length in enumerate(LENGTHS):
        assert table.at(float(length)) == pytest.approx(table.values[i], rel=1e-9)
    assert np.array_equal(table.at(1.0), table.values[0])
    assert np.array_equal(table.at(1e9), table.values[-1])


def test_between_grid_points_it_is_linear_in_the_length():
    table = some_table()
    for share in (0.25, 0.5, 0.9):
        length = LENGTHS[3] * (1 - share) + LENGTHS[4] * share
        expected = (1 - share) * table.values[3] + share * table.values[4]
        assert table.at(length) == pytest.approx(expected, rel=1e-9)
    assert table.at(np.full((2, 3), 500.0)).shape == (2, 3, len(COLUMNS))
    assert table.at(500.0).shape == (len(COLUMNS),)


@pytest.mark.parametrize("make", [roofline_table, paper_table])
def test_between_grid_points_costs_are_close_to_what_they_would_be(make):
    lengths = length_grid(8.0, 4096.0)
    between = np.sqrt(lengths[:-1] * lengths[1:])
    table, exact = make(setting(), lengths), make(setting(), between)
    for name in COLUMNS:
        worked = table.at(between)[:, COLUMN[name]]
        # A cost that grows with the square lies up to 8 % below its chord on this grid.
        assert worked == pytest.approx(column(exact, name), rel=0.09), name


# ------------------------------------------------------------ roofline


def test_the_gpu_columns_are_those_of_the_cost_model():
    s = setting()
    table, costs = roofline_table(s, LENGTHS), CostModel(H100, U55C, DeviceConfig(n_gpus=8))
    for stage in s.stages:
        for i, length in enumerate(LENGTHS):
            work = stage_work(s, stage, float(length), s.n_rows)
            names = {f"{stage}": work}
            if stage is Stage.GENERATION:
                names = {
                    f"generation_{name}": replace(work, max_length=round(ratio * length + 200.0))
                    for name, ratio in (("short", SHORT), ("long", LONG))
                }
            for name, priced in names.items():
                cost = costs.gpu_cost(priced)
                assert column(table, f"{name}_s")[i] == pytest.approx(cost.time_s, rel=1e-12)
                assert column(table, f"{name}_j")[i] == pytest.approx(cost.energy_j, rel=1e-12)


def test_the_card_columns_are_those_of_the_cost_model():
    s = setting()
    table, costs = roofline_table(s, LENGTHS), CostModel(H100, U55C)
    for stage in (Stage.REWARD, Stage.REFERENCE):
        for i, length in enumerate(LENGTHS):
            cost = costs.fpga_cost(stage_work(s, stage, float(length), s.n_rows))
            assert column(table, f"{stage}_card_s")[i] == pytest.approx(cost.time_s, rel=1e-12)


def test_several_cards_share_the_rows():
    one, four = (roofline_table(setting(n_cards=n), LENGTHS) for n in (1, 4))
    ratio = column(one, "reward_card_s") / column(four, "reward_card_s")
    assert ((ratio > 3.0) & (ratio <= 4.0 + 1e-9)).all()
    assert four.card_active_w == 4 * U55C.value("active_w")
    assert four.card_idle_w == 4 * U55C.value("idle_w")
    assert four.gpu_idle_w == 8 * H100.value("idle_w")


def test_cards_that_share_a_model_pay_for_synchronising():
    # Two models of 13 B fit two cards, not one.
    models = {s: model_shape("8b") for s in Stage}
    large = dict(models) | {s: model_shape("13b") for s in (Stage.REWARD, Stage.REFERENCE)}
    together = CostModel(H100, U55C)
    s = setting(models=large, n_cards=2, n_gpus=32)
    table = roofline_table(s, LENGTHS)
    half = stage_work(s, Stage.REWARD, float(LENGTHS[0]), 32)
    alone_s = together.fpga_cost(half).time_s
    assert column(table, "reward_card_s")[0] == pytest.approx(alone_s / TP_EFFICIENCY, rel=1e-3)


def test_cards_that_cannot_hold_the_models_are_not_usable_and_it_says_why():
    table = roofline_table(setting("13b", n_gpus=32), LENGTHS)
    assert table.card_usable == (False, False, False)
    assert len(table.notes) == 1
    assert "INT8" in table.notes[0]
    assert "16 GB" in table.notes[0]
    for name in ("reward_card_s", "reference_card_s", "critic_card_s"):
        assert (column(table, name) == 0.0).all()
    assert table.resync_s == 0.0
    two = roofline_table(setting("13b", n_gpus=32, n_cards=2), LENGTHS)
    assert two.card_usable == (True, True, False)
    assert all("critic" in note for note in two.notes)


def test_a_card_whose_profile_lacks_figures_is_not_usable_and_it_says_which():
    table = roofline_table(setting(card=V80), LENGTHS)
    assert table.card_usable == (False, False, False)
    assert all("v80" in note and "active_w" in note for note in table.notes)
    assert table.notes


def test_without_a_card_nothing_is_usable(snapshot):
    table = roofline_table(setting(n_cards=0), LENGTHS)
    assert table.card_usable == (False, False, False)
    snapshot("\n".join(table.notes))
    assert table.card_idle_w == 0.0


def test_a_policy_that_does_not_fit_the_gpus_is_refused():
    with pytest.raises(ConfigError, match="h100_sxm"):
        roofline_table(setting("70b", n_gpus=1), LENGTHS)


def test_stages_that_an_algorithm_does_not_have_cost_nothing():
    for algorithm, absent in (
        (Algorithm.GRPO, ("critic_s", "critic_card_s", "critic_train_s")),
        (Algorithm.DAPO, ("reference_s", "reference_card_s", "critic_s")),
    ):
        s = setting(algorithm=algorithm)
        for make in (roofline_table, paper_table):
            table = make(s, LENGTHS)
            for name in absent:
                assert (column(table, name) == 0.0).all()
            assert (column(table, "reward_s") > 0.0).all()


@pytest.mark.parametrize("make", [roofline_table, paper_table])
def test_costs_grow_with_length_and_rows(make):
    few, many = make(setting(), LENGTHS), make(setting(n_rows=512), LENGTHS)
    for name in COLUMNS:
        assert (np.diff(column(few, name)) > 0).all(), name
        assert (column(many, name) >= column(few, name)).all(), name
    short, long = column(few, "generation_short_s"), column(few, "generation_long_s")
    assert (long > short).all()
    rows = np.full(len(LENGTHS), 512.0)
    assert np.array_equal(make(setting(), LENGTHS, rows).values, many.values)


@pytest.mark.parametrize("make", [roofline_table, paper_table])
def test_process_rewards_pass_over_growing_rows(make):
    once, steps = make(setting(), LENGTHS), make(setting(reward_calls=9), LENGTHS)
    for name in ("reward_s", "reward_j", "reward_card_s"):
        assert column(steps, name) == pytest.approx(5 * column(once, name), rel=1e-12)
    assert np.array_equal(column(steps, "reference_s"), column(once, "reference_s"))


def test_the_critic_is_sent_to_the_cards_each_time():
    s = setting()
    table = roofline_table(s, LENGTHS)
    params = s.models[Stage.CRITIC].n_params
    assert table.resync_s == pytest.approx(params / U55C.value("link_bytes_per_s"))
    assert roofline_table(setting(n_cards=0), LENGTHS).resync_s == 0.0


def test_named_sizes_are_of_their_size():
    for name in MODEL_SIZES:
        unit = {"k": 1e3, "m": 1e6, "b": 1e9}[name[-1]]
        shape = model_shape(name)
        assert shape.n_params == pytest.approx(float(name[:-1]) * unit, rel=0.25), name
        assert shape.n_params_active <= shape.n_params
    with pytest.raises(ConfigError, match="2b"):
        model_shape("2b")


# ------------------------------------------------------------ as the paper prints it


def printed(n_gpus=32, n_cards=4, lengths=(256.0, 512.0, 1024.0, 2048.0)):
    """The paper's cluster and models: 70 B on 32 H100, 8 B, four cards, 256 rows."""

    policy = (Stage.GENERATION, Stage.ACTOR_TRAIN)
    models = {
        s: model_shape("70b")
        if s in policy
        else model_shape("8b", scalar_head=s is not Stage.REFERENCE)
        for s in Stage
    }
    s = setting(models=models, n_rows=256, n_gpus=n_gpus, n_cards=n_cards)
    return paper_table(s, np.array(lengths))


INFERENCE = ("reward", "reference", "critic")
TRAINING = ("actor_train", "critic_train")


def parts_s(table, row):
    """Generation with a longest row of twice the mean, inference and training, s."""
    generation_s = (column(table, "generation_short_s") + column(table, "generation_long_s")) / 2
    inference_s = sum(column(table, f"{name}_s") for name in INFERENCE)
    training_s = sum(column(table, f"{name}_s") for name in TRAINING)
    return np.array([generation_s, inference_s, training_s])[:, row]


def test_the_iteration_of_21_s_and_its_shares_are_the_printed_ones():
    parts = parts_s(printed(), 2)
    assert parts.sum() == pytest.approx(21.0, rel=1e-12)
    assert parts / parts.sum() == pytest.approx([0.43, 0.21, 0.36], rel=1e-12)


def test_inference_draws_60_to_75_percent_less_than_training():
    table = printed()
    power_w = {
        name: column(table, f"{name}_j") / column(table, f"{name}_s") / 32
        for name in (*INFERENCE, *TRAINING)
    }
    for name in INFERENCE:
        assert power_w[name] == pytest.approx(INFERENCE_W)
        assert 0.60 <= 1 - power_w[name][0] / TRAINING_W <= 0.75
    assert power_w["actor_train"] == pytest.approx(TRAINING_W)
    short = column(table, "generation_short_j") / column(table, "generation_short_s") / 32
    assert short == pytest.approx(GENERATION_W)


def test_the_card_needs_the_printed_share_of_the_gpus_joules():
    table = printed()
    card_j = table.card_active_w * column(table, "reward_card_s")
    assert card_j[2] / column(table, "reward_j")[2] == pytest.approx(4.8 / 13.7, rel=1e-12)
    # Half the cards take twice the time and as many joules.
    half = printed(n_cards=2)
    assert half.card_active_w * column(half, "reward_card_s") == pytest.approx(card_j)


def test_the_baselines_strong_scaling_from_16_to_1024_gpus_is_31_percent():
    times = {n: parts_s(printed(n_gpus=n), 2).sum() for n in (16, 32, 128, 1024)}
    efficiency = {n: times[16] * 16 / (times[n] * n) for n in times}
    assert efficiency[1024] == pytest.approx(0.31, abs=0.005)
    assert 1.0 > efficiency[32] > efficiency[128] > efficiency[1024]


def both_on_cards_s(table):
    return column(table, "reward_card_s") + column(table, "reference_card_s")


def test_the_cards_time_grows_with_the_square_of_the_length():
    both_s = both_on_cards_s(printed())
    assert both_s[1:] / both_s[:-1] == pytest.approx(4.0)


def test_lemma_1_cards_are_in_time_for_short_rows_and_late_for_long_ones():
    table = printed(lengths=(1024.0, 1536.0, 2560.0, 4096.0))
    in_time = both_on_cards_s(table) <= column(table, "actor_train_s") * table.forward_share
    assert in_time.tolist() == [True, True, False, False]


def test_lemma_1_cards_and_the_forward_pass_take_as_long_at_2048_tokens():
    table = printed()
    forward_s = column(table, "actor_train_s")[3] * table.forward_share
    assert both_on_cards_s(table)[3] == pytest.approx(forward_s, rel=0.01)


def test_stages_that_an_algorithm_does_not_have_cannot_leave_under_any_calibration():
    s = setting(algorithm=Algorithm.DAPO)
    for make in (roofline_table, paper_table):
        assert make(s, LENGTHS).card_usable == (True, False, False)


def test_a_critic_that_does_not_fit_beside_the_others_cannot_leave():
    table = roofline_table(setting("8b", n_gpus=32), LENGTHS)
    assert table.card_usable == (True, True, False)


# ------------------------------------------------------------ cards of a run


@pytest.mark.parametrize("make", [roofline_table, paper_table])
def test_where_one_card_answers_a_batch_more_cards_leave_its_price(make):
    one = make(setting(), LENGTHS)
    for n_cards in (1, 2, 5):
        several = make(setting(n_cards=n_cards, divides_rows=False), LENGTHS)
        assert np.array_equal(several.values, one.values)
        assert several.card_share == 1.0 / n_cards
        # Energy of a batch: power of all cards, times the share of them that it keeps busy.
        assert several.card_active_w * several.card_share == pytest.approx(one.card_active_w)
        divided = make(setting(n_cards=n_cards), LENGTHS)
        assert divided.card_share == 1.0
    assert np.all(column(divided, "reward_card_s") < column(one, "reward_card_s"))


def test_cards_that_answer_alone_need_not_agree_about_a_model():
    small = replace(U55C, figures=dict(U55C.figures))
    memory = small.figures["memory_bytes"]
    one_model = model_shape("1b").n_params
    small.figures["memory_bytes"] = replace(memory, value=1.5 * one_model)
    two = roofline_table(setting(card=small, n_cards=2, divides_rows=False), LENGTHS)
    assert two.card_usable[:2] == (True, True)
    roomy = roofline_table(setting(n_cards=2, divides_rows=False), LENGTHS)
    assert np.array_equal(column(two, "reward_card_s"), column(roomy, "reward_card_s"))
    divided = roofline_table(setting(card=small, n_cards=2), LENGTHS)
    assert np.all(
        column(divided, "reward_card_s")
        > column(roofline_table(setting(n_cards=2), LENGTHS), "reward_card_s")
    )
    alone = roofline_table(setting(card=small, divides_rows=False), LENGTHS)
    assert alone.card_usable == (False, False, False)
