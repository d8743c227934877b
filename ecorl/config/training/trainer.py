"""``[trainer]``: the settings of the RL trainer."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from ecorl.config.base import MANY, Model
from ecorl.config.mistakes import RefusedValue


class TrainerConfig(Model):
    """The trainer that `ecorl run` makes; names follow TRL."""

    of_any_trainer: ClassVar[frozenset[str]] = frozenset(
        {"adaptive_micro_batch", "micro_batch_tokens"}
    )
    """Keys that a trainer takes which the user has made."""

    steps: StrictInt = Field(60, ge=1, le=MANY, description="number of optimizer steps")
    per_device_batch_size: StrictInt = Field(
        64,
        ge=2,
        le=1_000_000,
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
    beta: StrictFloat = Field(
        0.02,
        ge=0,
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
    evaluate_every: StrictInt = Field(
        0,
        ge=0,
        le=MANY,
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
    micro_batch_tokens: StrictInt | None = Field(
        None,
        ge=1,
        le=MANY,
        description="tokens of such a micro-batch at most, padding included, and never more than "
        "the trainer's own pass has; a row that is longer is alone; not set: chosen for each "
        "batch, so that less padding pays for more passes",
    )

    @model_validator(mode="after")
    def _tokens_belong_to_packing(self) -> TrainerConfig:
        if self.micro_batch_tokens is not None and not self.adaptive_micro_batch:
            allowed = "left out without trainer.adaptive_micro_batch"
            raise RefusedValue("micro_batch_tokens", self.micro_batch_tokens, allowed)
        return self

    @model_validator(mode="after")
    def _widths_rise(self) -> TrainerConfig:
        if any(one >= other for one, other in zip(self.widths, self.widths[1:], strict=False)):
            allowed = "a list of whole numbers that rise, such as [1, 2, 4]"
            raise RefusedValue("widths", list(self.widths), allowed)
        return self

    @model_validator(mode="after")
    def _widths_divide_the_batch(self) -> TrainerConfig:
        n_rows = self.per_device_batch_size
        odd = [width for width in self.widths if n_rows % width]
        if odd:
            allowed = f"a list of divisors of trainer.per_device_batch_size = {n_rows}"
            widths = RefusedValue("widths", list(self.widths), allowed)
            allowed = f"a multiple of {odd[0]}, which is one of trainer.widths"
            raise RefusedValue("per_device_batch_size", n_rows, allowed, widths)
        return self
