"""Trains on DeepSpeed with OpenRLHF's settings, a gradient of one step being not finite.

    python -m tests.frameworks.openrlhf.redone_steps

prints one line of JSON, for training without ZeRO and with ZeRO 2: what the steps became, and how
far the weights are from those of a training in BF16 alone. It is a process of its own, as an actor.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from openrlhf.utils.deepspeed.deepspeed_utils import get_train_ds_config
from torch.nn.modules.module import register_module_forward_hook
from transformers import LlamaConfig, LlamaForCausalLM

from ecorl.control import Gear
from roll_adapters.openrlhf.gears.actor import prepare
from roll_adapters.ray_jobs.gears.orders import GearOrder, StepEnd
from roll_adapters.ray_jobs.gears.worker import shift, take_report
from tests.frameworks.ray_nodes import free_port

N_STEPS, ACCUMULATION, BROKEN = 3, 2, 1
SHAPE = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2,
    # Random numbers of a step count.
    "attention_dropout": 0.1,
}  # fmt: skip


class Trainer:
    """What OpenRLHF's trainer of the actor does with a micro-batch, in short."""

    def __init__(self, stage: int) -> None:
        torch.manual_seed(3)
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager"))
        adam = {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8}}
        config = get_train_ds_config(False, adam_offload=False, stage=stage, optim_config=adam)
        config |= {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 2 * ACCUMULATION}
        engine, *_ = deepspeed.initialize(
            model=model.to(torch.bfloat16),
            model_parameters=list(model.parameters()),
            lr_scheduler=lambda own: torch.optim.lr_scheduler.LinearLR(own, 1.0, 0.1, 10),
            config=config,
        )
        self.actor = SimpleNamespace(model=engine)

    def training_step(self, rows: torch.Tensor) -> float:
        loss = self.actor.model(input_ids=rows, labels=rows).loss
        self.actor.model.backward(loss)
        self.actor.model.step()
        return float(loss.detach())


def poison(module: torch.nn.Module, _given: object, output: torch.Tensor) -> torch.Tensor:
    """Have FP8 layers give no numbers."""
    return output * float("nan") if type(module).__name__ == "Float8Linear" else output


def trained(stage: int, gears: list[Gear], broken: int | None) -> tuple[Trainer, list[int]]:
    """Train in a gear a step; of one step the FP8 layers give no numbers."""
    trainer = Trainer(stage)
    actor = SimpleNamespace(trainer=trainer, max_steps=N_STEPS)
    made = prepare(actor, GearOrder((Gear.BF16, Gear.FP8), simulate_fp8=True))
    assert made.why_not is None, made
    draw, redone = torch.Generator().manual_seed(5), []
    torch.manual_seed(9)
    for step, gear in enumerate(gears):
        shift(actor, gear, Gear.BF16, ())
        hook = register_module_forward_hook(poison) if step == broken else None
        for _ in range(ACCUMULATION):
            trainer.training_step(torch.randint(32, (2, 8), generator=draw))
        if hook is not None:
            hook.remove()
        redone.append(take_report(actor).ends.count(StepEnd.REDONE))
    return trainer, redone


def main() -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(alone, MASTER_PORT=str(free_port()))
    deepspeed.init_distributed()
    print("FOUND", json.dumps([found_at(stage) for stage in (0, 2)]))


def found_at(stage: int) -> dict[str, Any]:
    low = [Gear.BF16] * N_STEPS
    low[BROKEN] = Gear.FP8
    right, none = trained(stage, [Gear.BF16] * N_STEPS, None)
    found, redone = trained(stage, low, BROKEN)
    fp8, unbroken = trained(stage, low, None)

    def weights(trainer: Trainer) -> list[torch.Tensor]:
        return [p.detach().float() for p in trainer.actor.model.module.parameters()]

    def away(trainer: Trainer) -> float:
        pairs = zip(weights(right), weights(trainer), strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs)

    def rate(trainer: Trainer) -> float:
        return float(trainer.actor.model.lr_scheduler.get_last_lr()[0])

    return {
        "redone": [none, redone, unbroken],
        "away": [away(found), away(fp8)],
        "rates": [rate(right), rate(found)],
        "is_finite": all(bool(w.isfinite().all()) for w in weights(found)),
    }


if __name__ == "__main__":
    main()
