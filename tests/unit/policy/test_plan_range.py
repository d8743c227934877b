"""What the intervals of a GPU's figures leave open in a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecorl.devices import load_profile
from ecorl.operate.plan.job import PlannedJob
from ecorl.policy import job_plan

JOB = PlannedJob(
    gpu="l4", n_gpus=1, n_cards=1, policy_model="0.5b", inference_model="0.5b", rows=64, length=256
)


@pytest.fixture(scope="module")
def scenario():
    (made,) = JOB.scenarios(3).values()
    return made


def test_the_iteration_as_planned_lies_between_the_ends(scenario):
    ends = job_plan.plan_range(scenario, n_seeds=1)
    bare = job_plan.planned(scenario, None, n_seeds=1)[0]
    assert bare.policy == ends.cheap.policy == ends.dear.policy == job_plan.NO_CARDS
    assert ends.cheap.time_s < bare.time_s < ends.dear.time_s
    assert ends.cheap.energy_j < bare.energy_j < ends.dear.energy_j


def test_offloading_may_hang_on_where_in_the_intervals_the_figures_lie(scenario):
    gpu = load_profile("l4")
    slow = replace(gpu.figure("mfu_prefill"), value=0.5, low=1e-4, high=0.5)
    hazy = replace(gpu, figures={**gpu.figures, "mfu_prefill": slow})
    ends = job_plan.plan_range(replace(scenario, gpu=hazy), n_seeds=1)
    assert ends.pays == (False, True)
    assert ends.dear_gain > 0.1


@pytest.mark.parametrize("card", ["l4", "host_cpu", "a100_sxm"])
def test_any_device_may_be_the_second_one(card):
    (made,) = replace(JOB, card=card, gpu="h100_sxm").scenarios(3).values()
    assert made.setting.card.name == card
    bare, idle, *_ = job_plan.planned(made, None, n_seeds=1)
    assert idle.energy_j > bare.energy_j
    ends = job_plan.plan_range(made, n_seeds=1)
    assert ends.cheap_gain <= ends.dear_gain + 1e-9


def test_a_second_device_s_own_intervals_count(scenario):
    gpu = load_profile("l4")
    figures = {key: replace(f, low=None, high=None) for key, f in gpu.figures.items()}
    sure = replace(gpu, figures=figures)
    assert job_plan.plan_range(replace(scenario, gpu=sure)) is None
    ends = job_plan.plan_range(replace(scenario, gpu=sure, card=gpu), n_seeds=1)
    assert ends.cheap.time_s == ends.dear.time_s  # without cards
    assert ends.cheap_gain <= ends.dear_gain


def test_without_intervals_there_is_nothing_to_tell(scenario):
    bare = load_profile("l4")
    figures = {key: replace(f, low=None, high=None) for key, f in bare.figures.items()}
    assert job_plan.plan_range(replace(scenario, gpu=replace(bare, figures=figures))) is None
    (paper,) = replace(JOB, calibration="paper", policy_model="70b").scenarios(2).values()
    assert job_plan.plan_range(paper) is None
