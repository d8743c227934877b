"""Measured stages beside the cost model: which, by what work, and inside which interval."""

from __future__ import annotations

import json

import pytest

from benchmarks.costmodel import dense, measured_stages
from ecorl.bench.machine import repository
from ecorl.devices import load_profile, stage_cost
from ecorl.devices.llama import model_shape
from ecorl.errors import ConfigError
from ecorl.records import Stage, StageWork

H100 = load_profile("h100_sxm")
STORED = repository() / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3" / "gpu_stages.json"


def result(tmp_path, **values):
    shape = model_shape("1b")
    model = {key: getattr(shape, key) for key in shape.__slots__}
    figures = [{"id": id.replace("__", "."), "value": value} for id, value in values.items()]
    path = tmp_path / "gpu_stages.json"
    path.write_text(json.dumps({"config": {"model": model}, "figures": figures}))
    return path


def test_each_stage_is_modelled_by_its_own_work(tmp_path):
    path = result(
        tmp_path,
        gpu_stages__reward__b8x512__j_per_token=0.003,
        gpu_stages__reward__b8x512__power_w=690.0,
        gpu_stages__generation__b4__j_per_token=0.2,
        gpu_stages__actor_train__b2x64__j_per_token=None,
    )
    reward, generation = measured_stages(path, H100)
    scalar = model_shape("1b", scalar_head=True)
    work = StageWork(Stage.REWARD, 8, 4096, 2048, 512, scalar)
    assert reward.modelled_j == pytest.approx(stage_cost(work, H100).energy_j / 4096)
    assert reward.low_j < reward.modelled_j < reward.high_j
    assert reward.error == pytest.approx(reward.modelled_j / 0.003 - 1)
    assert generation.work.n_output_tokens == 4 * 256
    assert dense([reward, generation]) == [reward]


@pytest.mark.parametrize(("value", "inside"), [(1e-4, False), (0.003, True), (0.1, False)])
def test_a_measurement_may_lie_outside_of_the_interval(tmp_path, value, inside):
    (stage,) = measured_stages(
        result(tmp_path, gpu_stages__reward__b8x512__j_per_token=value), H100
    )
    assert stage.inside is inside


def test_what_was_measured_of_scoring_and_training_is_what_the_assumption_says():
    stages = dense(measured_stages(STORED, H100))
    assert len(stages) == 10
    assert all(abs(stage.error) < 0.25 for stage in stages)


def test_no_result_is_told(tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    for name in ("none.json", "bad.json"):
        with pytest.raises(ConfigError, match="gpu_stages"):
            measured_stages(tmp_path / name, H100)
