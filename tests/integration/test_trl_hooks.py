"""ecorl attached to real TRL trainers: nothing changes but what the config enables."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ecorl.config import validate_config
from ecorl.ledger import LedgerReader
from ecorl.records import Action, Provenance, Stage
from roll_adapters.trl_hooks import attach
from tests.fakes.grids import until
from tests.integration.checks import BOTH, assert_same_bits, config, outcome


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_gpu_only_is_bit_equal_to_plain_trl(make_trainer, tmp_path, algorithm):
    plain = make_trainer(algorithm)
    plain.train()
    attached = make_trainer(algorithm, "attached")
    attach(attached, config(tmp_path, algorithm))
    attached.train()
    assert_same_bits(outcome(plain), outcome(attached))
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        stages = {row.result.stage for row in reader.executions()}
        assert stages >= {Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN}
        assert all(row.placement.action is Action.GPU for row in reader.placements())


@pytest.mark.parametrize(("algorithm", "isolated"), [("grpo", True), ("rloo", False)])
def test_an_exact_engine_agrees_within_1e_6(make_trainer, tmp_path, algorithm, isolated):
    """In a process of its own, as by default, and in this one."""
    plain = make_trainer(algorithm)
    plain.train()
    attached = make_trainer(algorithm, "attached")
    engine = {"offload": {"type": "torch", "isolated": isolated}}
    attach(attached, config(tmp_path, algorithm, policy=BOTH, engine=engine))
    attached.train()
    one, other = outcome(plain), outcome(attached)
    for mine, theirs in zip(one["log"], other["log"], strict=True):
        for key, value in mine.items():
            assert float(theirs[key]) == pytest.approx(float(value), abs=1e-6), key
    for name, weight in one["weights"].items():
        assert torch.allclose(weight, other["weights"][name], rtol=0, atol=1e-6), name
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        offloaded = {
            r.result.stage for r in reader.executions() if r.result.action is Action.CONCURRENT
        }
    assert offloaded == {Stage.REWARD, Stage.REFERENCE}


def test_gradient_accumulation_and_reuse_are_bit_equal(make_trainer, tmp_path):
    changes = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,
    }
    plain = make_trainer(**changes)
    plain.train()
    attached = make_trainer(name="attached", **changes)
    attach(attached, config(tmp_path))
    attached.train()
    assert_same_bits(outcome(plain), outcome(attached))


def test_rewards_and_reference_come_from_the_kernels(make_trainer, tmp_path):
    """What TRL trains on is what the INT8 engine answers, row by row."""
    from ecorl.engines.fpga.engine import FpgaEngine
    from ecorl.engines.protocol import ScoreBatch

    trainer = make_trainer(max_steps=2)
    seen: list[dict[str, Any]] = []
    attach(trainer, config(tmp_path, policy=BOTH))
    scored = trainer._generate_and_score_completions

    def spy(inputs):
        output = scored(inputs)
        # Only this step's rows: TRL keeps a window of earlier ones.
        rewards = list(trainer._logs["rewards"]["reward"])[-len(inputs) :]
        texts = [
            p + c for p, c in zip(trainer._logs["prompt"], trainer._logs["completion"], strict=True)
        ][-len(inputs) :]
        seen.append({"output": output, "rewards": rewards, "texts": texts})
        return output

    trainer._generate_and_score_completions = spy
    names = trainer.reward_func_names
    trainer.reward_func_names = ["reward"]
    trainer.train()
    trainer.reward_func_names = names
    assert len(seen) == 2
    rm = FpgaEngine(trainer.reward_funcs[0].config._name_or_path, Stage.REWARD)
    ref = FpgaEngine(trainer.ref_model.config._name_or_path, Stage.REFERENCE)
    for step in seen:
        out = step["output"]
        ids = [np.array(r) for r in trainer.processing_class(step["texts"])["input_ids"]]
        batch = ScoreBatch(tuple(map(str, range(len(ids)))), tuple(ids), (0,) * len(ids))
        np.testing.assert_array_equal(rm.score(batch).values, np.float32(step["rewards"]))
        both = torch.cat([out["prompt_ids"], out["completion_ids"]], 1).numpy()
        mask = torch.cat([out["prompt_mask"], out["completion_mask"]], 1).bool().numpy()
        rows = tuple(r[m] for r, m in zip(both, mask, strict=True))
        counts = tuple(int(n) for n in out["completion_mask"].sum(1))
        answer = ref.logprobs(ScoreBatch(batch.sample_ids, rows, counts, temperature=0.9))
        for got, want, n in zip(out["ref_per_token_logps"], answer.values, counts, strict=True):
            np.testing.assert_array_equal(got[:n].numpy(), want)
            assert (got[n:] == 0).all()


def test_the_ledger_tells_measured_from_modelled(make_trainer, tmp_path):
    trainer = make_trainer()
    attach(trainer, config(tmp_path, policy=BOTH))
    trainer.train()
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        rows = [row.result for row in reader.executions()]
        card = [r for r in rows if r.device == "u55c"]
        own = [r for r in rows if r.device == "host_cpu"]
        waits = reader.barriers()
        edi = reader.edi()
    assert len(card) == 8
    assert all(r.time_provenance is Provenance.MODELLED for r in card)
    assert all(r.energy.method == "cycle_model" for r in card)
    assert all(r.host_time_s > 0 and r.host_time_s != r.time_s for r in card)
    assert all(r.time_provenance is Provenance.MEASURED for r in own)
    assert len(waits) == 8
    assert all(w.wait_s >= 0 for w in waits)
    assert edi is not None


FAULTS = [
    {"kind": "raise", "calls": [0]},
    {"kind": "nan", "calls": [1], "rows": [2, 5]},
    {"kind": "shape", "calls": [2]},
    {"kind": "exit", "calls": [3]},
]


def test_faulty_engine_costs_no_batch_and_no_other_row(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=5)
    settings = config(
        tmp_path,
        policy={"type": "static", "reward": "concurrent"},
        engine={"offload": {"type": "torch"}, "faults": FAULTS},
        max_faults=100,
    )
    attach(trainer, settings)
    trainer.train()
    plain = make_trainer(max_steps=5)
    plain.train()
    # The offload engine is exact here, so every row must agree with plain TRL, whoever answered.
    for mine, theirs in zip(outcome(trainer)["log"], outcome(plain)["log"], strict=True):
        assert float(mine["reward"]) == pytest.approx(float(theirs["reward"]), abs=1e-5)
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        faults = {f.kind: f.n_rows for f in reader.faults()}
        offloaded = [r.result for r in reader.executions() if r.result.action is Action.CONCURRENT]
    assert faults["EngineCrashed"] == 16
    assert faults["InvalidResult"] in (2, 16)
    assert sum(r.n_rows_fallback for r in offloaded) >= 16 + 2 + 16


def test_hanging_engine_is_cut_off_at_the_deadline(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=3)
    settings = config(
        tmp_path,
        policy={"type": "static", "reference": "concurrent"},
        engine={"offload": {"type": "fpga"}, "faults": [{"kind": "hang", "calls": [1]}]},
        deadline_s=0.5,
    )
    attach(trainer, settings)
    trainer.train()
    assert trainer.state.global_step == 3
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        faults = reader.faults()
        waits = [w.wait_s for w in reader.barriers()]
    assert "EngineTimeout" in {f.kind for f in faults}
    assert max(waits) >= 0.5


def test_detach_gives_the_trainer_back(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1)
    before = {name for name in trainer.__dict__ if callable(trainer.__dict__[name])}
    attachment = attach(trainer, config(tmp_path))
    attachment.detach()
    attachment.detach()
    after = {name for name in trainer.__dict__ if callable(trainer.__dict__[name])}
    assert after == before
    trainer.train()


def test_a_reward_model_changed_in_memory_is_not_scored_with_stale_weights(
    make_trainer, tmp_path, tiny
):
    from ecorl.runtime.frozen_models import frozen_checkpoint

    trainer = make_trainer(max_steps=1)
    model = trainer.reward_funcs[0]
    assert frozen_checkpoint(model, tmp_path / "spare") == tiny.reward
    with torch.no_grad():
        model.score.weight.mul_(2.0)
    assert frozen_checkpoint(model, tmp_path / "spare") == tmp_path / "spare"
    assert (tmp_path / "spare" / "model.safetensors").is_file()


@pytest.fixture
def fake_nvml(require_tool, tmp_path, monkeypatch):
    """Our NVML library of known truth, for the sampling process."""
    require_tool("cc")
    from tests.fakes.nvml.fake_nvml import FakeNvml, build

    fake = FakeNvml(build(tmp_path / "nvml"), tmp_path / "nvml.control")
    fake.set("devices 1")
    for key, value in fake.child_environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The trainer computes on the CPU; to the runtime it is one on a GPU."""
    from roll_adapters.trl import attach as attaching

    described = attaching.training_side

    def training_side(trainer, config, run_dir):
        return replace(described(trainer, config, run_dir), device="cuda")

    monkeypatch.setattr(attaching, "training_side", training_side)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_gpu_lost_mid_run_is_missing_energy_and_nothing_else(make_trainer, tmp_path, fake_nvml):
    from transformers import TrainerCallback

    class LoseTheGpu(TrainerCallback):
        """The sampler reads before the first step, behind each step, and behind the loss."""

        def on_train_begin(self, args, state, control, **kwargs):
            self.await_reading()

        def on_step_end(self, args, state, control, **kwargs):
            self.await_reading()
            if state.global_step == 4:
                lost = ("TotalEnergyConsumption", "PowerUsage", "FieldValues", "UtilizationRates")
                fake_nvml.set(
                    "devices 1",
                    *(f"error nvmlDeviceGet{call} 15" for call in lost),
                    "error nvmlDeviceGetHandleByUUID 15",
                )
                until(lambda: sampler.faults.get("gpu0") == "DeviceLost")

        def await_reading(self):
            now_s = time.monotonic()
            until(lambda: (sampler.watermark_s("gpu0") or 0.0) > now_s)

    plain = make_trainer(max_steps=8)
    plain.train()
    trainer = make_trainer(name="attached", max_steps=8)
    settings = validate_config(
        {
            "run_dir": str(tmp_path / "run"),
            # Named, since NVML's fake is there for the sampling process alone.
            "devices": {"gpu": "h100_sxm"},
            "telemetry": {"gpu": {"type": "nvml", "interval_s": 0.05}, "stale_after_s": 60.0},
        }
    )
    sampler = attach(trainer, settings).runtime._monitor.sampler
    trainer.add_callback(LoseTheGpu())
    trainer.train()
    assert_same_bits(outcome(plain), outcome(trainer))
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        rows = [row.result for row in reader.executions()]
        faults = {f.kind for f in reader.faults()}
    early = [r.energy for r in rows if r.iteration <= 3 and r.stage is Stage.GENERATION]
    late = [r.energy for r in rows if r.iteration >= 6]
    assert early
    assert all(e.energy_j > 0 and e.provenance is Provenance.MEASURED for e in early)
    assert late
    assert all(e.energy_j is None for e in late)
    assert "DeviceLost" in faults
