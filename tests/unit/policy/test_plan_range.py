"""What the intervals of a GPU's figures leave open in a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecorl.devices import load_profile
from ecorl.policy import job_plan

JOB = job_plan.PlannedJob(
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


def test_without_intervals_there_is_nothing_to_tell(scenario):
    bare = load_profile("l4")
    figures = {key: replace(f, low=None, high=None) for key, f in bare.figures.items()}
    assert job_plan.plan_range(replace(scenario, gpu=replace(bare, figures=figures))) is None
    (paper,) = replace(JOB, calibration="paper", policy_model="70b").scenarios(2).values()
    assert job_plan.plan_range(paper) is None
