"""A reference that TRL moves towards the policy: its engine follows, and no row is scored by an
old version."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.protocol import ScoreBatch
from ecorl.ledger import LedgerReader
from ecorl.records import Action, Stage
from roll_adapters.trl_hooks import attach
from tests.integration.checks import BOTH, config

REFRESHED = {
    "sync_ref_model": True,
    "ref_model_sync_steps": 3,
    "ref_model_mixup_alpha": 0.7,
    "max_steps": 7,
}


class Patient(TrainerCallback):
    """Waits before each step for a refresh that is under way."""

    def __init__(self, runtime: Any) -> None:
        self.lane = runtime._scheduler._lanes[Stage.REFERENCE]

    def on_step_begin(self, args, state, control, **kwargs):
        limit = time.monotonic() + 240
        while self.lane.refreshing and time.monotonic() < limit:
            time.sleep(0.01)


def train(trainer, settings):
    """Train, and note the reference log-probs of each step with the reference as it was then."""
    attachment = attach(trainer, settings)
    trainer.add_callback(Patient(attachment.runtime))
    seen: list[dict[str, Any]] = []
    scored = trainer._generate_and_score_completions

    def spy(inputs):
        weights = {k: v.clone() for k, v in trainer.ref_model.state_dict().items()}
        seen.append({"weights": weights, "output": scored(inputs)})
        return seen[-1]["output"]

    trainer._generate_and_score_completions = spy
    trainer.train()
    return seen


def kernels_answer(trainer, weights, output, folder):
    """What the kernels answer with a reference of the given weights."""
    own = {k: v.clone() for k, v in trainer.ref_model.state_dict().items()}
    trainer.ref_model.load_state_dict(weights)
    trainer.ref_model.save_pretrained(folder)
    trainer.ref_model.load_state_dict(own)
    both = torch.cat([output["prompt_ids"], output["completion_ids"]], 1).numpy()
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1).bool().numpy()
    rows = tuple(r[m] for r, m in zip(both, mask, strict=True))
    counts = tuple(int(n) for n in output["completion_mask"].sum(1))
    engine = FpgaEngine(folder, Stage.REFERENCE)
    names = tuple(map(str, range(len(rows))))
    return engine.logprobs(ScoreBatch(names, rows, counts, temperature=0.9)).values, counts


@pytest.mark.parametrize("isolated", [True, False])
def test_the_engine_takes_over_each_refreshed_reference(make_trainer, tmp_path, isolated):
    trainer = make_trainer(**REFRESHED)
    engine = {"offload": {"type": "fpga", "isolated": isolated}}
    settings = config(tmp_path, policy=BOTH, engine=engine)
    seen = train(trainer, settings)
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        events = [e.detail for e in reader.events() if e.kind == "weights"]
        on_card = {
            r.result.iteration
            for r in reader.executions()
            if r.result.stage is Stage.REFERENCE and r.result.action is Action.CONCURRENT
        }
        faults = reader.faults()
    assert not faults
    # TRL refreshes after steps 3 and 6. The step after that finds it and runs on the GPU path.
    assert len(events) == 2
    assert all(event.startswith("reference: sha256:") for event in events)
    assert len(set(events)) == 2
    assert on_card == {1, 2, 3, 5, 6}
    for step in sorted(on_card):
        weights, output = seen[step - 1]["weights"], seen[step - 1]["output"]
        want, counts = kernels_answer(trainer, weights, output, tmp_path / f"ref{step}")
        for got, row, n in zip(output["ref_per_token_logps"], want, counts, strict=True):
            np.testing.assert_array_equal(got[:n].numpy(), row)
    versions = sorted(p.name for p in (tmp_path / "run" / "models").glob("reference-step-*"))
    assert versions == ["reference-step-3", "reference-step-6"]


def test_a_refresh_that_fails_leaves_the_stage_on_the_gpu_path(make_trainer, tmp_path, monkeypatch):
    plain = make_trainer(**REFRESHED)
    plain.train()
    trainer = make_trainer(name="attached", **REFRESHED)
    policy = {"type": "static", "reward": "gpu", "reference": "concurrent"}
    settings = config(
        tmp_path, policy=policy, engine={"offload": {"type": "fpga", "isolated": False}}
    )
    from ecorl.errors import EngineError

    def refuse(self, checkpoint):
        raise EngineError("no card took the weights")

    monkeypatch.setattr(FpgaEngine, "load_weights", refuse)
    seen = train(trainer, settings)
    assert len(seen) == 7
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        faults = [(f.kind, f.detail) for f in reader.faults()]
        on_card = {
            r.result.iteration
            for r in reader.executions()
            if r.result.stage is Stage.REFERENCE and r.result.action is Action.CONCURRENT
        }
    assert [kind for kind, _ in faults] == ["EngineRetired"]
    assert "no card took the weights" in faults[0][1]
    assert on_card == {1, 2, 3}


def test_refreshes_faster_than_the_engine_are_taken_over_one_at_a_time(
    make_trainer, tmp_path, monkeypatch
):
    """Loading takes longer than a step: versions are skipped, none is scored by an old one."""
    trainer = make_trainer(**(REFRESHED | {"ref_model_sync_steps": 1, "max_steps": 8}))
    engine = {"offload": {"type": "fpga", "isolated": False}}
    settings = config(tmp_path, policy=BOTH, engine=engine)
    load, loads, is_over = FpgaEngine.load_weights, [], threading.Event()

    def slowly(self, checkpoint):
        loads.append(checkpoint.name)
        begun_at, limit_s = trainer.state.global_step, time.monotonic() + 240
        while trainer.state.global_step < begun_at + 2 and not is_over.is_set():
            assert time.monotonic() < limit_s
            time.sleep(0.01)
        return load(self, checkpoint)

    class Over(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            is_over.set()

    monkeypatch.setattr(FpgaEngine, "load_weights", slowly)
    trainer.add_callback(Over())  # before ours, which ends the engine
    attachment = attach(trainer, settings)
    trainer.train()
    assert not attachment.runtime.offloads(Stage.REFERENCE) or loads
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        assert reader.faults() == []
    assert len(loads) == len(set(loads)) < 8


def test_an_engine_that_cannot_follow_leaves_the_reference_on_the_gpu(make_trainer, tmp_path):
    trainer = make_trainer(**(REFRESHED | {"max_steps": 2}))
    settings = config(
        tmp_path, policy=BOTH, engine={"offload": {"type": "torch", "isolated": False}}
    )
    attachment = attach(trainer, settings)
    assert not attachment.runtime.offloads(Stage.REFERENCE)
    assert attachment.runtime.offloads(Stage.REWARD)
    attachment.detach()
