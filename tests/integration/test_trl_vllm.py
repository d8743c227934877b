"""Generation by a vLLM server: its GPUs are not the trainer's, and are charged apart.

vLLM itself is not needed: a stand-in answers where TRL calls its own client of the server.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecorl.config import Config, validate_config
from ecorl.errors import ConfigError
from ecorl.ledger import LedgerReader
from ecorl.records import Provenance, Stage
from ecorl.report import build_report, read_config
from ecorl.runtime.training import this_node
from roll_adapters.trl_hooks import attach
from tests.fakes.nvml.fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401
from tests.integration.checks import MODELLED, assert_same_bits, outcome

NOT_NAMED = "generation ran on a vLLM server whose GPUs are not named: [places.generation] devices"


class Server:
    """Answers as TRL's client of a vLLM server does, always with the same completions."""

    def __init__(self, took_s: float = 0.0) -> None:
        self.took_s, self.n_calls = took_s, 0

    def sync_weights(self) -> None:
        """Take over the policy's weights: there are none here."""

    def generate(self, prompts, images, num_generations, profiler):
        time.sleep(self.took_s)
        self.n_calls += 1
        rows = [[3 + (i + self.n_calls) % 9, 4 + i % 5, 2] for i in range(len(prompts))]
        return prompts, rows, [[[-1.0] for _ in row] for row in rows], None


@pytest.fixture
def make_served(make_trainer):
    """Makes trainers whose completions come from a server, as TRL has them after its init."""

    def make(name: str = "plain", mode: str = "server", took_s: float = 0.0, **changes: Any) -> Any:
        trainer = make_trainer(name=name, **changes)
        trainer.use_vllm, trainer.vllm_mode = True, mode
        trainer.vllm_generation, trainer._last_loaded_step = Server(took_s), -1
        return trainer

    return make


@pytest.fixture
def two_gpus(fake_nvml, monkeypatch):  # noqa: F811
    """NVML sees two GPUs; the trainer computes on the CPU, to the runtime it is on the first."""
    from roll_adapters.trl import attach as attaching

    fake_nvml.set("devices 2")
    for key, value in fake_nvml.child_environment().items():
        monkeypatch.setenv(key, value)
    described = attaching.training_side

    def training_side(trainer, config, run_dir):
        side = described(trainer, config, run_dir)
        return replace(side, device="cuda", gpu_uuids=(uuid_of(0),))

    monkeypatch.setattr(attaching, "training_side", training_side)
    return fake_nvml


def uuid_of(index: int) -> str:
    from ecorl.drivers.nvml import NvmlDriver

    driver = NvmlDriver()
    driver.open()
    try:
        return driver.devices()[index].uuid
    finally:
        driver.close()


def settings(tmp_path: Path, **tables: Any) -> Config:
    return validate_config(
        {
            "run_dir": str(tmp_path / "run"),
            "devices": {"gpu": "h100_sxm"},
            "telemetry": {"gpu": {"type": "nvml", "interval_s": 0.05}, "stale_after_s": 600.0},
            **tables,
        }
    )


def executions(run_dir: Path) -> list[Any]:
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        return [r.result for r in reader.short_ids().executions()]


def missing(run_dir: Path) -> tuple[str, ...]:
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        return build_report(reader, read_config(reader.run(), run_dir)).missing


@pytest.mark.usefixtures("two_gpus")
def test_named_gpus_of_the_server_are_charged_for_generation_alone(make_served, tmp_path):
    plain = make_served(took_s=0.3)
    plain.train()
    trainer = make_served("attached", took_s=0.3)
    places = {"generation": {"devices": ["1"], "profile": "a100_sxm"}}
    attach(trainer, settings(tmp_path, places=places))
    trainer.train()
    assert_same_bits(outcome(plain), outcome(trainer))
    rows = executions(tmp_path / "run")
    generation = [r for r in rows if r.stage is Stage.GENERATION]
    assert len(generation) == 4
    for r in generation:
        assert r.device_ids == r.energy.device_ids == ("gpu1",)
        assert r.device == "a100_sxm"
        assert r.energy.energy_j > 0
        assert r.energy.provenance is Provenance.MEASURED
    for r in rows:
        if r.stage is not Stage.GENERATION:
            assert r.device_ids == r.energy.device_ids == ("gpu0",)
            assert r.device == "h100_sxm"
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        profiles = {d.device_id: d.profile for d in reader.short_ids().devices()}
    assert profiles == {"gpu0": "h100_sxm", "gpu1": "a100_sxm"}
    assert NOT_NAMED not in missing(tmp_path / "run")
    last = [row for row in trainer.state.log_history if "energy/generation_j" in row][-1]
    assert last["energy/generation_j"] > 0


@pytest.mark.usefixtures("two_gpus")
def test_gpus_that_nobody_names_have_no_energy_and_the_report_says_so(make_served, tmp_path):
    trainer = make_served("attached", took_s=0.2)
    attach(trainer, settings(tmp_path))
    trainer.train()
    rows = executions(tmp_path / "run")
    generation = [r for r in rows if r.stage is Stage.GENERATION]
    assert [r.energy for r in generation] == [None] * 4
    assert all(r.device_ids == ("elsewhere",) and r.host_time_s >= 0.2 for r in generation)
    assert {r.energy.device_ids for r in rows if r.stage is not Stage.GENERATION} == {("gpu0",)}
    assert missing(tmp_path / "run").count(NOT_NAMED) == 1
    assert not [row for row in trainer.state.log_history if "energy/generation_j" in row]


@pytest.mark.usefixtures("two_gpus")
def test_beside_training_vllm_has_the_trainer_s_gpus(make_served, tmp_path):
    trainer = make_served("attached", mode="colocate", took_s=0.2)
    attach(trainer, settings(tmp_path))
    trainer.train()
    rows = [r for r in executions(tmp_path / "run") if r.stage is Stage.GENERATION]
    assert {r.energy.device_ids for r in rows} == {("gpu0",)}


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there_is_refused_by_name(make_served, tmp_path):
    trainer = make_served("attached")
    places = {"generation": {"devices": ["7"]}}
    with pytest.raises(ConfigError, match=r"places\.generation\.devices = '7': allowed is a GPU"):
        attach(trainer, settings(tmp_path, places=places))
    assert not (tmp_path / "run").exists()


def test_a_server_on_another_machine_is_not_read(make_served, tmp_path):
    trainer = make_served("attached")
    tables = {
        "devices": {},
        "telemetry": MODELLED,
        "places": {"generation": {"devices": ["0"], "node": "another"}},
    }
    attach(trainer, settings(tmp_path, **tables))
    trainer.train()
    rows = executions(tmp_path / "run")
    assert {r.energy for r in rows if r.stage is Stage.GENERATION} == {None}
    others = [r for r in rows if r.stage is not Stage.GENERATION]
    assert all(r.energy.energy_j > 0 and r.device_ids == ("cpu0",) for r in others)
    found = [m for m in missing(tmp_path / "run") if m.startswith("generation ran on")]
    where = "a vLLM server on another, a machine whose power is not read"
    assert found == [f"generation ran on {where}"]
    assert this_node() != "another"
