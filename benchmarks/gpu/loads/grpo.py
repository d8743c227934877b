"""TRL's GRPO with models of random weights, as the training parts of ``make gpu`` run it.

Nothing is downloaded: policy, reference and reward model are Llamas of random weights, the
tokenizer has one character for each token, and prompts are random. All rows of a step are of one
length, since the policy may not sample the tokens that end a row: each step of each run is then the
same amount of work, and equal seeds give equal steps.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    PreTrainedTokenizerFast,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from benchmarks.gpu.run.setting import Setting
from ecorl.config import Config
from ecorl.devices.llama import model_shape
from ecorl.records import ModelShape
from ecorl.runtime.training import TrainingSide
from roll_adapters.trl import attach as attaching
from roll_adapters.trl.attachment import TrlAttachment
from roll_adapters.trl.description import training_side

SPECIAL = ("<pad>", "<s>", "</s>")
"""Tokens 0 to 2. They are not sampled, so that no row ends early and none is read shorter."""

LOGGED = ("loss", "reward", "reward_std", "kl", "entropy", "grad_norm")
"""What is kept of the trainer's own log of each step."""

SEED = 7


@dataclass(frozen=True, slots=True)
class TrainingSize:
    """Models and batches of a training.

    Attributes:
        policy: size of the policy and of its reference, a name of `ecorl.devices.llama`.
        reward: size of the reward model, likewise; its vocabulary is no smaller.
        n_rows: rows of a step.
        n_generations: rows of one prompt.
        n_at_once: rows of a micro-batch of the training stage.
        n_prompt: tokens of a prompt.
        n_new: tokens that are generated for it.
    """

    policy: str
    reward: str
    n_rows: int
    n_generations: int
    n_at_once: int
    n_prompt: int
    n_new: int

    @property
    def n_tokens(self) -> int:
        """Tokens of a step, prompts included."""
        return self.n_rows * (self.n_prompt + self.n_new)

    def facts(self) -> dict[str, object]:
        """Describe the training, for the settings of a result."""
        return {
            **asdict(self),
            "weights": "random",
            "policy_shape": asdict(model_shape(self.policy)),
            "reward_shape": asdict(model_shape(self.reward, scalar_head=True)),
            "seed": SEED,
            "rows": "all of one length: the tokens that end a row are not sampled",
            "generation": "TRL's own, by transformers' generate; eager",
        }


FULL = TrainingSize("1b", "0.5b", 128, 8, 16, 192, 96)
"""A step of some 3 s on an H100, two thirds of them generation; it needs less than 40 GB."""

GEARED = replace(FULL, n_prompt=256, n_new=32)
"""The same rows with fewer new tokens: a step of some 2 s, for what changes its training stage."""

REHEARSED = TrainingSize("160k", "160k", 4, 2, 2, 8, 8)
"""A step of some hundredths of a second on a processor."""


def make_tokenizer(vocab_size: int) -> Any:
    """Make a tokenizer of one character a token: what is decoded encodes to the same tokens.

    Args:
        vocab_size: tokens, the special ones among them.
    """
    vocab = {token: i for i, token in enumerate(SPECIAL)}
    vocab |= {_character(i): i for i in range(len(SPECIAL), vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    pad, bos, eos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos,
        padding_side="left",
    )  # fmt: skip


def _character(token: int) -> str:
    """A character of a token's own, from the two planes that are for private use."""
    plane, place = divmod(token, 0xFFFE)
    return chr(0xF0000 + 0x10000 * plane + place)


def random_prompts(size: TrainingSize, n_prompts: int) -> list[str]:
    """Draw prompts of random tokens.

    Args:
        size: of the training.
        n_prompts: how many.
    """
    vocab_size = model_shape(size.policy).vocab_size
    rng = np.random.default_rng(SEED)
    tokens = rng.integers(len(SPECIAL), vocab_size, (n_prompts, size.n_prompt))
    return ["".join(_character(int(token)) for token in row) for row in tokens]


class GrpoTraining:
    """Makes equal trainers, one after the other.

    Args:
        setting: of the part.
        folder: for the policy, which TRL reads again as the reference; nothing else is kept there.
        size: of the training; a rehearsal has one of its own.
        dtype: of the policy's weights. The reference and the reward model are in BF16.
    """

    def __init__(
        self, setting: Setting, folder: Path, size: TrainingSize, dtype: torch.dtype
    ) -> None:
        self.size = REHEARSED if setting.is_rehearsal else size
        self._setting, self._folder, self._dtype = setting, folder, dtype
        self._tokenizer = make_tokenizer(model_shape(self.size.policy).vocab_size)
        self._prompts = random_prompts(self.size, 256)
        _random_model(AutoModelForCausalLM, self.size.policy, setting.device, torch.bfloat16,
                      self.size).save_pretrained(folder)  # fmt: skip

    def trainer(self, n_steps: int) -> Any:
        """Make a trainer with models of its own; the same each time.

        Args:
            n_steps: that it is to train.
        """
        size, device = self.size, self._setting.device
        policy = _random_model(AutoModelForCausalLM, size.policy, device, self._dtype, size)
        policy.config._name_or_path = str(self._folder)
        reward = _random_model(
            AutoModelForSequenceClassification,
            size.reward,
            device,
            torch.bfloat16,
            size,
            num_labels=1,
        )
        reward.config._name_or_path = "reward"
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=[reward.eval()],
            args=self._arguments(n_steps),
            train_dataset=Dataset.from_list([{"prompt": text} for text in self._prompts]),
            processing_class=self._tokenizer,
            reward_processing_classes=[self._tokenizer],
        )
        for callback in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
        return trainer

    def _arguments(self, n_steps: int) -> Any:
        size = self.size
        return GRPOConfig(
            output_dir=str(self._folder / "checkpoints"),
            seed=SEED,
            use_cpu=self._setting.is_rehearsal,
            bf16=True,
            # Of the reference, which TRL loads: else it has the type of the policy's weights.
            model_init_kwargs=None if self._dtype is torch.bfloat16 else {"dtype": "bfloat16"},
            max_steps=n_steps,
            per_device_train_batch_size=size.n_at_once,
            gradient_accumulation_steps=size.n_rows // size.n_at_once,
            num_generations=size.n_generations,
            max_completion_length=size.n_new,
            generation_kwargs={"suppress_tokens": list(range(len(SPECIAL)))},
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            beta=0.04,
            temperature=1.0,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )


def _random_model(
    kind: Any, name: str, device: torch.device, dtype: torch.dtype, size: TrainingSize, **extra: Any
) -> Any:
    """A Llama whose weights follow from the seed, made on its device."""
    shape = model_shape(name)
    torch.manual_seed(SEED)
    with device:
        return kind.from_config(llama_config(shape, size, **extra), dtype=dtype)


def llama_config(shape: ModelShape, size: TrainingSize, **extra: Any) -> Any:
    """Describe a model to transformers.

    Args:
        shape: of the model.
        size: of the training.
        **extra: further settings.
    """
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=size.n_prompt + size.n_new,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **extra,
    )


class StepClock(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Notes the end of each step and what the trainer logged of it.

    A step ends when its log is written, ecorl's part of it included, and the device has done all
    that was launched. It has to be added after ecorl is attached.

    Args:
        setting: of the part.

    Attributes:
        ends_s: end of each step, monotonic s.
        rows: the `LOGGED` values of each step.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.ends_s: list[float] = []
        self.rows: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Note that a step is over."""
        if not logs or "loss" not in logs:  # that of the end of the training
            return
        self._setting.synchronize()
        self.ends_s.append(time.monotonic())
        self.rows.append({key: float(logs[key]) for key in LOGGED if key in logs})

    @property
    def spans_s(self) -> list[tuple[float, float]]:
        """Begin and end of each step but the first, monotonic s."""
        return list(zip(self.ends_s, self.ends_s[1:], strict=False))


def logged(rows: Sequence[Mapping[str, float]], key: str) -> list[float | None]:
    """One logged value by step; None where it is no number, which JSON does not know.

    Args:
        rows: of a `StepClock`.
        key: one of `LOGGED`.
    """
    return [row[key] if math.isfinite(row[key]) else None for row in rows]


@contextmanager
def attached(
    trainer: Any, config: Config, run_dir: Path, setting: Setting
) -> Iterator[TrlAttachment]:
    """Attach ecorl to a trainer for a block; the record ends with the training or the block.

    Args:
        trainer: not yet training.
        config: of the run.
        run_dir: of its record.
        setting: of the part. In a rehearsal the trainer computes on the processor and its energy is
            read as if it computed on the GPU.
    """
    module: Any = attaching
    describe = module.training_side
    if setting.is_rehearsal:
        module.training_side = _as_on_gpu
    try:
        attachment = module.attach(trainer, config, run_dir=run_dir)
    finally:
        module.training_side = describe
    try:
        yield attachment
    finally:
        attachment.detach()


def _as_on_gpu(trainer: Any, config: Config, run_dir: Path | None) -> TrainingSide:
    return replace(training_side(trainer, config, run_dir), device="cuda")


def free(setting: Setting) -> None:
    """Give back what a trainer held, which its callbacks and hooks point to in circles.

    Args:
        setting: of the part.
    """
    gc.collect()
    if not setting.is_rehearsal:
        torch.cuda.empty_cache()
