"""Devices of roles that run elsewhere: who is charged for what, and who is told."""

from __future__ import annotations

import pytest

from ecorl.config import Config
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import ConfigError
from ecorl.records import Stage
from ecorl.runtime.equipment.role_places import far_places, far_roles, named_gpus, role_places
from ecorl.runtime.handles import Span
from ecorl.runtime.training import MachineDevices, TrainingSide, this_node
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


def trainer(*uuids, device="cuda", **told):
    return TrainingSide(device, gpu_uuids=uuids, elsewhere=SERVER, **told)


def served(found):
    """The only machine of generation's devices."""
    (place,) = found.by_role[Stage.GENERATION]
    return place


def test_without_roles_elsewhere_nothing_is_asked_and_nothing_changes():
    # No NVML here: it is not opened.
    found = role_places(config(devices=["5"]), TrainingSide("cuda", gpu_uuids=("GPU-1",)))
    assert (found.by_role, found.others, found.source) == ({}, frozenset(), None)


def test_named_gpus_are_read_apart_and_charged_for_their_role_alone(gpus):
    found = role_places(config(devices=["2", gpus[1]]), trainer(gpus[0]))
    assert found.others == {"gpu1", "gpu2"}
    assert set(found.source.device.gpus) == set(gpus[1:])
    assert found.devices[Stage.GENERATION][1] == served(found).n_gpus == 2
    charged = served(found).held(SPANS)
    assert [s.device_ids for s in charged] == [("gpu1", "gpu2")] * 2
    assert [(s.t_start_s, s.t_end_s) for s in charged] == [(1.0, 2.0), (3.0, 4.0)]
    assert Stage.REWARD not in found.by_role
    assert found.gaps == []


def test_a_gpu_that_the_trainer_uses_too_is_read_once_and_stays_its_own(gpus):
    found = role_places(config(devices=["0", "1"]), trainer(gpus[0]))
    assert served(found).device_ids == ("gpu0", "gpu1")
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


def test_devices_that_are_not_read_have_no_energy_and_a_reason(snapshot):
    gaps = []
    for power, place in (
        ("nvml", {}),
        ("nvml", {"count": 4}),
        ("nvml", {"devices": ["0"], "node": "far"}),
        ("null", {"devices": ["0"]}),
        ("modelled", {"devices": ["0"]}),
    ):
        found = role_places(config(power, **place), trainer("GPU-1"))
        (gap,) = found.gaps
        gaps.append(gap)
        assert [s.device_ids for s in served(found).held(SPANS)] == [(), ()]
        assert (found.others, found.source) == (frozenset(), None)
        assert served(found).n_gpus == place.get("count", 1)
    snapshot("\n".join(gaps))


def test_a_recording_counts_gpus_by_number():
    found = role_places(config("replay", devices=["1"]), trainer("GPU-1"))
    assert (found.others, found.source) == ({"gpu1"}, None)
    with pytest.raises(ConfigError, match=r"places\.generation\.devices = \['GPU-7'\]"):
        role_places(config("replay", devices=["GPU-7"]), trainer("GPU-1"))


@pytest.mark.parametrize("code", [4, 8, 15, 999])
@pytest.mark.parametrize("names", [["1"], ["GPU-00000001-fake"], ["2", "1"]])
def test_a_role_s_broken_gpu_keeps_its_place(gpus, fake_nvml, names, code):  # noqa: F811
    """Its energy is missing; it is not charged that of the others."""
    fake_nvml.set("devices 3", f"error nvmlDeviceGetHandleByIndex {code} 1")
    found = role_places(config(devices=names), trainer(gpus[0]))
    ids = ("gpu1", "gpu2")[: len(names)]
    assert (served(found).device_ids, served(found).n_gpus) == (ids, len(names))
    assert found.others == set(ids)
    named = ("1",) if "1" in names else tuple(names)
    assert found.source.device.gpus == (*named, *gpus[2:])[: len(names)]
    assert served(found).profile.title == ("Fake GPU 2" if "2" in names else "GPU")


def test_a_broken_gpu_of_nobody_disturbs_no_role(gpus, fake_nvml):  # noqa: F811
    fake_nvml.set("devices 3", "error nvmlDeviceGetHandleByIndex 999 1")
    found = role_places(config(devices=[gpus[2]]), trainer(gpus[0]))
    assert served(found).device_ids == ("gpu2",)
    assert found.source.device.gpus == (gpus[2],)


@pytest.mark.parametrize("name", ["7", "GPU-nobody"])
def test_a_gpu_that_is_not_there_is_refused(gpus, name):
    with pytest.raises(ConfigError, match=rf"places\.generation\.devices = '{name}'"):
        role_places(config(devices=[name]), trainer(gpus[0]))


# ---------------------------------------------------------------- several machines


def over_machines(*far, here=("0",)):
    """A driver whose generation runs here and on other machines."""
    parts = (MachineDevices(this_node(), here), *far)
    return TrainingSide("none", places={Stage.GENERATION: parts})


def test_gpus_that_an_adapter_names_are_found_on_each_machine(gpus):
    side = over_machines(MachineDevices("far", ("1", "2")))
    here = role_places(config(), side)
    (own, unread) = here.by_role[Stage.GENERATION]
    assert (own.node, own.device_ids, own.gap) == ("", ("gpu0",), "")
    assert (unread.node, unread.device_ids, unread.n_gpus) == ("far", (), 2)
    (gap,) = here.gaps
    assert "far" in gap
    assert (here.others, here.source.device.gpus) == ({"gpu0"}, (gpus[0],))
    assert far_roles(config(), side) == {"far": {Stage.GENERATION: ("1", "2")}}
    named = named_gpus(dict.fromkeys(("1", "2"), Stage.GENERATION))
    there = far_places(config(), "far", {Stage.GENERATION: ("1", "2")}, named)
    whole = here.with_far({"far": there})
    assert [(p.node, p.device_ids) for p in whole.by_role[Stage.GENERATION]] == [
        ("", ("gpu0",)),
        ("far", ("gpu1", "gpu2")),
    ]
    assert whole.gaps == []
    # Ids are alike on all machines: those of another one are not metered here.
    assert set(whole.metered_profiles) == {"gpu0"}
    profile, n_gpus = whole.devices[Stage.GENERATION]
    assert (profile.name, n_gpus) == (whole.profile_names[Stage.GENERATION], 3)


def test_devices_that_the_config_names_win_over_the_adapter_s(gpus):
    side = over_machines(MachineDevices("far", ("1",)))
    mine = config(devices=["2"])
    assert served(role_places(mine, side)).device_ids == ("gpu2",)
    assert far_roles(mine, side) == {}
    # A place without devices says where an accelerator worker is to be, or what model they are.
    no_devices = config(node="cards", profile="l4")
    assert [p.profile.name for p in role_places(no_devices, side).by_role[Stage.GENERATION]] == [
        "l4",
        "l4",
    ]
    assert far_roles(no_devices, side) == {"far": {Stage.GENERATION: ("1",)}}


def test_a_machine_without_nvml_is_named(gpus, snapshot):
    side = over_machines(MachineDevices("far", count=4))
    found = role_places(config(), side)
    snapshot("\n".join(found.gaps))
    profile, n_gpus = found.devices[Stage.GENERATION]
    assert (profile, n_gpus) == (found.by_role[Stage.GENERATION][0].profile, 5)
    assert far_roles(config(), side) == {}


def test_a_model_s_devices_may_be_named_for_its_stage(gpus):
    side = TrainingSide(
        "none",
        elsewhere={"reward:math": "a process"},
        places={Stage.REWARD: (MachineDevices(this_node(), ("1",)),)},
    )
    (place,) = role_places(config(), side).by_role["reward:math"]
    assert place.device_ids == ("gpu1",)


@pytest.mark.parametrize("power", ["null", "modelled"])
def test_a_source_that_tells_nothing_of_other_processes_reads_no_machine(power):
    side = over_machines(MachineDevices("far", ("1",)))
    found = role_places(config(power), side)
    assert [p.device_ids for p in found.by_role[Stage.GENERATION]] == [(), ()]
    assert len(found.gaps) == 2
    assert far_roles(config(power), side) == {}
