"""The NVML source against known truth, with faults, in this process."""

import time
from itertools import pairwise

import pytest
from fake_nvml import BASE_W, PEAK_W, true_energy_j

from ecorl.config import NvmlSourceConfig
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError, NotSupported
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
    spec = SourceSpec((NvmlSourceConfig(),), MeteredDevice(gpus=(str(name),)))
    source, report = open_source(spec)
    assert [d.device_id for d in report.devices] == ["gpu1"]
    assert "1 MIG" in report.devices[0].name
    source.close()


def test_a_gpu_that_is_not_there_is_named(fake_nvml, snapshot):
    device = MeteredDevice(gpus=("GPU-00000001-fake", "GPU-beef"))
    source, report = open_source(SourceSpec((NvmlSourceConfig(),), device))
    assert (source, report.error) == (None, "DriverError")
    assert "'GPU-beef'" in report.refusals[0][1]
    with pytest.raises(DriverError) as caught:
        NvmlSource([]).open()
    snapshot(str(caught.value))


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
    assert tuple(d.device_id for d in source.describe()) == ("gpu1",)
    source.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DriverError, match="hides all"):
        NvmlSource().open()


def test_mig_instances_are_one_device_and_said_to_be(fake_nvml, monkeypatch):
    fake_nvml.set("mig 3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-00000000-0-fake,MIG-00000000-2-fake")
    source = NvmlSource()
    source.open()
    assert tuple(d.device_id for d in source.describe()) == ("gpu0",)
    assert "3 MIG" in source.describe()[0].name
    (sample,) = source.read()
    assert sample.power_w in (BASE_W, PEAK_W)
    assert sample.utilisation is None
    source.close()


def test_no_gpu_is_an_error(fake_nvml):
    fake_nvml.set("devices 0")
    with pytest.raises(DriverError, match="no GPU"):
        NvmlSource().open()


class Calls:
    """A clock that a call of the energy counter moves on, and the calls so far, by GPU."""

    def __init__(self, source, monkeypatch, call_s):
        self.now_s, self.counts = 1000.0, [0, 0]
        read = NvmlDriver.energy_j

        def slowly(driver, device):
            self.counts[device.index] += 1
            self.now_s += call_s[device.index]
            read(driver, device)
            return true_energy_j(self.now_s, device.index)

        monkeypatch.setattr(source, "_clock", lambda: self.now_s)
        monkeypatch.setattr(NvmlDriver, "energy_j", slowly)

    def poll(self, source, length_s, interval_s=0.1):
        """Read for some time; returns the samples of each GPU."""
        end_s, found = self.now_s + length_s, ([], [])
        while self.now_s < end_s:
            for gpu, sample in enumerate(source.read()):
                found[gpu].append(sample)
            self.now_s += interval_s
        return found


def test_a_slow_counter_is_read_once_a_second_and_the_power_as_ever(source, monkeypatch):
    calls = Calls(source, monkeypatch, (0.003, 0.00002))
    calls.poll(source, 1.0)  # by then it is known which one is slow
    calls.counts = [0, 0]
    slow, fast = calls.poll(source, 20.0)
    assert 15 <= calls.counts[0] <= 20
    assert calls.counts[1] == len(fast)
    counted = [s.t_s for s in slow if s.energy_j is not None]
    assert len(counted) == calls.counts[0]
    assert min(b - a for a, b in pairwise(counted)) >= 1.0
    assert all(s.power_w is not None and s.error is None for s in slow)
    assert all(s.energy_j is not None for s in fast)


def test_a_counter_that_was_slow_for_a_moment_is_read_as_before(source, monkeypatch):
    calls = Calls(source, monkeypatch, [0.003, 0.003])
    calls.poll(source, 1.0)
    monkeypatch.setattr(NvmlDriver, "energy_j", lambda driver, device: 1.0)
    calls.poll(source, 6.0)
    assert all(s.energy_j == 1.0 for samples in calls.poll(source, 2.0) for s in samples)


def test_a_slow_counter_is_read_with_each_power_where_the_config_wants_it(fake_nvml, monkeypatch):
    config = NvmlSourceConfig(counter_interval_s=0.0)
    source = open_source(SourceSpec((config,)))[0]
    calls = Calls(source, monkeypatch, (0.003, 0.003))
    found = calls.poll(source, 3.0)
    assert calls.counts == [len(samples) for samples in found]
    source.close()


def test_an_edge_is_read_with_the_counter_but_not_twice(source, monkeypatch):
    calls = Calls(source, monkeypatch, (0.003, 0.003))
    calls.poll(source, 3.0)
    calls.counts = [0, 0]
    calls.now_s += 0.05
    assert [s.energy_j is not None for s in source.read_edge()] == [True, True]
    assert source.read_edge() == ()
    assert calls.counts == [1, 1]
    # It stands in for the reading of its second.
    calls.poll(source, 0.9)
    assert calls.counts == [1, 1]


def test_an_edge_just_behind_a_reading_of_power_repeats_it(source, monkeypatch):
    calls, powers = Calls(source, monkeypatch, (0.003, 0.003)), []
    read = NvmlDriver.power

    def counted(driver, device, order):
        powers.append(device.index)
        return read(driver, device, order)

    calls.poll(source, 3.0)
    monkeypatch.setattr(NvmlDriver, "power", counted)
    calls.now_s += 0.1
    before = source.read()
    powers.clear()
    calls.now_s += 0.03  # the counter was read more than EDGE_APART_S ago, power was not
    edge = source.read_edge()
    assert powers == []
    assert [s.power_w for s in edge] == [s.power_w for s in before]
    assert all(s.energy_j is not None for s in edge)
    assert all(b.t_s > a.t_s for a, b in zip(before, edge, strict=True))
    calls.now_s += 0.06
    source.read_edge()
    assert powers == [0, 1]


def test_a_slow_counter_beside_an_average_is_read_with_each_power(fake_nvml, monkeypatch):
    """A power that comes a second late cannot tell when the counter rose."""
    fake_nvml.set("field 186 0 3", "field 186 1 3")
    source = NvmlSource()
    source.open()
    calls = Calls(source, monkeypatch, (0.003, 0.003))
    found = calls.poll(source, 3.0)
    assert calls.counts == [len(samples) for samples in found]
    source.close()


def test_a_counter_that_failed_once_is_read_again_at_once(source, monkeypatch):
    calls = Calls(source, monkeypatch, (0.003, 0.003))
    calls.poll(source, 3.0)
    slowly = NvmlDriver.energy_j

    def fails(driver, device):
        raise NotSupported("once")

    calls.now_s += 1.0
    monkeypatch.setattr(NvmlDriver, "energy_j", fails)
    assert [s.energy_j for s in source.read()] == [None, None]
    monkeypatch.setattr(NvmlDriver, "energy_j", slowly)
    calls.now_s += 0.1
    assert all(s.energy_j is not None for s in source.read())


def test_a_lost_gpu_is_not_read_at_an_edge(source, fake_nvml):
    fake_nvml.set(*LOST)
    source.read()
    time.sleep(2 * nvml.EDGE_APART_S)
    assert [s.device_id for s in source.read_edge()] == ["gpu1"]
