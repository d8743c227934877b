"""One suite for every PowerSource: what the protocol promises, on every back-end."""

import dataclasses
import itertools
import json
import math
import subprocess
import time
from types import SimpleNamespace

import pytest

from ecorl.errors import DriverError, EcorlError
from ecorl.records import DeviceKind, PowerSample, Provenance
from ecorl.telemetry.sources import modelled
from ecorl.telemetry.sources.modelled import ModelledSource
from ecorl.telemetry.sources.nvml import NvmlSource
from ecorl.telemetry.sources.registry import NullSource, RaplSource, XrtSource
from ecorl.telemetry.sources.replay import ReplaySource
from ecorl.telemetry.sources.specs import MeteredDevice, PowerModel, PowerSource


@dataclasses.dataclass
class Case:
    """A source on a machine of its own; `break_it` and `absent` make that machine fail."""

    make: object
    devices: tuple[str, ...]
    provenance: Provenance
    break_it: object = None
    broken_error: str | None = None
    absent: object = None
    has_power: bool = True
    has_counter: bool = False
    advance: object = lambda: None


def nvml_case(request, tmp_path):
    fake = request.getfixturevalue("fake_nvml")
    lost = ("error nvmlDeviceGetFieldValues 15", "error nvmlDeviceGetPowerUsage 15")
    return Case(
        NvmlSource,
        ("gpu0", "gpu1"),
        Provenance.MEASURED,
        lambda: fake.set(*lost),
        "DeviceLost",
        lambda: fake.set("error nvmlInitWithFlags 9"),
        has_counter=True,
    )


def xrt_case(request, tmp_path):
    state = {"text": json.dumps({"power_consumption_watts": "21.4"}), "cards": 1}
    card = SimpleNamespace(get_info=lambda key: state["text"] if key == "electrical" else "u55c")
    module = SimpleNamespace(
        device=lambda index: card,
        enumerate_devices=lambda: state["cards"],
        xrt_info_device=SimpleNamespace(electrical="electrical", name="name", bdf="bdf"),
    )
    return Case(
        lambda: XrtSource(module=module),
        ("fpga0",),
        Provenance.MEASURED,
        lambda: state.update(text="{"),
        "DriverError",
        lambda: state.update(cards=0),
    )


def rapl_case(request, tmp_path):
    zone = tmp_path / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "energy_uj").write_text("1000000\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    counted_uj = itertools.count(2_000_000, 1_000_000)
    return Case(
        lambda: RaplSource(zone.parent),
        ("cpu0",),
        Provenance.MEASURED,
        lambda: (zone / "energy_uj").unlink(),
        "DeviceLost",
        lambda: (zone / "name").write_text("core\n"),
        has_counter=True,
        advance=lambda: (zone / "energy_uj").write_text(f"{next(counted_uj)}\n"),
    )


def modelled_case(request, tmp_path):
    process = subprocess.Popen(["sleep", "60"])

    def end():
        process.kill()
        process.wait()

    request.addfinalizer(end)
    # The machine may have so many processes that each reading would not be a step.
    request.getfixturevalue("monkeypatch").setattr(modelled, "MAX_SHARE", 1.0)
    return Case(
        lambda: ModelledSource(
            MeteredDevice("cpu0", DeviceKind.CPU, model=PowerModel(20.0, 65.0, (process.pid,), 2))
        ),
        ("cpu0",),
        Provenance.MODELLED,
        end,
        "DeviceLost",
        end,
        has_counter=True,
    )


def replay_case(request, tmp_path):
    path = tmp_path / "power.csv"
    path.write_text("t_s,device_id,power_w,energy_j,utilisation\n0,gpu0,100,5,0.5\n9,gpu0,1,6,\n")
    return Case(
        lambda: ReplaySource(path),
        ("gpu0",),
        Provenance.REPLAYED,
        absent=lambda: path.unlink(),
        has_counter=True,
    )


def null_case(request, tmp_path):
    return Case(
        lambda: NullSource(MeteredDevice("fpga0", DeviceKind.FPGA)),
        ("fpga0",),
        Provenance.MEASURED,
        has_power=False,
    )


CASES = {
    "nvml": nvml_case,
    "xrt": xrt_case,
    "rapl": rapl_case,
    "modelled": modelled_case,
    "replay": replay_case,
    "null": null_case,
}


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    return CASES[request.param](request, tmp_path)


@pytest.fixture
def source(case):
    source = case.make()
    source.open()
    yield source
    source.close()


def settle(case, source):
    """The second of two readings, for sources that take differences."""
    source.read()
    time.sleep(0.05)
    case.advance()
    return source.read()


def test_it_is_a_power_source(case, source):
    assert isinstance(source, PowerSource)
    assert source.interval_s > 0
    assert source.provenance == case.provenance
    infos = source.describe()
    assert tuple(info.device_id for info in infos) == case.devices
    assert all(info.provenance == case.provenance and info.source for info in infos)
    assert [f"{info.kind}{i}" for i, info in enumerate(infos)] == list(case.devices)


def test_one_sample_a_device_in_order_and_now(case, source):
    before_s = time.monotonic()
    samples = source.read()
    after_s = time.monotonic()
    assert tuple(sample.device_id for sample in samples) == case.devices
    assert all(isinstance(sample, PowerSample) for sample in samples)
    assert all(before_s <= sample.t_s <= after_s for sample in samples)
    assert all(sample.provenance == case.provenance for sample in samples)
    assert tuple(d.device_id for d in source.describe()) == case.devices


def test_figures_are_sane(case, source):
    for sample in settle(case, source):
        assert (sample.power_w is not None) == case.has_power
        assert (sample.energy_j is not None) == case.has_counter
        assert sample.error is None
        for figure in (sample.power_w, sample.energy_j):
            assert figure is None or (math.isfinite(figure) and figure >= 0)
        assert sample.utilisation is None or 0 <= sample.utilisation <= 1


def test_time_and_counter_never_go_back(case, source):
    first = source.read()
    second = settle(case, source)
    for a, b in zip(first, second, strict=True):
        assert b.t_s >= a.t_s
        if a.energy_j is not None:
            assert b.energy_j >= a.energy_j


@pytest.mark.parametrize("case", ["nvml", "xrt", "rapl", "modelled"], indirect=True)
def test_a_fault_is_a_missing_reading_never_zero(case, source):
    settle(case, source)
    case.break_it()
    for sample in source.read():
        assert sample.power_w is None
        assert sample.energy_j is None
        assert sample.error == case.broken_error


@pytest.mark.parametrize("case", [name for name in CASES if name != "null"], indirect=True)
def test_open_says_what_is_wrong(case):
    case.absent()
    source = case.make()
    with pytest.raises(EcorlError) as caught:
        source.open()
    if case.provenance != Provenance.REPLAYED:
        assert isinstance(caught.value, DriverError)


def test_close_twice(case):
    source = case.make()
    source.open()
    source.close()
    source.close()
