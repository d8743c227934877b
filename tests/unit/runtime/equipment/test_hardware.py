from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ecorl.config import Config
from ecorl.drivers.instruments import NvmlDevice
from ecorl.errors import ConfigError, LibraryNotFound
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import DeviceKind, Stage, StageWork
from ecorl.runtime.equipment import hardware
from ecorl.runtime.equipment.hardware import gpu_ids, gpu_path
from ecorl.runtime.local import LocalRuntime
from ecorl.runtime.training import FrozenModel, TrainingSide
from ecorl.telemetry.sources.registry import build
from ecorl.telemetry.sources.specs import MeteredDevice
from tests.fakes.nvml.fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401


def config(gpu="auto", placement=None, **power):
    return Config.model_validate(
        {
            "devices": {"gpu": gpu},
            "telemetry": {"gpu": power or {"type": "auto"}},
            "placement": placement or {},
        }
    )


LOOKAHEAD = {"policy": {"type": "lookahead"}}
THRESHOLD = {"policy": {"type": "threshold"}}


def order(path):
    return [candidate.type for candidate in path.source.candidates]


def build_all(spec):
    for candidate in spec.candidates:
        build(candidate, spec)


CPU, GPU = TrainingSide("cpu"), TrainingSide("cuda", gpu_uuids=("GPU-1",))


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
    opened, asked = [], []

    class Driver:
        def open(self):
            opened.append(self)
            if say.name is None:
                raise LibraryNotFound("no NVML here")

        def select(self, names, *, as_cuda):
            asked.append(names)
            names = say.name.split("|")
            return [NvmlDevice(i, f"GPU-{i}", name, (), None) for i, name in enumerate(names)]

        def close(self):
            opened.remove(self)

    def say(name):
        say.name, say.asked = name, asked

    monkeypatch.setattr(hardware, "NvmlDriver", Driver)
    yield say
    assert opened == []  # whatever happened, the driver was released


def test_on_the_cpu_the_host_is_the_gpu_path_and_power_is_modelled(rapl, snapshot):
    rapl(False)
    path = gpu_path(config(), CPU)
    assert (path.profile.name, path.source.type) == ("host_cpu", "modelled")
    device = path.source.device
    assert (device.device_id, device.kind) == ("cpu0", DeviceKind.CPU)
    assert device.model.pids == (os.getpid(),)
    assert device.model.n_threads == path.profile.value("n_cores")
    assert 0 < device.model.idle_w < device.model.active_w
    snapshot(path.note)
    build_all(path.source)


def test_on_the_cpu_a_counter_is_preferred(rapl, snapshot):
    rapl(True)
    path = gpu_path(config(), CPU)
    assert path.source.type == "rapl"
    snapshot(path.note)
    build_all(path.source)


@pytest.mark.parametrize(
    ("title", "profile"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA B200", "b200_sxm"),
        ("NVIDIA L4", "l4"),
    ],
)
def test_on_a_gpu_its_name_finds_the_profile(nvml, title, profile):
    nvml(title)
    path = gpu_path(config(), GPU)
    assert path.profile.name == profile
    assert (path.source.type, order(path)) == ("auto", ["nvml", "modelled"])
    assert (path.source.device.device_id, path.source.device.kind) == ("gpu0", DeviceKind.GPU)
    assert title in path.note


OTHERS = [
    "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA H200 NVL",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA L40",
    "NVIDIA L40S",
    "NVIDIA GH200 480GB",
    "NVIDIA A1000",
    "",
]
"""Titles of boards that share a chip, or letters of its name, with one that has a profile."""


@pytest.mark.parametrize("title", OTHERS)
def test_a_gpu_without_a_profile_is_refused_rather_than_taken_for_another(nvml, title):
    nvml(title)
    with pytest.raises(ConfigError, match=rf"devices\.gpu = 'auto'.*{title}"):
        gpu_path(config(placement=LOOKAHEAD), GPU)


@pytest.mark.parametrize("title", OTHERS)
def test_a_run_that_only_measures_needs_no_profile_and_gets_no_figures(nvml, caplog, title):
    nvml(title)
    path = gpu_path(config(), GPU)
    assert (path.profile.kind, path.profile.title) == ("gpu", title or "GPU")
    assert re.fullmatch("nvidia_[a-z0-9_]+", path.profile.name)
    assert not path.profile.figures
    # Power without figures would be made up.
    assert (path.source.type, order(path)) == ("auto", ["nvml"])
    assert path.source.device.model is None
    assert path.source.device.gpus == ("GPU-1",)
    assert title in path.note
    (message,) = caplog.messages
    assert title in message


@pytest.mark.parametrize(
    ("placement", "power"),
    [
        (LOOKAHEAD, {}),
        (THRESHOLD | {"energy_margin": 0.1}, {}),
        ({"policy": {"type": "static", "reward": "fpga"}, "energy_margin": 0.1}, {}),
        ({"policy": {"type": "learned", "name": "x"}}, {}),
        ({}, {"type": "modelled"}),
    ],
)
def test_a_run_that_models_needs_a_profile(nvml, placement, power):
    nvml("NVIDIA L40S")
    with pytest.raises(ConfigError, match=r"devices\.gpu = 'auto'.*NVIDIA L40S"):
        gpu_path(config(placement=placement, **power), GPU)


@pytest.mark.parametrize("placement", [THRESHOLD, {"energy_margin": 0.1}])
def test_a_policy_that_asks_for_no_costs_needs_no_profile(nvml, placement):
    nvml("NVIDIA L40S")
    assert gpu_path(config(placement=placement), GPU).profile.name == "nvidia_l40s"


def test_a_run_goes_on_without_figures(nvml, tmp_path):
    nvml("NVIDIA L40S")
    run = config(type="null")
    work = StageWork(Stage.REWARD, 4, 40, 20, 10)
    path = tmp_path / LEDGER_FILE
    ledger = Ledger.create(path, run_id="t", config_toml="", meta={})
    runtime = LocalRuntime(run, ledger, GPU)
    runtime.start()
    runtime.on_stage_end(runtime.on_stage_start(runtime.begin_iteration(1), work))
    runtime.close()
    ledger.close()
    with LedgerReader(tmp_path) as reader:
        assert [(d.profile, d.idle_w) for d in reader.devices()] == [("nvidia_l40s", None)]
        (execution,) = reader.executions()
    assert execution.result.device == "nvidia_l40s"
    assert execution.result.energy.energy_j is None


def test_a_users_profile_without_power_models_none(nvml, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nkind = "gpu"\n')
    assert order(gpu_path(config(str(path)), GPU)) == ["nvml"]
    with pytest.raises(ConfigError, match=r"mine\.idle_w = \(not given\)"):
        gpu_path(config(str(path), type="modelled"), GPU)


def test_one_host_is_not_several_gpus(rapl):
    rapl(False)
    run = Config.model_validate({"devices": {"n_gpus": 64}})
    with pytest.raises(ConfigError, match=r"devices\.n_gpus = 64: allowed is 1:"):
        gpu_path(run, CPU)


FROZEN = TrainingSide("cpu", frozen={Stage.REWARD: FrozenModel(Path("reward"))})


def with_card(fpga, placement=THRESHOLD, engine=None):
    offload = engine or {"type": "fpga"}
    return Config.model_validate(
        {"devices": {"accelerator": fpga}, "placement": placement, "engine": {"offload": offload}}
    )


def test_a_card_whose_engine_lacks_figures_is_refused_with_a_remedy(rapl, snapshot):
    rapl(False)
    with pytest.raises(ConfigError) as caught:
        gpu_path(with_card("v80"), FROZEN)
    snapshot(str(caught.value))
    assert gpu_path(with_card("u55c"), FROZEN)


@pytest.mark.parametrize(
    ("run", "side"),
    [
        (with_card("v80", {}), FROZEN),
        (with_card("v80"), CPU),
        (with_card("v80", engine={"type": "torch"}), FROZEN),
    ],
)
def test_a_card_that_no_engine_stands_for_needs_no_figures(rapl, run, side):
    rapl(False)
    assert gpu_path(run, side).profile.name == "host_cpu"


def test_a_gpu_that_cannot_be_named_is_refused(nvml):
    nvml(None)
    with pytest.raises(ConfigError, match=r"devices\.gpu = 'auto'.*no NVML here"):
        gpu_path(config(), GPU)


def test_a_named_profile_is_taken_without_asking_a_driver(nvml, rapl):
    nvml(None)
    rapl(False)
    assert gpu_path(config("l4"), GPU).profile.name == "l4"
    assert gpu_path(config("host_cpu"), CPU).profile.name == "host_cpu"


def test_a_profile_of_another_device_is_refused(rapl, snapshot):
    """Seconds of one device times watts of another would be printed as if they were measured."""
    rapl(False)
    lines = []
    for side, names in (
        (CPU, ("l4", "u55c", "abacus")),
        (GPU, ("host_cpu", "v80", "u55c", "abacus")),
    ):
        for name in names:
            with pytest.raises(ConfigError, match=rf"^devices\.gpu = '{name}'") as caught:
                gpu_path(config(name), side)
            lines.append(f"on the {side.device}: {caught.value}")
    snapshot("\n".join(lines))


def test_the_gpus_that_the_trainer_uses_are_asked_and_metered(nvml):
    nvml("NVIDIA L4")
    path = gpu_path(config(), GPU)
    assert nvml.asked == [("GPU-1",)]
    assert path.source.device.gpus == ("GPU-1",)
    assert gpu_path(config("l4", type="nvml"), GPU).source.device.gpus == ("GPU-1",)
    unknown = gpu_path(config("l4", type="nvml"), TrainingSide("cuda"))
    assert unknown.source.device.gpus == ()


def test_gpus_of_two_models_and_a_wrong_count_are_refused(nvml):
    two = TrainingSide("cuda", gpu_uuids=("GPU-1", "GPU-2"))
    nvml("NVIDIA L4|NVIDIA H200")
    with pytest.raises(ConfigError, match=r"devices\.n_gpus = 1: allowed is 2"):
        gpu_path(config(), two)
    both = Config.model_validate({"devices": {"n_gpus": 2}})
    with pytest.raises(ConfigError, match=r"devices\.gpu = 'auto'.*NVIDIA H200"):
        gpu_path(both, two)


@pytest.mark.parametrize("code", [3, 4, 8, 15, 21, 999])
@pytest.mark.parametrize("names", [("GPU-00000000-fake", "GPU-00000001-fake"), ()])
def test_a_broken_gpu_leaves_the_profile_to_the_others(fake_nvml, code, names):  # noqa: F811
    for call in ("HandleByIndex", "UUID", "Name"):
        fake_nvml.set(f"error nvmlDeviceGet{call} {code} 1")
        run = Config.model_validate({"devices": {"n_gpus": 2}})
        path = gpu_path(run, TrainingSide("cuda", gpu_uuids=names))
        assert path.profile.title == "Fake GPU 0"
        assert (path.source.device.gpus, path.source.device.n_gpus) == (names, 2)
        # Named after the place that the source gives it.
        assert gpu_ids(names) == ("gpu0", "gpu1")[: len(names)]


def test_a_gpu_without_a_name_is_measured_without_a_profile(fake_nvml, caplog, snapshot):  # noqa: F811
    fake_nvml.set("devices 1", "error nvmlDeviceGetName 999")
    path = gpu_path(config(), TrainingSide("cuda"))
    assert (path.profile.name, path.source.type) == ("nvidia_gpu", "auto")
    with pytest.raises(ConfigError, match=r"devices\.gpu = 'auto'") as caught:
        gpu_path(config(placement=LOOKAHEAD), TrainingSide("cuda"))
    snapshot("\n".join([path.note, *caplog.messages, str(caught.value)]))


def test_where_no_gpu_answers_each_one_s_reason_is_told(fake_nvml, snapshot):  # noqa: F811
    fake_nvml.set("error nvmlDeviceGetHandleByIndex 15 0", "error nvmlDeviceGetUUID 4 1")
    with pytest.raises(ConfigError) as caught:
        gpu_path(config(), TrainingSide("cuda"))
    snapshot(str(caught.value))


def test_a_gpu_that_cuda_does_not_see_names_no_profile(
    fake_nvml,  # noqa: F811
    monkeypatch,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    fake_nvml.set("error nvmlDeviceGetHandleByIndex 999 0")
    assert gpu_path(config(), TrainingSide("cuda")).profile.title == "Fake GPU 1"


def test_a_power_source_of_another_device_is_refused():
    with pytest.raises(ConfigError, match=r"telemetry\.gpu\.type = 'nvml'"):
        gpu_path(config("host_cpu", type="nvml"), CPU)
    with pytest.raises(ConfigError, match=r"telemetry\.gpu\.type = 'rapl'"):
        gpu_path(config("l4", type="rapl"), GPU)


@pytest.mark.parametrize(
    "power",
    [
        {"type": "rapl", "root": "/x"},
        {"type": "replay", "path": "a.csv", "interval_s": 0.25},
        {"type": "null"},
    ],
)
def test_a_configured_source_is_taken_as_it_is(power):
    run = config("host_cpu", **power)
    path = gpu_path(run, CPU)
    assert path.source.type == power["type"]
    assert path.source.candidates == (run.telemetry.gpu,)
    assert path.source.device == MeteredDevice("cpu0", DeviceKind.CPU)
    assert power["type"] in path.note
    build_all(path.source)


def test_a_modelled_source_takes_the_profile_and_its_own_interval(nvml):
    path = gpu_path(config("l4", type="modelled", interval_s=0.5), GPU)
    assert path.source.interval_s == 0.5
    assert path.source.device.model.active_w == path.profile.value("active_w")
    assert path.source.device.device_id == "gpu0"
    build_all(path.source)
