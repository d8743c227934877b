"""The NVML source against known truth, with faults, in this process."""

import time

import pytest
from fake_nvml import BASE_W, PEAK_W, true_energy_j

from ecorl.config import NvmlSourceConfig
from ecorl.errors import DriverError
from ecorl.telemetry.sources import nvml
from ecorl.telemetry.sources.nvml import NvmlSource
from ecorl.telemetry.sources.registry import open_source
from ecorl.telemetry.sources.specs import MeteredDevice, SourceSpec


@pytest.fixture
def source(fake_nvml):
    source = NvmlSource()
    source.open()
    yield source
    source.close()


LOST = ("error nvmlDeviceGetFieldValues 15 0", "error nvmlDeviceGetPowerUsage 15 0")


def test_figures_are_the_truth(source):
    for _ in range(5):
        before_s = time.monotonic()
        samples = source.read()
        after_s = time.monotonic()
        for gpu, sample in enumerate(samples):
            assert sample.power_w in (BASE_W, PEAK_W)
            low_j, high_j = (true_energy_j(t, gpu) for t in (before_s, after_s))
            assert low_j - 0.002 <= sample.energy_j <= high_j + 0.002
            assert sample.utilisation == 0.25
            assert sample.source == "nvml:field186:gpu"


def test_the_instrument_is_kept_and_its_failure_is_a_missing_reading(source, fake_nvml):
    fake_nvml.set("field 186 0 3")
    for sample in source.read():
        assert (sample.power_w, sample.error) == (None, "NotSupported")
        assert sample.energy_j is not None
    fake_nvml.set()
    assert all(sample.error is None for sample in source.read())


def test_module_scope_is_named(fake_nvml):
    fake_nvml.set("field 186 0 3", "field 185 0 3", "duty 1")
    source = NvmlSource()
    source.open()
    assert [d.source for d in source.describe()] == ["nvml:field186:module"] * 2
    assert source.read()[0].power_w == PEAK_W + 50.0
    source.close()


def test_without_counter_and_utilisation_power_still_stands(source, fake_nvml):
    fake_nvml.set(
        "error nvmlDeviceGetTotalEnergyConsumption 3", "error nvmlDeviceGetUtilizationRates 3"
    )
    sample = source.read()[0]
    assert sample.power_w is not None
    assert (sample.energy_j, sample.utilisation, sample.error) == (None, None, None)


def test_zero_is_missing(source, fake_nvml):
    fake_nvml.set("zero 1")
    assert [s.power_w for s in source.read()] == [None, None]


def test_power_that_no_board_draws_is_missing(source, fake_nvml):
    fake_nvml.set("base_mw 4200000000", "duty 0")
    for sample in source.read():
        assert (sample.power_w, sample.error) == (None, "NotSupported")


def test_a_counter_that_is_no_count_is_missing(source, fake_nvml):
    fake_nvml.set(f"counter_mj {2**60}")
    assert [s.energy_j for s in source.read()] == [None, None]


@pytest.mark.parametrize(
    "name", ["GPU-00000001-fake", "00000001-fake", "0000:02:00.0", "MIG-00000001-0-fake", 1]
)
def test_gpus_by_name_whatever_cuda_sees(fake_nvml, monkeypatch, name):
    fake_nvml.set("mig 1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    opened = open_source(SourceSpec((NvmlSourceConfig(),), MeteredDevice(gpus=(str(name),))))
    assert opened.source.device_ids() == ("gpu1",)
    assert opened.source.describe()[0].name == "Fake GPU 1 (whole GPU of 1 MIG instances)"
    opened.source.close()


def test_a_gpu_that_is_not_there_is_named(fake_nvml):
    device = MeteredDevice(gpus=("GPU-00000001-fake", "GPU-beef"))
    opened = open_source(SourceSpec((NvmlSourceConfig(),), device))
    assert (opened.source, opened.error) == (None, "DriverError")
    assert "'GPU-beef'" in opened.refusals[0][1]
    with pytest.raises(DriverError, match="no GPU is named"):
        NvmlSource([]).open()


def test_one_lost_gpu_leaves_the_other_and_comes_back(source, fake_nvml):
    clock_s = [100.0]
    source._clock = lambda: clock_s[0]
    fake_nvml.set(*LOST, "error nvmlDeviceGetHandleByUUID 15 0")
    lost, other = source.read()
    assert (lost.power_w, lost.energy_j, lost.error) == (None, None, "DeviceLost")
    assert other.error is None
    source.read()  # the first attempt fails, the next is due after a pause
    fake_nvml.set()
    clock_s[0] += 0.5 * nvml.FIRST_RETRY_S
    source._gpus[0].lost = True
    assert source._retry_at_s > clock_s[0]
    clock_s[0] += nvml.FIRST_RETRY_S
    assert [s.error for s in source.read()] == [None, None]
    assert source._retry_step_s == nvml.FIRST_RETRY_S


def test_back_off_grows_to_a_bound(source, fake_nvml):
    clock_s = [100.0]
    source._clock = lambda: clock_s[0]
    fake_nvml.set(*LOST, "error nvmlDeviceGetHandleByUUID 15 0")
    source.read()
    pauses_s = []
    for _ in range(10):
        source.read()
        pauses_s.append(source._retry_at_s - clock_s[0])
        clock_s[0] = source._retry_at_s
    assert pauses_s[:4] == [1, 2, 4, 8]
    assert pauses_s[-1] == nvml.LONGEST_RETRY_S


def test_a_reloaded_driver_is_started_again(source, fake_nvml):
    clock_s = [100.0]
    source._clock = lambda: clock_s[0]
    fake_nvml.set(
        "error nvmlDeviceGetFieldValues 15",
        "error nvmlDeviceGetPowerUsage 15",
        "error nvmlInitWithFlags 9",
    )
    assert [s.error for s in source.read()] == ["DeviceLost"] * 2
    assert [s.error for s in source.read()] == ["DriverNotLoaded"] * 2
    clock_s[0] += 10
    fake_nvml.set()
    assert [s.error for s in source.read()] == [None, None]


def test_cuda_visible_devices_is_honoured(fake_nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    source = NvmlSource()
    source.open()
    assert source.device_ids() == ("gpu1",)
    source.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DriverError, match="hides all"):
        NvmlSource().open()


def test_mig_instances_are_one_device_and_said_to_be(fake_nvml, monkeypatch):
    fake_nvml.set("mig 3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-00000000-0-fake,MIG-00000000-2-fake")
    source = NvmlSource()
    source.open()
    assert source.device_ids() == ("gpu0",)
    assert "3 MIG instances" in source.describe()[0].name
    (sample,) = source.read()
    assert sample.power_w in (BASE_W, PEAK_W)
    assert sample.utilisation is None
    source.close()


def test_no_gpu_is_an_error(fake_nvml):
    fake_nvml.set("devices 0")
    with pytest.raises(DriverError, match="no GPU"):
        NvmlSource().open()
