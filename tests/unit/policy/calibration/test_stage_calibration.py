"""Calibrations from measured stages: what was measured comes out again, the rest is modelled."""

from __future__ import annotations

import json

import pytest

from ecorl.bench.machine import repository
from ecorl.errors import ConfigError
from ecorl.operate.plan.own_stages import stages_of_calibration
from ecorl.policy.calibration.calibration import Calibration, holds_for
from ecorl.policy.calibration.stages import measured_work, stages_calibration
from ecorl.records import ModelShape, Provenance, Stage
from ecorl.scheduler.tables import COLUMN

FOLDER = repository() / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3"
RESULT = FOLDER / "gpu_stages.json"


@pytest.fixture(scope="module")
def fitted():
    return stages_calibration(RESULT, 128)


def figure(id):
    found = json.loads(RESULT.read_text())["figures"]
    return next(f["value"] for f in found if f["id"] == f"gpu_stages.{id}")


def test_generation_at_the_measured_batch_costs_what_was_measured(fitted):
    row = fitted.table.at(256.0)
    tokens = 128 * 256
    # All rows of the measurement are as long as the mean.
    assert row[COLUMN["generation_short_s"]] == pytest.approx(
        tokens / figure("generation.b128.tokens_per_s"), rel=0.02
    )
    assert row[COLUMN["generation_short_j"]] == pytest.approx(
        tokens * figure("generation.b128.j_per_token"), rel=0.02
    )


def test_what_is_modelled_says_so(fitted, snapshot):
    assert fitted.provenance is Provenance.MODELLED
    assert fitted.table.gpu_idle_w == pytest.approx(figure("idle_before_w"))
    snapshot("\n".join([*fitted.notes, *holds_for(fitted)]))


def test_the_kept_file_is_what_the_result_gives(fitted, tmp_path):
    fitted.save(tmp_path / "c.toml")
    kept = Calibration.load(FOLDER / "calibration.toml")
    again = Calibration.load(tmp_path / "c.toml")
    assert kept.table.values == pytest.approx(again.table.values, rel=1e-6)
    assert kept.run_id == again.run_id
    told = stages_of_calibration(kept, 256.0)
    assert set(told.time_s) == {
        Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN,
    }  # fmt: skip


def test_figures_of_other_kinds_are_no_work():
    model = ModelShape(*(int(v) for v in (16, 2048, 8192, 32, 8, 64, 128256, 1e9, 1e9)))
    assert measured_work("gpu_stages.idle_before_w", model) is None
    assert measured_work("gpu_stages.decode.b8.j_per_token", model) is None


@pytest.mark.parametrize("text", ["", "{}", '{"benchmark": "nvml"}', "[1]"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ConfigError, match="gpu_stages"):
        stages_calibration(tmp_path / "r.json", 128)


def test_an_unknown_gpu_and_a_stage_that_is_missing(tmp_path):
    result = json.loads(RESULT.read_text())
    other = tmp_path / "r.json"
    other.write_text(json.dumps({**result, "config": {**result["config"], "gpu": "Voodoo 2"}}))
    with pytest.raises(ConfigError, match="Voodoo 2"):
        stages_calibration(other, 128)
    less = [f for f in result["figures"] if "actor_train" not in f["id"]]
    other.write_text(json.dumps({**result, "figures": less}))
    with pytest.raises(ConfigError, match="all stages"):
        stages_calibration(other, 128)
