"""Devices of roles that run elsewhere: who is charged for what, and who is told."""

from __future__ import annotations

import pytest

from ecorl.config import Config
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import ConfigError
from ecorl.records import Stage
from ecorl.runtime.equipment.role_places import role_places
from ecorl.runtime.handles import Span
from ecorl.runtime.training import TrainingSide
from tests.fakes.nvml.fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401

SERVER = {Stage.GENERATION: "a vLLM server"}
SPANS = [Span(1.0, 2.0), Span(3.0, 4.0, ("gpu0",))]


def config(power="nvml", **place):
    places = {"generation": place} if place else {}
    gpu = {"type": power} | ({"path": "recording.csv"} if power == "replay" else {})
    return Config.model_validate({"telemetry": {"gpu": gpu}, "places": places})


@pytest.fixture
def gpus(fake_nvml, monkeypatch):  # noqa: F811
    """UUIDs of three GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.set("devices 3")
    driver = NvmlDriver()
    driver.open()
    try:
        return [gpu.uuid for gpu in driver.devices()]
    finally:
        driver.close()


def trainer(*uuids, device="cuda"):
    return TrainingSide(device, gpu_uuids=uuids, elsewhere=SERVER)


def test_without_roles_elsewhere_nothing_is_asked_and_nothing_changes():
    # No NVML here: it is not opened.
    found = role_places(config(devices=["5"]), TrainingSide("cuda", gpu_uuids=("GPU-1",)))
    assert (found.by_role, found.others, found.source) == ({}, frozenset(), None)
    assert found.charged(Stage.GENERATION, SPANS) == SPANS


def test_named_gpus_are_read_apart_and_charged_for_their_role_alone(gpus):
    found = role_places(config(devices=["2", gpus[1]]), trainer(gpus[0]))
    assert found.others == {"gpu1", "gpu2"}
    assert set(found.source.device.gpus) == set(gpus[1:])
    assert found.by_role[Stage.GENERATION].n_gpus == 2
    charged = found.charged(Stage.GENERATION, SPANS)
    assert [s.device_ids for s in charged] == [("gpu1", "gpu2")] * 2
    assert [(s.t_start_s, s.t_end_s) for s in charged] == [(1.0, 2.0), (3.0, 4.0)]
    assert found.charged(Stage.REWARD, SPANS) == SPANS
    assert found.gaps == []


def test_a_gpu_that_the_trainer_uses_too_is_read_once_and_stays_its_own(gpus):
    found = role_places(config(devices=["0", "1"]), trainer(gpus[0]))
    assert found.by_role[Stage.GENERATION].device_ids == ("gpu0", "gpu1")
    assert found.others == {"gpu1"}
    assert found.source.device.gpus == (gpus[1],)


def test_where_the_trainer_s_source_reads_all_gpus_none_is_read_twice(gpus):
    found = role_places(config(devices=["1"]), trainer())
    assert (found.others, found.source) == ({"gpu1"}, None)


def test_a_trainer_on_the_cpu_has_no_gpu_of_its_own(gpus):
    found = role_places(config("rapl", devices=["0"]), trainer(device="cpu"))
    assert found.others == {"gpu0"}
    assert found.source.device.gpus == (gpus[0],)


def test_visible_devices_are_the_trainer_s(gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = role_places(config(devices=["1", "2"]), trainer())
    assert found.others == {"gpu2"}


def test_a_profile_that_the_config_names_is_the_column_of_the_matrix(gpus):
    named = role_places(config(devices=["1"], profile="l4"), trainer(gpus[0]))
    assert named.profile_names == {"generation": "l4"}
    assert {i: p.name for i, p in named.metered_profiles.items()} == {"gpu1": "l4"}


@pytest.mark.parametrize(
    ("power", "place", "gap"),
    [
        ("nvml", {}, "whose GPUs are not named: [places.generation] devices"),
        ("nvml", {"count": 4}, "whose GPUs are not named: [places.generation] devices"),
        ("nvml", {"devices": ["0"], "node": "far"}, "on far, a machine whose power is not read"),
        ("null", {"devices": ["0"]}, "whose power telemetry.gpu.type = 'null' does not tell"),
        ("modelled", {"devices": ["0"]}, "telemetry.gpu.type = 'modelled' does not tell"),
    ],
)
def test_devices_that_are_not_read_have_no_energy_and_a_reason(power, place, gap):
    found = role_places(config(power, **place), trainer("GPU-1"))
    (told,) = found.gaps
    assert told.startswith("generation ran on a vLLM server")
    assert gap in told
    assert [s.device_ids for s in found.charged(Stage.GENERATION, SPANS)] == [(), ()]
    assert (found.others, found.source) == (frozenset(), None)
    assert found.by_role[Stage.GENERATION].n_gpus == place.get("count", 1)


def test_a_recording_counts_gpus_by_number():
    found = role_places(config("replay", devices=["1"]), trainer("GPU-1"))
    assert (found.others, found.source) == ({"gpu1"}, None)
    with pytest.raises(ConfigError, match=r"places\.generation\.devices = \['GPU-7'\]"):
        role_places(config("replay", devices=["GPU-7"]), trainer("GPU-1"))


@pytest.mark.parametrize("name", ["7", "GPU-nobody"])
def test_a_gpu_that_is_not_there_is_refused(gpus, name):
    with pytest.raises(ConfigError, match=rf"places\.generation\.devices = '{name}'"):
        role_places(config(devices=[name]), trainer(gpus[0]))
