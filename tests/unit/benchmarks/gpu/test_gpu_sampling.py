"""What the sampler costs and how true it is: the part of ``make gpu``, rehearsed."""

from __future__ import annotations

import time

import pytest
from fake_nvml import true_energy_j

from benchmarks.gpu import sampling
from benchmarks.gpu.run.setting import Setting
from benchmarks.gpu.sampling import FIGURES, Arm
from benchmarks.gpu.sensing.meter import CpuShare

PERIOD_S = 0.004


@pytest.fixture
def measured(one_gpu, tmp_path):
    one_gpu.set("devices 1", f"period_ms {1e3 * PERIOD_S}", "refresh_ms 0")
    setting = Setting(tmp_path, time.monotonic() + 600.0, is_rehearsal=True)
    config, figures = sampling.measure(setting)
    return config, {f.id: f for f in figures}


def test_both_arms_have_their_cost_and_their_truth(measured):
    config, figures = measured
    for arm in Arm:
        facts = config[arm.value]
        for energy_j, (start_s, end_s) in zip(facts["energy_j"], facts["spans_s"], strict=True):
            truth_j = true_energy_j(end_s, 0, PERIOD_S) - true_energy_j(start_s, 0, PERIOD_S)
            assert energy_j == pytest.approx(truth_j, rel=0.005)
        assert figures[f"gpu_sampling.{arm.value}.counter_error"].value == pytest.approx(
            0, abs=0.02
        )
        for load in ("idle", "loaded"):
            assert figures[f"gpu_sampling.{arm.value}.cpu_share_{load}"].value >= 0


def test_a_process_that_is_not_there_has_no_share():
    assert CpuShare(None).share() is None
    figure = FIGURES.figure("gpu_sampling.{arm}.cpu_share_idle", None, arm="now")
    assert figure.value is None
    assert "not there" in figure.note
