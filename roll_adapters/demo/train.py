"""Train the demo's policy with a TRL trainer of one's own, with ecorl attached.

python train.py [STEPS]
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from roll_adapters.trl_hooks import attach

HERE = Path(__file__).resolve().parent


def main(steps: int) -> None:
    """Train for some steps."""
    torch.set_num_threads(1)  # models as small as these lose time with more
    prompts = [
        json.loads(line) for line in (HERE / "prompts.jsonl").read_text("utf-8").splitlines()
    ]
    args = GRPOConfig(
        output_dir="checkpoints",
        max_steps=steps,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=8,
        learning_rate=4e-4,
        beta=0.04,
        bf16=False,
        save_strategy="no",
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=str(HERE / "policy"),
        reward_funcs=str(HERE / "reward"),
        args=args,
        train_dataset=Dataset.from_list(prompts),
    )
    attach(trainer, HERE / "attach.toml")
    trainer.train()


if __name__ == "__main__":  # engines of ecorl, where there are some, import this file
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
