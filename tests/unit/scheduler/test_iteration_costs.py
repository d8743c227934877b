"""Costs of an iteration: each figure stands where its name says, and is computed once a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecorl.records import Stage
from ecorl.scheduler.iteration_costs import Circumstances, TableConstants, iteration_costs
from ecorl.scheduler.tables import COLUMNS
from ecorl.stages import iteration
from ecorl.stages.figures import Carry
from tests.unit.scheduler.test_learned import scheduler, seen, state


def test_every_figure_of_the_costs_stands_under_its_name():
    cost = dict(zip(COLUMNS, (float(n) for n in range(3, 200, 7)), strict=False))
    constants = TableConstants(0.25, 0.5, 0.125, 0.3, 1001.0, 1100.0, 1200.0, 1300.0, 0.25)
    around = Circumstances(
        longest_over_mean=3.0, tail=(1.0, 0.4), slow=1.5, arriving_s=2001.0, late_arriving_s=2002.0,
        cards_up=0.75, lost=0.1, off_policy=1.0, n_cards=4.0, ambient_c=21.0, full_rise_c=55.0,
        tau_s=90.0, limit_c=77.0, throttle=0.6, sleeps=1.0, asleep_share=0.5, wake_s=31.0,
        stale=1.0, yielding=0.2, timeout_s=37.0,
    )  # fmt: skip
    work = iteration_costs(row=tuple(cost.values()), constants=constants, around=around)
    end_s, actor_s, actor_j = (
        cost[name] for name in ("generation_long_s", "actor_train_s", "actor_train_j")
    )
    inference = ("reward", "reference", "critic")
    expected = {
        "generation_s": end_s,
        "generation_j": cost["generation_long_j"],
        "handover_s": (end_s / 2, end_s),
        "tail": (1.0, 0.4),
        "gpu_s": tuple(cost[f"{name}_s"] for name in inference),
        "gpu_j": tuple(cost[f"{name}_j"] for name in inference),
        "card_s": tuple(cost[f"{name}_card_s"] for name in inference),
        "resync_s": 1300.0,
        "forward_s": 0.25 * actor_s,
        "backward_s": 0.75 * actor_s,
        "actor_j": actor_j,
        "early_s": 0.125 * actor_s,
        "early_j": 0.125 * actor_j,
        "critic_s": cost["critic_train_s"],
        "critic_j": cost["critic_train_j"],
        "swap_s": 0.125 * cost["critic_train_s"],
        "swap_j": 0.125 * cost["critic_train_j"],
        "contention": 0.3,
        "gpu_idle_w": 1001.0,
        "card_active_w": 1100.0,
        "card_idle_w": 1200.0,
        "slow": 1.5,
        "arriving_s": 2001.0,
        "late_arriving_s": 2002.0,
        "cards_up": 0.75,
        "lost": 0.1,
        "off_policy": 1.0,
        "ambient_c": 21.0,
        "rise_c_per_w": 55.0 / 275.0,
        "tau_s": 90.0,
        "limit_c": 77.0,
        "throttle": 0.6,
        "n_cards": 4.0,
        "card_share": 0.25,
        "sleeps": 1.0,
        "asleep_w": 600.0,
        "wake_s": 31.0,
        "stale": 1.0,
        "yielding": 0.2,
        "timeout_s": 37.0,
    }
    assert work._fields == tuple(expected)
    for name, figure in expected.items():
        assert getattr(work, name) == pytest.approx(figure), name


@pytest.mark.parametrize("name", Carry._fields)
def test_the_places_by_which_an_iteration_is_carried_on_are_those_of_its_figures(name):
    assert getattr(iteration, f"_{name.upper()}") == Carry._fields.index(name)


def test_the_costs_of_a_batch_are_computed_once_and_anew_when_anything_changes():
    at_reward = state(Stage.REWARD, paths=seen())
    tables = scheduler()._tables
    table = tables.of(at_reward)
    first = table.work(at_reward)
    assert table.work(replace(at_reward, iteration=7)) is first
    down = table.work(replace(at_reward, fpga_available=False))
    assert (first.cards_up, down.cards_up) == (1.0, 0.0)
    assert table.work(at_reward) == first
    slower = table.work(replace(at_reward, paths=seen(time_s=4e-3)))
    assert slower.gpu_s[0] == pytest.approx(2.0 * first.gpu_s[0])
    longer = replace(at_reward.work, n_tokens=30_000, n_output_tokens=23_600)
    changed = table.work(replace(at_reward, work=longer, paths=seen(time_s=4e-3)))
    assert changed.gpu_s[0] != slower.gpu_s[0]
