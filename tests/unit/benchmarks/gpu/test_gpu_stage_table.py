"""The table of the stages: its joules are the fake's, and its file is a calibration."""

from __future__ import annotations

import json
import time

import pytest

from benchmarks.gpu import stage_table
from benchmarks.gpu.loads import stages
from benchmarks.gpu.run.setting import Setting
from ecorl.bench.machine import repository
from ecorl.policy.calibration.stages import load_calibration, measured_work
from ecorl.records import ModelShape
from ecorl.scheduler.tables import COLUMN
from tests.fakes.nvml.counted import Counted

POWER_W = 300.0
KEPT = repository() / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3"


def setting(folder, seconds):
    return Setting(folder, time.monotonic() + seconds, is_rehearsal=True)


@pytest.fixture
def gpu(one_gpu):
    # A steady power: windows of a rehearsal are hardly longer than what a busy machine is late by.
    one_gpu.set("devices 1", *(f"{which}_mw {POWER_W * 1e3:g}" for which in ("base", "peak")))
    return one_gpu


def values(figures):
    return {figure.id: figure.value for figure in figures}


def test_every_window_has_the_joules_of_the_gpu(gpu, tmp_path, monkeypatch):
    counted = Counted(monkeypatch)
    config, figures = stage_table.measure(setting(tmp_path, 600.0))
    found = values(figures)
    names = {name for batch, _ in stage_table.REHEARSED for name in batch.names}
    assert set(config["workloads"]) == names
    for facts in (*config["workloads"].values(), *config["idle"].values()):
        for (start_s, end_s), energy_j in zip(facts["spans_s"], facts["energy_j"], strict=True):
            late_j = counted.late_j((start_s, end_s), lambda t_s: POWER_W * t_s)
            assert energy_j == pytest.approx(POWER_W * (end_s - start_s), rel=0.005, abs=late_j)
    assert all(found[f"gpu_stages.{name}.j_per_token"] > 0 for name in names)
    assert all(found[f"gpu_stages.idle_{when}_w"] > 0 for when in ("before", "after"))
    assert config["step_error"] < 0.05
    kept = json.loads((KEPT / "gpu_stages.json").read_text())
    added_by_the_command = {"quick", "load_1min_before", "load_1min_after", "benchmark_s"}
    assert set(kept["config"]) - added_by_the_command <= set(config)


def test_without_time_all_stages_are_missing_with_the_reason(gpu, tmp_path):
    _, figures = stage_table.measure(setting(tmp_path, 1.0))
    found = {f.id: f for f in figures if not f.id.startswith("gpu_stages.idle")}
    assert len(found) == 5 * 5
    assert all(f.value is None and "no time" in f.note for f in found.values())


@pytest.mark.deep
def test_memory_that_does_not_suffice_loses_one_batch_alone(gpu, tmp_path, monkeypatch):
    def full(*args):
        raise stage_table.torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(stages, "TrainingStep", full)
    batches = stages.Batch("training", 2, 32), stages.Batch("scoring", 2, 32)
    monkeypatch.setattr(stage_table, "REHEARSED", [(batch, 0.5) for batch in batches])
    found = {f.id: f for f in stage_table.measure(setting(tmp_path, 60.0))[1]}
    assert "memory" in found["gpu_stages.actor_train.b2x32.power_w"].note
    assert found["gpu_stages.reward.b2x32.power_w"].value > 0


def test_its_batches_are_some_of_the_full_pass():
    assert {batch for batch, _ in stage_table.BATCHES} <= set(stages.FULL)
    model = ModelShape(*(int(v) for v in (16, 2048, 8192, 32, 8, 64, 128256, 1e9, 1e9)))
    first = [name for batch, _ in stage_table.BATCHES[:3] for name in batch.names]
    works = (measured_work(f"gpu_stages.{name}.j_per_token", model) for name in first)
    assert len({work.stage for work in works if work is not None}) == 4


def test_a_result_is_a_calibration():
    made, saved = load_calibration(KEPT / "gpu_stages.json"), load_calibration(
        KEPT / "calibration.toml"
    )  # fmt: skip
    assert made.n_rows == saved.n_rows == 128
    assert made.table.values == pytest.approx(saved.table.values, rel=1e-6)


def test_a_shorter_file_of_the_same_gpu_is_a_calibration_too(tmp_path):
    """What the part leaves: the batches of the full pass that it has, and no others."""
    result = json.loads((KEPT / "gpu_stages.json").read_text())
    names = {name for batch, _ in stage_table.BATCHES for name in batch.names}
    result["figures"] = [
        f for f in result["figures"] if f["id"].rpartition(".")[0].partition(".")[2] in names
    ]
    facts = result["config"]["workloads"]
    result["config"]["workloads"] = {name: facts[name] for name in names}
    path = tmp_path / "gpu_stages.json"
    path.write_text(json.dumps(result))
    made, whole = load_calibration(path), load_calibration(KEPT / "calibration.toml")
    for name in ("generation_short_s", "generation_short_j", "actor_train_s", "actor_train_j"):
        column = COLUMN[name]
        assert made.table.values[:, column] == pytest.approx(whole.table.values[:, column])
    # The full pass has a batch that is nearer to the usual one.
    for name in ("reward_j", "reference_j"):
        column = COLUMN[name]
        assert made.table.values[:, column] == pytest.approx(whole.table.values[:, column], rel=0.1)
