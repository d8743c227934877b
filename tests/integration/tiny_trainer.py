"""A plain TRL trainer on a tiny task, made the way a TRL user makes one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TinyTask:
    """Checkpoint folders and data files as a user would have them."""

    policy: Path
    reward: Path
    prompts: Path
    eval_prompts: Path
    pairs: Path


def tiny_trainer(
    tiny: TinyTask,
    output_dir: Path,
    algorithm: str = "grpo",
    *,
    parts: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """Make a plain TRL trainer.

    Args:
        tiny: models and prompts.
        output_dir: of the trainer.
        algorithm: grpo or rloo.
        parts: arguments of the trainer in place of the usual ones, e.g. its reward functions.
        **changes: of the trainer's own config.
    """
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        PrinterCallback,
    )
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    torch.set_num_threads(1)
    rows = [json.loads(line) for line in tiny.prompts.read_text().splitlines()]
    settings = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 1e-3,
        "beta": 0.05,
        "temperature": 0.9,
        "max_steps": 4,
        "seed": 11,
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    } | changes
    config, kind = (GRPOConfig, GRPOTrainer) if algorithm == "grpo" else (RLOOConfig, RLOOTrainer)
    usual = {
        "model": AutoModelForCausalLM.from_pretrained(tiny.policy, dtype=torch.float32),
        "reward_funcs": [
            AutoModelForSequenceClassification.from_pretrained(
                tiny.reward, dtype=torch.float32, num_labels=1
            ).eval()
        ],
        "args": config(**settings),
        "train_dataset": Dataset.from_list(rows),
        "processing_class": AutoTokenizer.from_pretrained(tiny.policy),
        "reward_processing_classes": [AutoTokenizer.from_pretrained(tiny.reward)],
    }
    trainer = kind(**usual | (parts or {}))
    trainer.remove_callback(PrinterCallback)
    return trainer
