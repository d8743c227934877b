"""``[trainer]``: the settings of the RL trainer."""

from __future__ import annotations

from pydantic import Field, StrictFloat, StrictInt

from ecorl.config.base import MANY, Model


class TrainerConfig(Model):
    """Settings of the RL trainer; names follow TRL."""

    steps: StrictInt = Field(60, ge=1, le=MANY, description="optimizer steps")
    per_device_batch_size: StrictInt = Field(
        64, ge=2, le=1_000_000, description="completions per step"
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
