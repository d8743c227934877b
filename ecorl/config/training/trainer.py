"""``[trainer]``: the settings of the RL trainer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictFloat, StrictInt, model_validator

from ecorl.config.base import MANY, Model
from ecorl.config.mistakes import RefusedValue


class TrainerConfig(Model):
    """Settings of the RL trainer; names follow TRL."""

    steps: StrictInt = Field(60, ge=1, le=MANY, description="optimizer steps")
    per_device_batch_size: StrictInt = Field(
        64, ge=2, le=1_000_000, description="completions per step, of all processes together"
    )
    num_generations: StrictInt = Field(
        8, ge=2, le=1_000_000, description="completions per prompt (group size)"
    )
    max_completion_length: StrictInt = Field(16, ge=1, le=4096, description="tokens")
    learning_rate: StrictFloat = Field(1e-4, gt=0, description="peak learning rate")
    beta: StrictFloat = Field(0.02, ge=0, description="KL coefficient; 0 needs no reference")
    temperature: StrictFloat = Field(1.0, gt=0, description="sampling temperature")
    num_threads: StrictInt = Field(1, ge=1, le=1024, description="torch threads of the trainer")
    save_every: StrictInt = Field(20, ge=1, le=MANY, description="steps between checkpoints")
    log_every: StrictInt = Field(1, ge=1, le=MANY, description="steps between logged metrics")
    widths: tuple[Annotated[StrictInt, Field(ge=1, le=64)], ...] = Field(
        (1,),
        min_length=1,
        description="numbers of training processes that may be chosen between, rising; the first "
        "is begun with, and each divides per_device_batch_size",
    )

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
