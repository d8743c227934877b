"""The part `facts` on a fake NVML whose answers are known."""

from __future__ import annotations

import time

import pytest

from benchmarks.gpu import facts
from benchmarks.gpu.facts import measure
from benchmarks.gpu.run.setting import Setting
from benchmarks.gpu.sensing.limiters import ask
from benchmarks.gpu.sensing.meter import first_gpu
from ecorl.errors import FunctionNotFound, MissingToolError

LIMITER_IDS = (74, 76, 269, 270, 271)


@pytest.fixture
def answers(one_gpu, tmp_path, monkeypatch):
    """Measures with some settings of the fake; returns the config and the figures by id."""
    monkeypatch.setattr(facts, "TOY_CALLS_S", 0.005)

    def ask_all(*lines, seconds=600.0):
        one_gpu.set("devices 1", *lines)
        setting = Setting(tmp_path, time.monotonic() + seconds, is_rehearsal=True)
        config, figures = measure(setting)
        assert len({f.id for f in figures}) == len(figures)
        return config, {f.id.removeprefix("gpu_facts."): f for f in figures}

    return ask_all


def test_every_answer_of_nvml_is_there(answers):
    limiters = [f"limiter {id} {share}" for id, share in zip(LIMITER_IDS, range(1, 6), strict=True)]
    begin_s = time.monotonic()
    config, found = answers(*limiters, "memory_mw 41000", "base_mw 90000", "duty 0")
    end_s = time.monotonic()
    value = {id: figure.value for id, figure in found.items()}
    assert value["memory_bytes"] == 80 * 2**30
    assert (value["mig_mode"], value["persistence_mode"]) == (0, 1)
    assert value["restricted.application_clocks"] == 1
    for way in ("", "_call"):
        assert value[f"power_limit.requested{way}_w"] == 650.0
        assert value[f"power_limit.enforced{way}_w"] == 600.0
        assert value[f"power_limit.default{way}_w"] == 700.0
        assert value[f"power_limit.min{way}_w"] == 200.0
        assert value[f"power_limit.max{way}_w"] == 700.0
    assert value["clock.sm_now_hz"] == value["clock.sm_max_hz"] == 1.98e9
    assert value["clock.memory_max_hz"] == 2.619e9
    assert value["clock.sm_default_application_hz"] == 1.785e9
    assert value["supported.memory_count"] == 2
    assert value["supported.graphics_count"] == 119
    assert value["supported.graphics_min_hz"] == 0.21e9
    assert value["supported.graphics_max_hz"] == 1.98e9
    assert value["supported.graphics_step_hz"] == 15e6
    assert value["power.field186_memory_w"] == 41.0
    assert value["power.field186_gpu_w"] == 90.0
    assert value["power.field186_module_w"] == 140.0
    assert value["energy.field191_j"] == pytest.approx(value["energy.counter_j"], rel=1e-3)
    for number, name in enumerate(("power_cap", "sync_boost", "sw_thermal", "hw_thermal"), 1):
        assert number * begin_s <= value[f"limiter.{name}_s"] <= number * end_s
    assert config["nvml"] == "13.999.0-fake"
    assert config["cuda_driver"] == "13.0"
    assert set(config["rights"]) == {"effective_uid", "cap_sys_admin"}
    assert [id for id, one in value.items() if one is None] == ["restricted.auto_boost"]


def test_a_call_has_its_times(answers):
    _, found = answers("burn_us nvmlDeviceGetTotalEnergyConsumption 500 2000 4000")
    times = [
        found[f"call.energy_counter.{kind}_s"].value for kind in ("median", "p90", "p99", "max")
    ]
    assert times == sorted(times)
    assert times[0] >= 5e-4
    assert found["call.sm_clock.median_s"].value > 0
    assert found["call.energy_counter.median_s"].spread["n"] >= 1


def test_what_is_refused_is_missing_with_the_name_of_the_error(answers):
    _, found = answers(
        "error nvmlDeviceGetTotalEnergyConsumption 3", "error nvmlDeviceGetPersistenceMode 4",
        "error nvmlDeviceGetSupportedMemoryClocks 3", "field 190 0 3", "field 186 2 3",
        "field 185 2 3",
    )  # fmt: skip
    refused = {
        "call.energy_counter.p99_s": "NotSupported",
        "energy.counter_j": "NotSupported",
        "limiter.power_cap_s": "NotSupported",
        "persistence_mode": "NoPermission",
        "power.field186_memory_w": "NotSupported",
        "power_limit.enforced_w": "NotSupported",
        "supported.graphics_step_hz": "NotSupported",
    }
    for id, error in refused.items():
        assert found[id].value is None
        assert error in found[id].note
    assert found["power_limit.enforced_call_w"].value == 600.0


def test_without_time_the_answers_stay(answers):
    _, found = answers(seconds=0.0)
    assert "no time" in found["call.energy_counter.median_s"].note
    assert found["power_limit.enforced_w"].value == 600.0


def test_a_gpu_that_is_lost_loses_its_answers_alone(answers, one_gpu, monkeypatch):
    lost = ("GetFieldValues", "GetPowerUsage", "GetTotalEnergyConsumption", "GetMemoryInfo")

    def lost_when_it_was_found(driver):
        found = first_gpu(driver)
        one_gpu.set("devices 1", *(f"error nvmlDevice{call} 15" for call in lost))
        return found

    monkeypatch.setattr(facts, "first_gpu", lost_when_it_was_found)
    config, found = answers()
    for id in (
        "memory_bytes",
        "power_limit.enforced_w",
        "energy.counter_j",
        "call.power_usage.max_s",
    ):
        assert "DeviceLost" in found[id].note
    assert config["nvml"] == "13.999.0-fake"


def test_no_gpu_is_said(answers):
    with pytest.raises(MissingToolError, match="NVIDIA"):
        answers("devices 0")


def test_a_call_that_the_binding_lacks_is_named():
    with pytest.raises(FunctionNotFound, match="nvmlDeviceGetNothing"):
        ask("nvmlDeviceGetNothing")
