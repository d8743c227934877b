from __future__ import annotations

import os

import pytest

from ecorl.config import Config
from ecorl.errors import ConfigError, LibraryNotFound
from ecorl.runtime import hardware
from ecorl.runtime.hardware import gpu_path
from ecorl.telemetry.sources import build


def config(gpu="auto", **power):
    return Config.model_validate(
        {"devices": {"gpu": gpu}, "telemetry": {"gpu": power or {"type": "auto"}}}
    )


@pytest.fixture
def rapl(monkeypatch):
    """Whether this host has readable counters."""

    def say(there):
        def find_zones():
            if not there:
                raise LibraryNotFound("no powercap here")
            return ["package-0"]

        monkeypatch.setattr(hardware, "find_zones", find_zones)

    return say


@pytest.fixture
def nvml(monkeypatch):
    """A driver that sees one GPU of the given name, or none."""
    opened = []

    class Driver:
        def open(self):
            opened.append(self)
            if say.name is None:
                raise LibraryNotFound("no NVML here")

        def device(self, index):
            return type("Device", (), {"name": say.name})

        def close(self):
            opened.remove(self)

    def say(name):
        say.name = name

    monkeypatch.setattr(hardware, "NvmlDriver", Driver)
    yield say
    assert opened == []  # whatever happened, the driver was released


def test_on_the_cpu_the_host_is_the_gpu_path_and_power_is_modelled(rapl):
    rapl(False)
    path = gpu_path(config(), "cpu")
    assert (path.profile.name, path.source.type) == ("host_cpu", "modelled")
    assert path.source.options["pid"] == os.getpid()
    assert path.source.options["device_id"] == "cpu0"
    assert path.source.options["n_threads"] == path.profile.value("n_cores")
    assert 0 < path.source.options["idle_w"] < path.source.options["active_w"]
    assert "no powercap here" in path.note
    build(path.source)


def test_on_the_cpu_a_counter_is_preferred(rapl):
    rapl(True)
    path = gpu_path(config(), "cpu")
    assert path.source.type == "rapl"
    assert "RAPL" in path.note
    build(path.source)


@pytest.mark.parametrize(
    ("title", "profile"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA L4", "l4"),
    ],
)
def test_on_a_gpu_its_name_finds_the_profile(nvml, title, profile):
    nvml(title)
    path = gpu_path(config(), "cuda")
    assert path.profile.name == profile
    assert (path.source.type, path.source.options["order"]) == ("auto", ["nvml", "modelled"])
    assert path.source.options["device_id"] == "gpu0"
    assert title in path.note


@pytest.mark.parametrize("title", ["NVIDIA L40S", "NVIDIA GH200 480GB", "NVIDIA A1000", ""])
def test_a_gpu_without_a_profile_is_refused_rather_than_taken_for_another(nvml, title):
    nvml(title)
    with pytest.raises(ConfigError, match=r"devices\.gpu = 'auto'.*none is known for"):
        gpu_path(config(), "cuda")


def test_a_gpu_that_cannot_be_named_is_refused(nvml):
    nvml(None)
    with pytest.raises(ConfigError, match=r"NVML cannot name the GPU \(no NVML here\)"):
        gpu_path(config(), "cuda")


def test_a_named_profile_is_taken_without_asking_a_driver(nvml, rapl):
    nvml(None)
    rapl(False)
    assert gpu_path(config("l4"), "cuda").profile.name == "l4"
    assert gpu_path(config("l4"), "cpu").profile.name == "l4"
    with pytest.raises(ConfigError, match="abacus"):
        gpu_path(config("abacus"), "cpu")


@pytest.mark.parametrize(
    ("power", "options"),
    [
        ({"type": "nvml", "interval_s": 0.2}, {"interval_s": 0.2}),
        ({"type": "rapl", "root": "/x"}, {"interval_s": 0.1, "root": "/x"}),
        ({"type": "replay", "path": "a.csv"}, {"interval_s": 0.1, "path": "a.csv"}),
        ({"type": "null"}, {"interval_s": 1.0, "device_ids": ["cpu0"]}),
    ],
)
def test_a_configured_source_is_taken_as_it_is(power, options):
    path = gpu_path(config("host_cpu", **power), "cpu")
    assert path.source.type == power["type"]
    assert path.source.options == options
    assert f"power source {power['type']} as configured" in path.note
    build(path.source)


def test_a_modelled_source_takes_the_profile_and_its_own_interval(nvml):
    path = gpu_path(config("l4", type="modelled", interval_s=0.5), "cuda")
    assert path.source.options["interval_s"] == 0.5
    assert path.source.options["active_w"] == path.profile.value("active_w")
    assert path.source.options["device_id"] == "gpu0"
    build(path.source)
