"""The NVML driver on a fake library with known truth, through the real pynvml."""

import os
import subprocess
import sys
import time

import pytest
from fake_nvml import PEAK_W, build, true_energy_j

from ecorl import errors
from ecorl.drivers import instruments, nvml
from ecorl.drivers.instruments import (
    INSTRUMENTS,
    POWER_USAGE,
    BoardState,
    Instrument,
    PowerReading,
)
from ecorl.drivers.nvml import NvmlDriver, visible_devices

EXPECTED = {
    "NotSupported": {
        "NOT_SUPPORTED",
        "VGPU_ECC_NOT_SUPPORTED",
        "FREQ_NOT_SUPPORTED",
        "DEPRECATED",
        "RESET_TYPE_NOT_SUPPORTED",
    },
    "NoPermission": {"NO_PERMISSION"},
    "DriverNotLoaded": {"DRIVER_NOT_LOADED"},
    "DriverTimeout": {"TIMEOUT"},
    "LibraryNotFound": {"LIBRARY_NOT_FOUND"},
    "FunctionNotFound": {"FUNCTION_NOT_FOUND"},
    "DeviceLost": {"GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"},
}


def all_codes() -> dict[str, int]:
    import pynvml

    return {
        name.removeprefix("NVML_ERROR_"): value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_")
    }


@pytest.fixture
def driver(fake_nvml):
    driver = NvmlDriver()
    driver.open()
    yield driver
    driver.close()


def test_every_code_of_pynvml_has_a_class():
    codes = all_codes()
    assert set(codes.values()) == set(instruments.ERROR_CLASSES)
    for name, code in codes.items():
        wanted = next((k for k, names in EXPECTED.items() if name in names), "DriverError")
        assert instruments.ERROR_CLASSES[code].__name__ == wanted, name


def test_every_code_surfaces_through_a_call(driver, fake_nvml):
    gpu = driver.device(0)
    for name, code in all_codes().items():
        fake_nvml.set(f"error nvmlDeviceGetTotalEnergyConsumption {code}")
        with pytest.raises(errors.DriverError) as caught:
            driver.energy_j(gpu)
        assert type(caught.value) is instruments.ERROR_CLASSES[code], name
        assert "nvmlDeviceGetTotalEnergyConsumption" in str(caught.value)


def test_a_code_that_nobody_knows_is_a_driver_error(driver, fake_nvml):
    gpu = driver.device(0)
    fake_nvml.set("error nvmlDeviceGetTotalEnergyConsumption 777")
    with pytest.raises(errors.DriverError, match="777"):
        driver.energy_j(gpu)


@pytest.mark.parametrize(("code", "kind"), [(9, "DriverNotLoaded"), (12, "LibraryNotFound")])
def test_open_says_why_not(fake_nvml, code, kind):
    fake_nvml.set(f"error nvmlInitWithFlags {code}")
    driver = NvmlDriver()
    with pytest.raises(getattr(errors, kind)):
        driver.open()
    assert not driver.is_open
    driver.close()


def test_calls_before_open_fail():
    with pytest.raises(errors.DriverError, match="not open"):
        NvmlDriver().count()


def test_describes_devices(driver):
    first, second = driver.devices()
    assert (first.index, first.uuid, first.name) == (0, "GPU-00000000-fake", "Fake GPU 0")
    assert second.uuid == "GPU-00000001-fake"
    assert first.mig_uuids == ()


def test_energy_is_the_counter_in_joules(driver):
    gpu = driver.device(1)
    before_s = time.monotonic()
    energy_j = driver.energy_j(gpu)
    after_s = time.monotonic()
    # The counter is truncated to mJ.
    assert true_energy_j(before_s, 1) - 0.002 <= energy_j <= true_energy_j(after_s, 1) + 0.002


def test_power_prefers_the_gpu_scope_and_says_so(driver, fake_nvml):
    gpu = driver.device(0)
    fake_nvml.set("duty 1")
    reading = driver.power(gpu, INSTRUMENTS)
    assert (reading.power_w, reading.instrument) == (PEAK_W, Instrument(186, 0))
    # With it comes the average in its scope, whether or not that was asked for.
    for order in (INSTRUMENTS, (Instrument(186, 0),)):
        assert driver.power(gpu, order).average_w == pytest.approx(PEAK_W, abs=0.01)
    fake_nvml.set("duty 1", "field 185 0 3")
    assert driver.power(gpu, (Instrument(186, 0),)) == PowerReading(PEAK_W, Instrument(186, 0))
    fake_nvml.set("duty 1")
    assert str(Instrument(186, 0)) == "nvml:field186:gpu"
    average = driver.power(gpu, (Instrument(185, 0),))
    assert average.instrument == Instrument(185, 0)
    assert average.power_w == pytest.approx(PEAK_W, abs=0.01)


def test_power_falls_to_module_scope_then_to_power_usage(driver, fake_nvml):
    gpu, order = driver.device(0), INSTRUMENTS
    no_gpu_scope = ["duty 1", "field 186 0 3", "field 185 0 3"]
    fake_nvml.set(*no_gpu_scope)
    reading = driver.power(gpu, order)
    assert str(reading.instrument) == "nvml:field186:module"
    assert reading.power_w == PEAK_W + 50.0
    fake_nvml.set(*no_gpu_scope, "field 186 1 3", "field 185 1 3")
    assert driver.power(gpu, order).instrument == POWER_USAGE
    fake_nvml.set("duty 1", "error nvmlDeviceGetFieldValues 13")
    reading = driver.power(gpu, order)
    assert str(reading.instrument) == "nvml:power_usage"
    assert reading.power_w == pytest.approx(PEAK_W, abs=0.01)


def test_one_field_missing_does_not_hide_the_other(driver, fake_nvml):
    gpu = driver.device(0)
    fake_nvml.set("field 186 0 3")
    assert driver.power(gpu, INSTRUMENTS).instrument == Instrument(185, 0)


def test_power_error_is_that_of_the_device(driver, fake_nvml):
    gpu = driver.device(0)
    fake_nvml.set("error nvmlDeviceGetFieldValues 15", "error nvmlDeviceGetPowerUsage 15")
    with pytest.raises(errors.DeviceLost):
        driver.power(gpu, INSTRUMENTS)
    fake_nvml.set("field 186 0 4")
    with pytest.raises(errors.NoPermission):
        driver.power(gpu, (Instrument(186, 0),))


def test_zero_power_is_no_reading(driver, fake_nvml):
    gpu = driver.device(0)
    fake_nvml.set("zero 1")
    with pytest.raises(errors.NotSupported, match="no reading"):
        driver.power(gpu, INSTRUMENTS)


@pytest.mark.parametrize("power_mw", [4_200_000_000, 1_400_001, 0xFFFFFFFF])
def test_power_that_no_board_draws_is_no_reading(driver, fake_nvml, power_mw):
    """The GPU's highest limit is 700 W; twice that is the most that is believed of it."""
    gpu = driver.device(0)
    fake_nvml.set(f"base_mw {power_mw}", "duty 0")
    for instrument in (Instrument(186, 0), POWER_USAGE):
        with pytest.raises(errors.NotSupported, match="answered"):
            driver.power(gpu, (instrument,))
    fake_nvml.set("base_mw 1399999", "duty 0")
    assert driver.power(gpu, (Instrument(186, 0),)).power_w == pytest.approx(1399.999)


def test_the_bound_without_a_known_limit_and_for_a_module(driver, fake_nvml):
    for unknown in ("error nvmlDeviceGetPowerManagementLimitConstraints 999", "max_limit_mw 0"):
        fake_nvml.set(unknown, "base_mw 9000000", "duty 0")
        gpu = driver.device(0)
        assert gpu.max_limit_w is None
        assert driver.power(gpu, (Instrument(186, 0),)).power_w == 9000.0
        fake_nvml.set(unknown, "base_mw 10000001", "duty 0")
        with pytest.raises(errors.NotSupported, match="10000 "):
            driver.power(gpu, (Instrument(186, 0),))
    fake_nvml.set("base_mw 3000000", "duty 0")
    gpu = driver.device(0)
    assert gpu.max_limit_w == 700.0
    with pytest.raises(errors.NotSupported):
        driver.power(gpu, (Instrument(186, 0),))
    assert driver.power(gpu, (Instrument(186, 1),)).power_w == 3050.0


def test_a_counter_that_is_no_count(driver, fake_nvml, monkeypatch):
    gpu = driver.device(0)
    fake_nvml.set(f"counter_mj {2**53 + 2}")
    with pytest.raises(errors.NotSupported, match="no count"):
        driver.energy_j(gpu)
    fake_nvml.set(f"counter_mj {2**53}")
    assert driver.energy_j(gpu) == 2**53 / 1e3
    for answer in (-1, float("nan")):
        monkeypatch.setattr(driver, "_call", lambda *args, answer=answer: answer)
        with pytest.raises(errors.NotSupported, match="no count"):
            driver.energy_j(gpu)


def test_utilisation_and_limits(driver, fake_nvml):
    gpu = driver.device(0)
    assert driver.utilisation(gpu) == 0.25
    assert driver.power_limits(gpu) == nvml.PowerLimits(600.0, 200.0, 700.0)
    fake_nvml.set("error nvmlDeviceGetPowerManagementLimitConstraints 3")
    assert driver.power_limits(gpu) == nvml.PowerLimits(600.0, None, None)
    fake_nvml.set("error nvmlDeviceGetEnforcedPowerLimit 15")
    with pytest.raises(errors.DeviceLost):
        driver.power_limits(gpu)


def test_the_state_of_a_board_and_the_drivers_version(driver, fake_nvml):
    gpu = driver.device(0)
    assert driver.version() == "999.0-fake"
    assert driver.board_state(gpu) == BoardState(1.98e9, 41.0, 4)
    fake_nvml.set("error nvmlDeviceGetClockInfo 3", "error nvmlDeviceGetTemperature 13")
    assert driver.board_state(gpu) == BoardState(None, None, 4)
    fake_nvml.set("error nvmlDeviceGetTemperature 15")
    with pytest.raises(errors.DeviceLost):
        driver.board_state(gpu)


def test_mig_instances_stand_for_their_parent_once(driver, fake_nvml):
    fake_nvml.set("mig 3")
    assert len(driver.devices()) == 2
    assert driver.device(0).mig_uuids == tuple(f"MIG-00000000-{i}-fake" for i in range(3))
    chosen = driver.select(["MIG-00000001-0-fake", "MIG-00000001-2-fake", "MIG-00000000-1-fake"])
    assert [gpu.uuid for gpu in chosen] == ["GPU-00000000-fake", "GPU-00000001-fake"]
    assert len(driver.select(["MIG-00000001-0-fake", "MIG-00000001-2-fake", "1"])) == 1


def test_select_by_index_uuid_and_prefix(driver):
    assert [gpu.index for gpu in driver.select(["1"])] == [1]
    assert [gpu.index for gpu in driver.select(["GPU-00000001"])] == [1]
    assert driver.select([]) == ()
    for wrong in ("7", "GPU-0", "GPU-x", "MIG-none"):
        with pytest.raises(errors.DriverError):
            driver.select([wrong])


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("1", 1),
        ("GPU-00000001-fake", 1),
        ("00000001-fake", 1),
        ("00000001-FAKE", 1),
        ("MIG-00000001-2-fake", 1),
        ("00000001-2-fake", 1),
        ("0000:02:00.0", 1),
        ("00000000:01:00.0", 0),
    ],
)
def test_find_by_any_name(driver, fake_nvml, name, index):
    fake_nvml.set("mig 3")
    gpu = driver.find(name)
    assert gpu.index == index
    assert gpu.label.startswith(f"Fake GPU {index} ")
    assert "3 MIG" in gpu.label


@pytest.mark.parametrize(
    "name", ["9", "GPU-ffff", "ffff", "MIG-none", "MIG-00000001-fake", "0000:0a:00.0", ":", "", "é"]
)
def test_find_names_what_it_does_not_find(driver, name):
    with pytest.raises(errors.DriverError) as caught:
        driver.find(name)
    assert repr(name) in str(caught.value)
    assert "GPU-00000001-fake" in str(caught.value)


def test_find_refuses_to_choose(driver, snapshot):
    with pytest.raises(errors.DriverError) as caught:
        driver.find("GPU-000")
    snapshot(str(caught.value))
    assert driver.find("0").index == 0


def test_lost_gpu_is_left_out_of_the_list(driver, fake_nvml):
    fake_nvml.set("error nvmlDeviceGetHandleByIndex_v2 15 0")
    assert [gpu.index for gpu in driver.devices()] == [1]


@pytest.mark.parametrize(
    ("text", "names"),
    [("0,1", ("0", "1")), ("", ()), ("-1", ()), ("2,-1,0", ("2",)), (" GPU-ab ", ("GPU-ab",))],
)
def test_visible_devices(text, names):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": text}) == names
    assert visible_devices({}) is None


PROBE = """
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError
driver = NvmlDriver()
try:
    driver.open()
    driver.energy_j(driver.device(0))
except DriverError as error:
    print(type(error).__name__)
"""


def probe(env: dict[str, str]) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH",)}
    run = subprocess.run(
        [sys.executable, "-c", PROBE], env=clean | env, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_library_without_the_counter_lacks_a_function(fake_nvml, tmp_path):
    library = build(tmp_path / "old", "WITHOUT_ENERGY")
    env = fake_nvml.child_environment() | {"LD_LIBRARY_PATH": str(library.parent)}
    assert probe(env) == "FunctionNotFound"
    assert probe(fake_nvml.child_environment()) == ""


def test_no_library_at_all(tmp_path):
    # An empty file with the library's name is found first and is no library.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    assert probe({"LD_LIBRARY_PATH": str(tmp_path)}) == "LibraryNotFound"
