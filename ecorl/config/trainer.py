"""``[task]``, ``[trainer]`` and ``[gears]``: what is trained, and in which formats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from ecorl.config.base import MANY, Model, SomePath
from ecorl.config.mistakes import RefusedValue
from ecorl.control import Gear


class ArithmeticTask(Model):
    """A small arithmetic task whose policy, reward model, prompts and pairs are made and cached."""

    type: Literal["arithmetic"] = "arithmetic"
    cache_dir: SomePath = Field(
        Path("~/.cache/ecorl/tasks"),
        description="folder in which the models and prompts are kept once they are made",
    )
    n_eval: Annotated[StrictInt, Field(ge=16, le=4096)] = Field(
        256, description="number of held-out prompts, answered before and after the training"
    )


class FilesTask(Model):
    """Your own checkpoints and prompts."""

    type: Literal["files"] = "files"
    policy: SomePath = Field(
        description="checkpoint folder of the policy that is trained (Hugging Face)"
    )
    reward: SomePath = Field(
        description="checkpoint folder of the reward model, with one scalar head"
    )
    prompts: SomePath = Field(description='JSON lines: {"prompt": "..."}')
    eval_prompts: SomePath | None = Field(
        None,
        description="held-out prompts in the same form, for a figure before and after the "
        'training; with "answer" right answers are counted too',
    )
    pairs: SomePath | None = Field(
        None,
        description='held-out preference pairs: {"prompt": "...", "chosen": "...", "rejected": '
        '"..."}; how many of them INT8 orders otherwise than float is reported',
    )


Task = Annotated[ArithmeticTask | FilesTask, Field(discriminator="type")]


class TrainerConfig(Model):
    """The trainer that `ecorl run` makes; names follow TRL."""

    of_any_trainer: ClassVar[frozenset[str]] = frozenset(
        {"adaptive_micro_batch", "micro_batch_tokens"}
    )
    """Keys that a trainer takes which the user has made."""

    steps: StrictInt = Field(60, ge=1, le=MANY, description="number of optimizer steps")
    per_device_batch_size: Annotated[StrictInt, Field(ge=2, le=1_000_000)] = Field(
        64,
        description="number of completions in a step, of all processes together; a multiple of "
        "num_generations",
    )
    num_generations: StrictInt = Field(
        8, ge=2, le=1_000_000, description="number of completions for each prompt (group size)"
    )
    max_completion_length: StrictInt = Field(
        16, ge=1, le=4096, description="longest completion, in tokens"
    )
    learning_rate: StrictFloat = Field(
        1e-4, gt=0, description="learning rate, a factor that stays the same in all steps"
    )
    beta: Annotated[StrictFloat, Field(ge=0)] = Field(
        0.02,
        description="factor of the KL penalty that keeps the policy near the reference; with 0 "
        "there is no reference stage",
    )
    temperature: StrictFloat = Field(
        1.0, gt=0, description="sampling temperature, a factor; lower is less random"
    )
    num_threads: StrictInt = Field(
        1, ge=1, le=1024, description="number of torch threads of the trainer"
    )
    save_every: StrictInt = Field(
        20, ge=1, le=MANY, description="number of steps between two checkpoints"
    )
    evaluate_every: Annotated[StrictInt, Field(ge=0, le=MANY)] = Field(
        0,
        description="number of steps between two held-out evaluations along training, beside those "
        "before and after it; they change nothing of the training; 0: none",
    )
    log_every: StrictInt = Field(
        1, ge=1, le=MANY, description="number of steps between two lines of the log"
    )
    widths: tuple[Annotated[StrictInt, Field(ge=1, le=64)], ...] = Field(
        (1,),
        min_length=1,
        description="numbers of training processes (widths) that [carbon.control] may choose "
        "between, rising; the run begins with the first; each divides per_device_batch_size",
    )
    adaptive_micro_batch: StrictBool = Field(
        False,
        description="pack rows of like length into micro-batches of even tokens, in scoring and in "
        "training: less padding is computed; batch and samples stay, numbers differ by their "
        "rounding; a TRL trainer of your own takes this key and the next too",
    )
    micro_batch_tokens: Annotated[StrictInt, Field(ge=1, le=MANY)] | None = Field(
        None,
        description="tokens of such a micro-batch at most, padding included, and never more than "
        "the trainer's own pass has; a row that is longer is alone; not set: chosen for each "
        "batch, so that less padding pays for more passes",
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> TrainerConfig:
        if self.micro_batch_tokens is not None and not self.adaptive_micro_batch:
            allowed = "left out without trainer.adaptive_micro_batch"
            raise RefusedValue("micro_batch_tokens", self.micro_batch_tokens, allowed)
        if any(one >= other for one, other in zip(self.widths, self.widths[1:], strict=False)):
            allowed = "a list of whole numbers that rise, such as [1, 2, 4]"
            raise RefusedValue("widths", list(self.widths), allowed)
        n_rows = self.per_device_batch_size
        odd = [width for width in self.widths if n_rows % width]
        if odd:
            allowed = f"a list of divisors of trainer.per_device_batch_size = {n_rows}"
            widths = RefusedValue("widths", list(self.widths), allowed)
            allowed = f"a multiple of {odd[0]}, which is one of trainer.widths"
            raise RefusedValue("per_device_batch_size", n_rows, allowed, widths)
        return self


class GearsConfig(Model):
    """Numeric formats of the training stage, and the limits within which they may be chosen.

    Generation, rewards and the reference keep the precision that the trainer has given them, and
    weights and moments stay as they are, in FP32: a shift between two steps loses nothing. Without
    ``allowed`` nothing of the training changes.
    """

    allowed: tuple[Gear, ...] = Field(
        (),
        description="gears that may be chosen; the run begins with the first; empty: the training "
        "keeps the format of the trainer",
    )
    simulate_fp8: StrictBool = Field(
        False, description="on a device without FP8 units round as FP8 does, which saves nothing"
    )
    optimizer: Literal["adaptive", "literal", "own"] = Field(
        "adaptive",
        description="adaptive: AdamW with smaller steps in a noisy gear; literal: the same by the "
        "formula of the CarbonGearRL paper as printed, which can diverge; own: that of the "
        "trainer",
    )
    measure_every: Annotated[StrictInt, Field(ge=0, le=MANY)] = Field(
        50,
        description="number of steps between two measurements of the noise and mismatch of a "
        "gear; 0: never",
    )
    noise_budget: Annotated[StrictFloat, Field(gt=0, le=1000)] | None = Field(
        None,
        description="largest mean excess of the variance of the gradient over that in BF16 (FP32 "
        "where BF16 is not allowed), over all tokens, as a share of it; it limits the share of "
        "FP8",
    )
    mismatch_limit: Annotated[StrictFloat, Field(gt=1, le=10)] = Field(
        1.05,
        description="largest mean ratio of token probabilities between trainer and rollout; a "
        "gear above it is barred until it is near again",
    )
    max_overflows: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        3,
        description="number of steps in a row that had to be computed anew after which a gear is "
        "given up for the run",
    )

    @property
    def is_on(self) -> bool:
        """Whether the training stage computes in a gear of this table."""
        return bool(self.allowed)

    @property
    def reference(self) -> Gear | None:
        """The gear that noise is held against; None without gears.

        It is the one in which a step is redone: BF16, or the first that is not of low precision.
        """
        others = [gear for gear in self.allowed if gear not in (Gear.FP8, Gear.FP16)]
        return Gear.BF16 if Gear.BF16 in others else next(iter(others), None)

    @model_validator(mode="after")
    def _keys_agree(self) -> GearsConfig:
        twice = [str(gear) for gear, n in Counter(self.allowed).items() if n > 1]
        if twice:
            raise RefusedValue("allowed", [str(gear) for gear in self.allowed], "each gear once")
        if self.allowed and all(gear in (Gear.FP8, Gear.FP16) for gear in self.allowed):
            allowed = "a list with BF16 or FP32, for when the others may not be chosen any more"
            raise RefusedValue("allowed", [str(gear) for gear in self.allowed], allowed)
        if self.noise_budget is not None and self.measure_every == 0:
            allowed = "above 0 with a noise_budget: the noise has to be measured"
            raise RefusedValue("measure_every", 0, allowed)
        if self.noise_budget is not None and Gear.FP8 not in self.allowed:
            allowed = "left out without FP8 in gears.allowed: it limits the share of FP8 alone"
            raise RefusedValue("noise_budget", self.noise_budget, allowed)
        return self
