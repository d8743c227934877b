"""Train the demo's policy with a TRL trainer of one's own, with ecorl attached.

python train.py [STEPS]
"""

import json
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from roll_adapters.trl_hooks import attach

HERE = Path(__file__).resolve().parent


def main(steps: int) -> None:
    """Train for some steps; the record lies in a run folder of its own."""
    torch.set_num_threads(1)  # models as small as these lose time with more
    run_dir = Path("runs") / f"train-{time.strftime('%Y%m%d-%H%M%S')}"
    prompts = [json.loads(line) for line in (HERE / "prompts.jsonl").read_text().splitlines()]
    args = GRPOConfig(
        output_dir=str(run_dir / "trainer"),
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
    attach(trainer, HERE / "ecorl.toml", run_dir=run_dir)
    trainer.train()
    print(f"what it took: ecorl report {run_dir}")


if __name__ == "__main__":  # ecorl's engines are processes that import this file
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
