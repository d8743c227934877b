"""Makes a TRL trainer from an ecorl config; models are loaded from disk as a user's would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PrinterCallback,
    ProgressCallback,
)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from ecorl.config import Config
from ecorl.engines.torch.loading import loading_errors
from ecorl.errors import CheckpointError
from ecorl.records import Algorithm
from roll_adapters.trl.inputs.limits import first_line, load_tokenizer
from roll_adapters.trl.inputs.places import check_gpus
from roll_adapters.trl.inputs.rows import PROMPT_KEYS, read_rows
from roll_adapters.trl.inputs.start import check_algorithm
from roll_adapters.trl.task import TaskFiles

TRAINERS: dict[Algorithm, tuple[Any, Any]] = {
    Algorithm.GRPO: (GRPOConfig, GRPOTrainer),
    Algorithm.RLOO: (RLOOConfig, RLOOTrainer),
}
"""Arguments and trainer of each algorithm that TRL has for us."""


def load_models(files: TaskFiles) -> tuple[Any, Any, Any, Any]:
    """Load the policy, its tokenizer, the reward model and its tokenizer from disk.

    Raises:
        CheckpointError: when a folder is missing or broken, or a head lacks its weights.
    """
    policy = _load(files.policy, AutoModelForCausalLM, "the policy (task.policy)")
    reward = _load(
        files.reward, AutoModelForSequenceClassification, "the reward model (task.reward)",
        num_labels=1,
    )  # fmt: skip
    return policy, load_tokenizer(files.policy), reward.eval(), load_tokenizer(files.reward)


def _load(folder: Path, loader: Any, what: str, **options: Any) -> Any:
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: {what} needs a checkpoint folder with a config.json")
    try:
        model, info = loader.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, dtype=torch.float32, **options
        )
    except loading_errors() as error:
        reason = first_line(error)
        if "ignore_mismatched_sizes" in reason:  # its text speaks to the caller, not to the user
            one = "one scalar head" if "num_labels" in options else "what its config says"
            reason = f"its weights have other shapes than {one} needs"
        raise CheckpointError(f"{folder}: {what} cannot be loaded ({reason})") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise CheckpointError(f"{folder}: {what} lacks the weights {missing}")
    return model


def build_trainer(config: Config, files: TaskFiles, output_dir: Path, width: int = 1) -> Any:
    """Make a GRPO or RLOO trainer that is ready to train; ecorl is not attached to it yet.

    Args:
        config: the run's configuration.
        files: models and prompts.
        output_dir: folder of the trainer's checkpoints.
        width: number of processes that train together, of which this is one; they share the rows
            of a step.

    Raises:
        ConfigError: for an algorithm that TRL lacks.
        CheckpointError: for a model that cannot be used.
        DataError: for a prompt file that cannot be used.
    """
    check_algorithm(config)
    prompts = [{"prompt": row["prompt"]} for row in read_rows(files.prompts, PROMPT_KEYS)]
    t = config.trainer
    check_gpus(width, config)
    torch.set_num_threads(t.num_threads)
    policy, tokenizer, reward, reward_tokenizer = load_models(files)
    on_cpu = not torch.cuda.is_available()
    make_args, make_trainer = TRAINERS[config.algorithm_enum]
    args = make_args(
        output_dir=str(output_dir),
        seed=config.seed,
        use_cpu=on_cpu,
        bf16=not on_cpu,
        max_steps=t.steps,
        per_device_train_batch_size=t.per_device_batch_size // width,
        num_generations=t.num_generations,
        max_completion_length=t.max_completion_length,
        learning_rate=t.learning_rate,
        lr_scheduler_type="constant",
        beta=t.beta,
        temperature=t.temperature,
        gradient_checkpointing=False,
        logging_steps=t.log_every,
        save_strategy="steps",
        save_steps=t.save_every,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        # All parameters take part in each step: DDP need not look for others, nor warn of it.
        ddp_find_unused_parameters=False,
    )
    trainer = make_trainer(
        model=policy,
        reward_funcs=[reward],
        args=args,
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer,
        reward_processing_classes=[reward_tokenizer],
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def skip_epochs(trainer: Any, config: Config, step: int) -> None:
    """Let a trainer that goes on in a later epoch take the prompts in the order of that epoch.

    TRL's sampler draws each epoch's order from one generator, and a trainer that goes on from a
    checkpoint would begin with the first epoch's.

    Args:
        trainer: of `build_trainer`, not trained yet.
        config: the run's configuration.
        step: the last step that was made.
    """
    n_unique = config.trainer.per_device_batch_size // config.trainer.num_generations
    n_epochs = step // (len(trainer.train_dataset) // n_unique)
    make = trainer._get_train_sampler

    def later(dataset: Any = None) -> Any:
        sampler = make(dataset)
        for _ in range(n_epochs):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    if n_epochs:
        trainer._get_train_sampler = later
