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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from trl import GRPOConfig, GRPOTrainer

from benchmarks.gpu.run.setting import Setting
from ecorl.config import Config, validate_config
from ecorl.devices.llama import model_shape
from ecorl.runtime.training import TrainingSide
from roll_adapters.trl import attach as attaching
from roll_adapters.trl.description import training_side

SPECIAL = ("<pad>", "<s>", "</s>")
"""Tokens 0 to 2. They are not sampled, so that no row ends early and none is read shorter."""

LOGGED = ("loss", "reward", "reward_std", "kl", "entropy", "grad_norm")
"""What is kept of the trainer's own log of each step."""

SEED = 7

WARM_UP, BLOCK_STEPS = 1, 3
"""Steps of a block that are not measured, and those that are."""

CLOSING_S, REHEARSED_CLOSING_S = 5.0, 0.5
"""Time that is kept for reports and the last figures, s."""


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
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos,
        padding_side="left",
    )  # fmt: skip


def _character(token: int) -> str:
    """A character of a token's own, from the two planes that are for private use."""
    plane, place = divmod(token, 0xFFFE)
    return chr(0xF0000 + 0x10000 * plane + place)


@dataclass(frozen=True, slots=True)
class Run:
    """One training that is over.

    Attributes:
        rows: what the trainer logged of each step.
        ends_s: end of each step, monotonic s.
        weights: of the policy at the end; empty where they were not asked for.
        start_s: when the trainer began to be made, monotonic s.
        wall_s: of all of it, s.
    """

    rows: list[dict[str, float]]
    ends_s: list[float]
    weights: list[torch.Tensor]
    start_s: float
    wall_s: float

    @property
    def spans_s(self) -> list[tuple[float, float]]:
        """Begin and end of each step behind the warm-up, monotonic s."""
        return list(pairwise(self.ends_s[WARM_UP - 1 :]))

    @property
    def step_s(self) -> list[float]:
        """Time of each step behind the warm-up, s."""
        return [end_s - begin_s for begin_s, end_s in self.spans_s]

    @property
    def span_s(self) -> tuple[float, float]:
        """Begin and end of the steps behind the warm-up, monotonic s."""
        return self.ends_s[WARM_UP - 1], self.ends_s[-1]

    def logged(self, key: str) -> list[float | None]:
        """One logged value by step; None where it is no number, which JSON does not know.

        Args:
            key: one of `LOGGED`.
        """
        return [row[key] if math.isfinite(row[key]) else None for row in self.rows]


class GrpoTraining:
    """Makes equal trainers, one after the other, and runs them.

    Args:
        setting: of the part.
        folder: for the policy, which TRL reads again as the reference, and for records.
        size: of the training; a rehearsal has one of its own.
        dtype: of the policy's weights. The reference and the reward model are in BF16.

    Attributes:
        closing_s: time that is kept for what follows the trainings, s.
    """

    def __init__(
        self, setting: Setting, folder: Path, size: TrainingSize, dtype: torch.dtype
    ) -> None:
        self.size = REHEARSED if setting.is_rehearsal else size
        self.setting, self.folder, self._dtype = setting, folder, dtype
        self.closing_s = REHEARSED_CLOSING_S if setting.is_rehearsal else CLOSING_S
        self._run_s = self._block_s = 0.0
        rng, vocab_size = np.random.default_rng(SEED), model_shape(self.size.policy).vocab_size
        self._tokenizer = make_tokenizer(vocab_size)
        tokens = rng.integers(len(SPECIAL), vocab_size, (256, self.size.n_prompt))
        self._prompts = ["".join(_character(int(token)) for token in row) for row in tokens]
        reference = self._model(transformers.AutoModelForCausalLM, self.size.policy, torch.bfloat16)
        reference.save_pretrained(folder / "policy")

    def run(
        self,
        n_steps: int,
        config: Config | None,
        name: str,
        *,
        prepare: Callable[[Any], object] = lambda trainer: None,
        weights: bool = False,
    ) -> Run:
        """Train once, from the same seed each time.

        Args:
            n_steps: of the training.
            config: with which ecorl is attached; None: it is not.
            name: of the run's record.
            prepare: changes the trainer before ecorl is attached.
            weights: whether to keep the policy's weights.
        """
        start_s, setting, run_dir = time.monotonic(), self.setting, self.folder / name
        trainer = self.trainer(n_steps)
        prepare(trainer)
        context = nullcontext() if config is None else attached(trainer, config, run_dir, setting)
        with context:
            clock = StepClock(setting)
            trainer.add_callback(clock)
            trainer.train()
        kept = [p.detach().clone() for p in trainer.model.parameters()] if weights else []
        del trainer, context
        free(setting)
        self._run_s = time.monotonic() - start_s
        return Run(clock.rows, clock.ends_s, kept, start_s, self._run_s)

    def block(
        self,
        config: Config | None,
        name: str,
        prepare: Callable[[Any], object] = lambda trainer: None,
    ) -> Run:
        """Train one block: the warm-up and the measured steps.

        Args:
            config: as of `run`.
            name: of the run's record.
            prepare: as of `run`.
        """
        found = self.run(WARM_UP + BLOCK_STEPS, config, name, prepare=prepare)
        self._block_s = found.wall_s
        return found

    def has_room(self, n_blocks: int) -> bool:
        """Whether so many blocks end in time, by the last one, else by the last run.

        Args:
            n_blocks: how many.
        """
        need_s = n_blocks * (self._block_s or self._run_s)
        return self.setting.has_room(1.05 * need_s + self.closing_s)

    def trainer(self, n_steps: int) -> Any:
        """Make a trainer with models of its own; the same each time.

        Args:
            n_steps: that it is to train.
        """
        policy = self._model(transformers.AutoModelForCausalLM, self.size.policy, self._dtype)
        policy.config._name_or_path = str(self.folder / "policy")
        kind: Any = transformers.AutoModelForSequenceClassification
        reward = self._model(kind, self.size.reward, torch.bfloat16, num_labels=1)
        reward.config._name_or_path = "reward"
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=[reward.eval()],
            args=self._arguments(n_steps),
            train_dataset=Dataset.from_list([{"prompt": text} for text in self._prompts]),
            processing_class=self._tokenizer,
            reward_processing_classes=[self._tokenizer],
        )
        for callback in (transformers.PrinterCallback, transformers.ProgressCallback):
            trainer.remove_callback(callback)
        return trainer

    def _arguments(self, n_steps: int) -> Any:
        size = self.size
        return GRPOConfig(
            output_dir=str(self.folder / "checkpoints"),
            seed=SEED,
            use_cpu=self.setting.is_rehearsal,
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

    def _model(self, kind: Any, name: str, dtype: torch.dtype, **extra: Any) -> Any:
        """A Llama whose weights follow from the seed, made on its device."""
        shape = model_shape(name)
        config = transformers.LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.n_layers,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=self.size.n_prompt + self.size.n_new,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            **extra,
        )
        torch.manual_seed(SEED)
        with self.setting.device:
            return kind.from_config(config, dtype=dtype)


class StepClock(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not followed
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


def attached_config(name: str, *, gears: object = None, **nvml: float) -> Config:
    """The config of a run to which ecorl is attached: all stages on the GPU path, power by NVML.

    Args:
        name: of the run.
        gears: table of the training stage's gears, if it has any.
        **nvml: further settings of ``telemetry.gpu``.
    """
    tables = {
        "name": name,
        "placement": {"policy": {"type": "static"}, "profile_both_paths": False},
        "telemetry": {"gpu": {"type": "nvml", **nvml}},
    }
    return validate_config(tables if gears is None else {**tables, "gears": gears})


@contextmanager
def attached(trainer: Any, config: Config, run_dir: Path, setting: Setting) -> Iterator[None]:
    """Attach ecorl to a trainer for a block; the record ends with the training or the block.

    Args:
        trainer: not yet training.
        config: of the run.
        run_dir: of its record.
        setting: of the part. In a rehearsal the trainer computes on the processor and its energy is
            read as if it computed on the GPU.
    """
    module: Any = attaching
    if setting.is_rehearsal:
        module.training_side = _as_on_gpu
    try:
        attachment = module.attach(trainer, config, run_dir=run_dir)
    finally:
        module.training_side = training_side
    try:
        yield
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
