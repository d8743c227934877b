"""The device in the card's place: which engines take which, and where a GPU is metered."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecorl.config import Config
from ecorl.devices import load_profile
from ecorl.drivers.nvml import NvmlDriver
from ecorl.engines.torch import loading
from ecorl.errors import ConfigError
from ecorl.records import Stage
from ecorl.runtime.equipment import accelerator
from ecorl.runtime.equipment.accelerator import accelerator_place, accelerator_profile
from ecorl.runtime.equipment.hardware import gpu_path
from ecorl.runtime.training import FrozenModel, TrainingSide
from tests.fakes.nvml.fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401

FROZEN = {Stage.REWARD: FrozenModel(Path("reward"))}
CUDA = {"type": "torch", "device": "cuda:1"}


def config(name, offload, power="auto", **more):
    return Config.model_validate(
        {
            "devices": {"accelerator": name, "gpu": more.pop("gpu", "auto")},
            "engine": {"offload": offload},
            "placement": {"policy": {"type": "threshold"}},
            "telemetry": {"gpu": {"type": power}},
            **more,
        }
    )


@pytest.fixture
def cuda(monkeypatch):
    """CUDA devices as torch is to find them."""
    torch = pytest.importorskip("torch")

    def say(*uuids):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(uuids))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU number {i}")
        properties = [type("Properties", (), {"uuid": uuid}) for uuid in uuids]
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: properties[i])

    return say


@pytest.fixture
def gpus(fake_nvml, monkeypatch, cuda):  # noqa: F811
    """UUIDs of three GPUs, which torch numbers the other way round."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.set("devices 3")
    driver = NvmlDriver()
    driver.open()
    try:
        found = [gpu.uuid for gpu in driver.devices()]
    finally:
        driver.close()
    cuda(*(uuid.removeprefix("GPU-") for uuid in reversed(found)))
    return found


@pytest.mark.parametrize(
    ("name", "offload"),
    [
        ("u55c", {"type": "fpga"}),
        ("u55c", {"type": "torch"}),
        ("host_cpu", {"type": "torch"}),
        ("l4", CUDA),
        *((name, {"type": "plugin", "name": "toy"}) for name in ("u55c", "l4", "host_cpu")),
    ],
)
def test_each_engine_takes_the_devices_that_it_runs_on(name, offload):
    assert accelerator_profile(config(name, offload)).name == name


def test_a_device_that_the_engine_does_not_run_on_is_refused(snapshot):
    lines = []
    for name, offload in (
        ("l4", {"type": "fpga"}),
        ("host_cpu", {"type": "fpga"}),
        ("l4", {"type": "torch"}),
        ("u55c", CUDA),
        ("host_cpu", CUDA),
    ):
        with pytest.raises(ConfigError, match=f"devices.accelerator = {name!r}: ") as caught:
            gpu_path(config(name, offload), TrainingSide("cpu", frozen=FROZEN))
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_a_cuda_device_that_is_not_there_is_refused_with_those_that_are(cuda, snapshot):
    lines = []
    for uuids in ((), ("a",)):
        cuda(*uuids)
        with pytest.raises(ConfigError) as caught:
            gpu_path(config("l4", CUDA), TrainingSide("cpu", frozen=FROZEN))
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_one_of_another_machine_is_not_looked_for_here(cuda, snapshot):
    cuda()
    ray = {"runtime": {"type": "ray"}}
    path = gpu_path(config("l4", CUDA, **ray), TrainingSide("cpu", frozen=FROZEN))
    assert path.accelerator.device_ids == ()
    snapshot("\n".join(path.gaps))


def test_a_run_that_offloads_nothing_needs_no_device(cuda):
    cuda()
    fixed = {"placement": {"policy": {"type": "static"}}}
    run = config("l4", CUDA, **fixed)
    assert gpu_path(run, TrainingSide("cpu", frozen=FROZEN)).accelerator is None
    assert gpu_path(config("l4", CUDA), TrainingSide("cpu")).accelerator is None


def test_a_broken_gpu_is_a_gap_where_it_is_the_accelerator_alone(gpus, fake_nvml, snapshot):  # noqa: F811
    """torch numbers the three the other way round: cuda:1 is NVML's gpu1."""
    side = TrainingSide("cuda", gpu_uuids=(gpus[0],), frozen=FROZEN)
    fake_nvml.set("devices 3", "error nvmlDeviceGetHandleByIndex 999 2")
    place = accelerator_place(config("l4", CUDA), side)
    assert (place.device_ids, place.gap) == (("gpu1",), "")
    fake_nvml.set("devices 3", "error nvmlDeviceGetHandleByIndex 999 1")
    place = accelerator_place(config("l4", CUDA), side)
    assert place.device_ids == ()
    snapshot(place.gap)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_beside_the_trainer_s_is_read_by_nvml_by_its_uuid(gpus, device):
    side = TrainingSide(device, gpu_uuids=(gpus[0],) if device == "cuda" else (), frozen=FROZEN)
    place = accelerator_place(config("l4", CUDA), side)
    assert (place.profile, place.device_ids, place.others) == (
        load_profile("l4"), ("gpu1",), {"gpu1"},
    )  # fmt: skip
    assert place.source.device.gpus == (gpus[1],)
    assert [c.type for c in place.source.candidates] == ["nvml"]
    path = gpu_path(config("l4", CUDA, gpu="auto" if device == "cpu" else "h100_sxm"), side)
    assert path.others == {"gpu1"}
    assert path.other_profiles == {"gpu1": load_profile("l4")}
    assert len(path.sources) == 2
    assert path.gaps == []


def test_one_that_the_trainer_computes_on_too_is_read_once_and_stays_its_own(gpus):
    side = TrainingSide("cuda", gpu_uuids=(gpus[0], gpus[1]), frozen=FROZEN)
    place = accelerator_place(config("l4", CUDA), side)
    assert (place.device_ids, place.others, place.source) == (("gpu1",), frozenset(), None)


def test_where_the_trainer_s_source_reads_all_gpus_it_is_read_once(gpus):
    place = accelerator_place(config("l4", CUDA), TrainingSide("cuda", frozen=FROZEN))
    assert (place.device_ids, place.others, place.source) == (("gpu1",), {"gpu1"}, None)


@pytest.mark.parametrize("power", ["null", "modelled"])
def test_a_source_that_does_not_tell_its_power_leaves_a_gap(gpus, snapshot, power):
    place = accelerator_place(config("l4", CUDA, power), TrainingSide("cpu", frozen=FROZEN))
    assert place.device_ids == ()
    snapshot(place.gap)


def test_without_nvml_or_a_uuid_its_energy_is_missing_with_the_reason(cuda, monkeypatch, snapshot):
    side = TrainingSide("cpu", frozen=FROZEN)
    cuda("a", None)
    place = accelerator_place(config("l4", CUDA), side)
    assert place.device_ids == ()
    snapshot(place.gap)
    cuda("a", "b")
    place = accelerator_place(config("l4", CUDA), side)
    assert place.device_ids == ()
    assert "cuda:1" in place.gap


def test_the_processor_of_the_host_is_no_gpu():
    found = accelerator_place(config("host_cpu", {"type": "torch"}), TrainingSide("cpu"))
    assert found is None


def test_uuids_are_written_as_nvml_writes_them(cuda):
    assert loading.nvml_name("12ab") == "GPU-12ab"
    assert loading.nvml_name("MIG-12ab") == "MIG-12ab"
    assert accelerator.KEY == "devices.accelerator"
