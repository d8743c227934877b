"""One GPU that NVML cannot ask, by any call and for any reason, beside healthy ones."""

import time
from dataclasses import replace

import pytest
from fake_nvml import BASE_W, PEAK_W, true_energy_j

from ecorl.drivers.instruments import ERROR_CLASSES
from ecorl.errors import DriverError
from ecorl.telemetry.sources.nvml import NvmlSource

CODES = (2, 3, 4, 8, 10, 15, 16, 21, 999)

IDENTITY = {
    "handle": ("nvmlDeviceGetHandleByIndex",),
    "uuid": ("nvmlDeviceGetUUID",),
}
POWER = {
    "power": ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"),
    "all": (
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetUtilizationRates",
    ),
}
FACTS = {
    "name": ("nvmlDeviceGetName",),
    "limits": ("nvmlDeviceGetPowerManagementLimitConstraints",),
    "mig": ("nvmlDeviceGetMigMode",),
    "mig_slots": ("nvmlDeviceGetMaxMigDeviceCount",),
    "by_uuid": ("nvmlDeviceGetHandleByUUID",),
    "by_address": ("nvmlDeviceGetHandleByPciBusId",),
    "fields": ("nvmlDeviceGetFieldValues",),
    "usage": ("nvmlDeviceGetPowerUsage",),
    "counter": ("nvmlDeviceGetTotalEnergyConsumption",),
    "utilisation": ("nvmlDeviceGetUtilizationRates",),
}

each_code = pytest.mark.parametrize("code", CODES)
UUIDS = [f"GPU-0000000{gpu}-fake" for gpu in range(3)]


def broken(fake_nvml, calls, code, *more):
    fake_nvml.set("devices 3", *more, *(f"error {call} {code} 1" for call in calls))


@pytest.fixture
def opened():
    """Opens a source; all are closed at the end."""
    sources = []

    def open_(*args, **kwargs):
        sources.append(NvmlSource(*args, **kwargs))
        sources[-1].open()
        return sources[-1]

    yield open_
    for source in sources:
        source.close()


def read(source):
    """The samples by device, those of the healthy GPUs held against the truth."""
    before_s = time.monotonic()
    samples = {s.device_id: s for s in source.read()}
    after_s = time.monotonic()
    for gpu in (0, 2):
        sample = samples[f"gpu{gpu}"]
        low_j, high_j = (true_energy_j(t, gpu) for t in (before_s, after_s))
        assert low_j - 0.002 <= sample.energy_j <= high_j + 0.002
        assert sample.power_w in (BASE_W, PEAK_W)
        assert (sample.utilisation, sample.error) == (0.25, None)
        assert sample.source == "nvml:field186:gpu"
    return samples


@each_code
@pytest.mark.parametrize("calls", IDENTITY.values(), ids=IDENTITY)
def test_a_gpu_that_does_not_answer_is_left_out_where_others_suffice(
    fake_nvml, opened, calls, code
):
    broken(fake_nvml, calls, code)
    source = opened(n_gpus=2)
    assert list(read(source)) == ["gpu0", "gpu2"]
    ((device_id, why),) = source.unread()
    assert device_id == "gpu1"
    assert f"({ERROR_CLASSES[code].__name__}: {calls[0]}: " in why
    assert "devices.n_gpus" in why


@each_code
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("calls", IDENTITY.values(), ids=IDENTITY)
def test_where_it_is_needed_its_figures_are_missing_until_it_answers(
    fake_nvml, opened, calls, code, named
):
    broken(fake_nvml, calls, code)
    source = opened(UUIDS) if named else opened(n_gpus=3)
    for _ in range(3):
        missing = read(source)["gpu1"]
        assert (missing.power_w, missing.energy_j, missing.utilisation) == (None, None, None)
        assert missing.error == ERROR_CLASSES[code].__name__
    ((device_id, why),) = source.unread()
    assert device_id == "gpu1"
    assert f"({ERROR_CLASSES[code].__name__}: " in why
    assert (UUIDS[1] in why) == named
    assert [d.device_id for d in source.describe()] == ["gpu0", "gpu1", "gpu2"]
    fake_nvml.set("devices 3")
    source._retry_at_s = 0.0
    back = read(source)["gpu1"]
    assert (back.error, back.power_w in (BASE_W, PEAK_W)) == (None, True)


LOST = (15, 16)


@pytest.mark.parametrize("code", LOST)
def test_a_gpu_that_is_lost_but_for_its_name_is_left_out_too(fake_nvml, opened, code):
    broken(fake_nvml, POWER["power"], code)
    source = opened(n_gpus=2)
    assert list(read(source)) == ["gpu0", "gpu2"]
    ((device_id, why),) = source.unread()
    assert device_id == "gpu1"
    assert "(DeviceLost: " in why


@pytest.mark.parametrize(
    ("code", "how"),
    [
        *((code, {"devices": UUIDS}) for code in CODES),
        *((code, {"n_gpus": 3}) for code in CODES),
        *((code, {}) for code in CODES if code not in LOST),
    ],
)
def test_a_gpu_without_power_keeps_its_place(fake_nvml, opened, code, how):
    """What runs may run on it: its figures are missing, never those of the others alone."""
    broken(fake_nvml, POWER["power"], code)
    source = opened(**how)
    sample = read(source)["gpu1"]
    assert (sample.power_w, sample.error) == (None, ERROR_CLASSES[code].__name__)
    ((device_id, why),) = source.unread()
    assert device_id == "gpu1"
    assert f"({ERROR_CLASSES[code].__name__}: nvml" in why


@each_code
@pytest.mark.parametrize("calls", FACTS.values(), ids=FACTS)
def test_a_fact_that_one_gpu_does_not_tell_costs_that_fact(fake_nvml, opened, calls, code):
    broken(fake_nvml, calls, code)
    source = opened()
    sample = read(source)["gpu1"]
    assert sample.power_w is not None
    assert sample.error is None
    assert (sample.energy_j is None) == (calls == FACTS["counter"])
    assert (sample.utilisation is None) == (calls == FACTS["utilisation"])
    assert source.unread() == ()


@each_code
@pytest.mark.parametrize("calls", [*POWER.values(), *IDENTITY.values(), *FACTS.values()])
@pytest.mark.parametrize("named", [False, True])
def test_a_gpu_that_fails_later_leaves_the_others(fake_nvml, opened, calls, code, named):
    fake_nvml.set("devices 3")
    source = opened(UUIDS if named else None)
    assert all(sample.error is None for sample in read(source).values())
    broken(fake_nvml, calls, code)
    for _ in range(3):
        sample = read(source)["gpu1"]
    is_power = "nvmlDeviceGetFieldValues" in calls
    assert (sample.power_w is None) == is_power
    assert sample.error == (ERROR_CLASSES[code].__name__ if is_power else None)
    fake_nvml.set("devices 3")
    source._retry_at_s = 0.0
    assert read(source)["gpu1"].error is None


@each_code
def test_a_lost_gpu_comes_back_while_another_is_lost(fake_nvml, opened, code):
    """NVML's search by UUID may fail for any GPU on its way."""
    fake_nvml.set("devices 3")
    source = opened()
    power = ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage")
    lost = [f"error {call} 15 {gpu}" for call in power for gpu in (0, 1)]
    fake_nvml.set("devices 3", *lost)
    assert [s.error for s in source.read()] == ["DeviceLost", "DeviceLost", None]
    fake_nvml.set(
        "devices 3",
        f"error nvmlDeviceGetHandleByUUID {code}",
        *(f"error {call} {code} 1" for call in POWER["all"]),
    )
    source._retry_at_s = 0.0
    assert [s.error is None for s in source.read()] == [True, False, True]


@pytest.mark.parametrize("code", [4, 15, 999])
@pytest.mark.parametrize("calls", [*IDENTITY.values(), POWER["all"]])
@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        ("0,2", ["gpu0", "gpu2"]),
        ("2,0,-1,1", ["gpu0", "gpu2"]),
        ("0,2,,1", ["gpu0", "gpu2"]),
        ("GPU-00000000-fake,GPU-00000002-fake", ["gpu0", "gpu2"]),
        ("GPU-00000002,GPU-00000000", ["gpu0", "gpu2"]),
        ("MIG-00000000-0-fake,MIG-00000002-1-fake", ["gpu0", "gpu2"]),
    ],
)
def test_a_broken_gpu_that_cuda_does_not_see_is_not_named(
    fake_nvml, opened, monkeypatch, tmp_path, visible, ids, calls, code
):
    is_mig = visible.startswith("MIG-")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    trace = tmp_path / "trace"
    broken(fake_nvml, calls, code, f"trace {trace}", *["mig 2"] * is_mig)
    source = opened(n_gpus=2)
    assert [d.device_id for d in source.describe()] == ids
    assert source.unread() == ()
    assert [s.error for s in source.read()] == [None, None]
    asked = {call for call, gpu in map(str.split, trace.read_text().splitlines()) if gpu == "1"}
    needed = {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
    assert asked <= (set() if visible[0].isdecimal() else needed)


@pytest.mark.parametrize("visible", ["", "-1", ",0", "-1,0"])
def test_where_cuda_sees_nothing_no_gpu_is_asked(fake_nvml, monkeypatch, tmp_path, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    trace = tmp_path / "trace"
    broken(fake_nvml, POWER["all"], 999, f"trace {trace}")
    with pytest.raises(DriverError, match="CUDA_VISIBLE_DEVICES"):
        NvmlSource().open()
    assert not trace.exists()


def test_a_name_that_no_gpu_can_have_is_refused_with_what_there_is(
    fake_nvml, monkeypatch, snapshot
):
    broken(fake_nvml, IDENTITY["handle"], 15)
    lines = []
    for visible in ("garbage", "7", "0,1x"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(DriverError) as caught:
            NvmlSource().open()
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


@pytest.mark.parametrize("visible", ["0,2,garbage,1", "0,2,7,1", "0,2,GPU-0000000,1"])
def test_what_stands_before_a_name_that_cuda_does_not_know_is_read(
    fake_nvml, opened, monkeypatch, visible
):
    fake_nvml.set("devices 3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert list(read(opened())) == ["gpu0", "gpu2"]
    with pytest.raises(DriverError, match=f"'{visible.split(',')[2]}'"):
        NvmlSource(visible.split(",")).open()  # by the config or the trainer


def test_an_instance_that_cuda_alone_may_know_is_not_left_out(fake_nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,MIG-nobody")
    with pytest.raises(DriverError, match="'MIG-nobody'"):
        NvmlSource().open()


@each_code
def test_where_no_gpu_answers_the_source_says_of_each_why(fake_nvml, code):
    fake_nvml.set("devices 2", f"error nvmlDeviceGetHandleByIndex {code}")
    with pytest.raises(DriverError) as caught:
        NvmlSource().open()
    kind = ERROR_CLASSES[code].__name__
    for gpu in (0, 1):
        told = f"gpu{gpu} does not answer ({kind}: nvmlDeviceGetHandleByIndex: "
        assert str(caught.value).count(told) == 1


def test_a_broken_gpu_is_not_taken_for_a_healthy_one_that_has_its_number_later(fake_nvml, opened):
    broken(fake_nvml, IDENTITY["handle"], 999)
    source = opened(n_gpus=3)
    # As where NVML is started anew without the GPU: those behind it move up.
    source._gpus[2].device = replace(source._gpus[2].device, uuid=UUIDS[1])
    fake_nvml.set("devices 2")
    source._retry_at_s = 0.0
    (sample,) = [s for s in source.read() if s.device_id == "gpu1"]
    assert (sample.power_w, sample.energy_j, sample.error) == (None, None, "DriverError")


def test_instances_of_one_broken_gpu_are_one_device(fake_nvml, opened):
    broken(fake_nvml, IDENTITY["handle"], 15, "mig 2")
    source = opened(["MIG-00000000-0-fake", "MIG-00000001-0-fake", "MIG-00000001-1-fake"])
    assert tuple(d.device_id for d in source.describe()) == ("gpu0", "gpu1")


def test_of_several_broken_gpus_each_name_stands_for_another(fake_nvml, opened):
    fake_nvml.set("devices 3", *(f"error nvmlDeviceGetUUID 999 {gpu}" for gpu in (0, 1)))
    source = opened([*UUIDS])
    assert tuple(d.device_id for d in source.describe()) == ("gpu0", "gpu1", "gpu2")
    with pytest.raises(DriverError, match="'GPU-more'"):
        NvmlSource([*UUIDS, "GPU-more"]).open()
