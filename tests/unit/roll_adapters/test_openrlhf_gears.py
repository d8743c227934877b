"""The gears inside OpenRLHF's actor, over an engine that does what DeepSpeed's does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")
pytest.importorskip("torchao")
pytest.importorskip("transformers")

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ecorl.control import Gear
from roll_adapters.openrlhf.gears.actor import prepare
from roll_adapters.ray_jobs.gears.orders import GearOrder, StepEnd
from roll_adapters.ray_jobs.gears.worker import shift, take_report

SHAPE = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "attention_dropout": 0.5,
}  # fmt: skip


class Engine(nn.Module):
    """The part of DeepSpeed's engine that is looked at."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager"))
        self.module = model.to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.global_steps = 0
        self.is_applied = True

    def was_step_applied(self):
        return self.is_applied


class Actor(nn.Module):
    """OpenRLHF's model of the actor: log-probs of the tokens after the first."""

    def __init__(self):
        super().__init__()
        self.model = Engine()

    def forward(self, sequences, action_mask, attention_mask=None):
        shares = torch.log_softmax(self.model.module(sequences).logits[:, :-1].float(), -1)
        return shares.gather(-1, sequences[:, 1:, None])[..., 0]


class Trainer:
    """Takes an optimizer step every second micro-batch."""

    def __init__(self):
        self.actor = Actor()
        self.n_calls = 0

    def training_step(self, experience):
        self.n_calls += 1
        engine = self.actor.model
        engine.global_steps += 1 - self.n_calls % 2
        loss = self.actor(experience.sequences, experience.action_mask).mean()
        engine.is_applied = bool(loss.isfinite())
        return float(loss.detach())


@pytest.fixture
def policy():
    """A process of the actor, ready to shift."""
    own = SimpleNamespace(trainer=Trainer(), max_steps=None)
    made = prepare(own, GearOrder((Gear.BF16, Gear.FP8), simulate_fp8=True))
    assert made.why_not is None, made
    return own


def rows_of(policy):
    ids = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(5))
    rows = SimpleNamespace(
        sequences=ids, action_mask=torch.ones(2, 7), attention_mask=torch.ones_like(ids)
    )
    actor = policy.trainer.actor.eval()
    rows.rollout_log_probs = actor(ids, rows.action_mask).detach()
    return rows


def test_measuring_evaluates_and_leaves_each_module_in_the_mode_it_had(policy):
    rows, actor = rows_of(policy), policy.trainer.actor
    actor.train()
    actor.model.module.model.layers[0].eval()
    modes = [module.training for module in actor.modules()]
    shift(policy, Gear.BF16, Gear.BF16, (Gear.BF16, Gear.FP8))
    policy.trainer.training_step(rows)
    found = take_report(policy)
    assert found.mismatch[Gear.BF16] == 1.0
    assert 1.0 < found.mismatch[Gear.FP8] < 1.1
    assert [module.training for module in actor.modules()] == modes


def poison(module, _given, output):
    return output * float("nan") if type(module).__name__ == "Float8Linear" else output


def test_each_optimizer_step_of_a_stage_is_told_in_order(policy):
    rows, engine = rows_of(policy), policy.trainer.actor.model
    shift(policy, Gear.FP8, Gear.BF16, ())
    for is_broken in (False, True, False):
        hook = torch.nn.modules.module.register_module_forward_hook(poison) if is_broken else None
        for _ in range(2):
            policy.trainer.training_step(rows)
        if hook is not None:
            hook.remove()
        assert engine.is_applied  # the last of them: in BF16 where FP8 gave no numbers
    assert take_report(policy).ends == [StepEnd.WELL, StepEnd.REDONE, StepEnd.WELL]
    assert policy.trainer.n_calls == 8
