"""A policy with a PEFT adapter: its reference is itself without the adapter, and is measured."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from ecorl.errors import ConfigError
from ecorl.ledger import LedgerReader
from ecorl.records import Action, Stage
from roll_adapters.trl_hooks import attach
from tests.integration.checks import assert_same_bits, config, outcome

peft = pytest.importorskip("peft")

REUSE = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_iterations": 2}
"""Two optimizer steps a batch, so that TRL computes old log-probs too."""


def lora() -> Any:
    return peft.LoraConfig(
        r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )


def prompts() -> Any:
    return peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)


@pytest.fixture
def make_peft(make_trainer, tiny):
    """Makes trainers with an adapter: a new one by its config, or a model that has one already."""

    def make(kind: str, algorithm: str = "grpo", name: str = "plain", **changes: Any) -> Any:
        torch.manual_seed(5)
        if kind == "trained":
            from transformers import AutoModelForCausalLM

            base = AutoModelForCausalLM.from_pretrained(tiny.policy, dtype=torch.float32)
            model = peft.get_peft_model(base, lora())
            with torch.no_grad():
                for key, weight in model.named_parameters():
                    if "lora_B" in key:
                        weight.normal_(std=0.05)
            parts = {"model": model}
        else:
            parts = {"peft_config": lora() if kind == "new" else prompts()}
        return make_trainer(algorithm, name, parts=parts, **changes)

    return make


def rows_of(run_dir: Any, stage: Stage) -> list[Any]:
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        return [r.result for r in reader.executions() if r.result.stage is stage]


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("new", "grpo"), ("new", "rloo"), ("trained", "grpo"), ("prompts", "grpo")],
)
def test_the_reference_is_a_stage_of_its_own_and_the_training_the_same(
    make_peft, tmp_path, kind, algorithm
):
    plain = make_peft(kind, algorithm, **REUSE)
    plain.train()
    trainer = make_peft(kind, algorithm, "attached", **REUSE)
    assert trainer.ref_model is None
    attach(trainer, config(tmp_path, algorithm))
    trainer.train()
    assert_same_bits(outcome(plain), outcome(trainer))
    if kind != "prompts" and algorithm == "grpo":
        assert any(float(row["kl"]) > 0 for row in outcome(trainer)["log"])
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        placed = [p.placement for p in reader.placements()]
    reasons = {p.reason for p in placed if p.stage is Stage.REFERENCE}
    assert reasons == {"the reference is the policy without its adapter, whose weights train"}
    n_batches = len(rows_of(tmp_path / "run", Stage.GENERATION))
    reference = rows_of(tmp_path / "run", Stage.REFERENCE)
    assert len(reference) == n_batches > 0
    for r in reference:
        assert r.action is Action.GPU
        assert r.n_output_tokens > 0
        assert r.energy.energy_j > 0
    # The forward for old log-probs has no output tokens; it is training work, as without adapter.
    old = [r for r in rows_of(tmp_path / "run", Stage.ACTOR_TRAIN) if r.n_output_tokens == 0]
    assert len(old) == n_batches
    assert {r.n_sequences for r in old} == {r.n_sequences for r in reference}


def test_without_kl_there_is_no_reference(make_peft, tmp_path):
    trainer = make_peft("new", beta=0.0, **REUSE)
    attach(trainer, config(tmp_path))
    trainer.train()
    assert rows_of(tmp_path / "run", Stage.REFERENCE) == []


@pytest.mark.parametrize("action", ["fpga", "concurrent"])
def test_a_fixed_offload_of_such_a_reference_is_refused(make_peft, tmp_path, action):
    trainer = make_peft("new")
    settings = config(tmp_path, policy={"type": "static", "reference": action})
    with pytest.raises(
        ConfigError, match=rf"placement\.policy\.reference = '{action}': allowed is gpu"
    ):
        attach(trainer, settings)
    assert not (tmp_path / "run").exists()


def test_other_policies_leave_it_on_the_gpu_and_offload_the_reward(make_peft, tmp_path):
    trainer = make_peft("new", max_steps=2)
    attach(trainer, config(tmp_path, policy={"type": "threshold"}))
    trainer.train()
    assert {r.action for r in rows_of(tmp_path / "run", Stage.REFERENCE)} == {Action.GPU}
    assert {r.action for r in rows_of(tmp_path / "run", Stage.REWARD)} == {Action.CONCURRENT}
