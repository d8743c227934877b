"""``[task]``: the models and prompts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictInt

from ecorl.config.base import Model, SomePath


class ArithmeticTask(Model):
    """A small arithmetic task whose policy, reward model, prompts and pairs are made and cached."""

    type: Literal["arithmetic"] = "arithmetic"
    cache_dir: SomePath = Field(
        Path("~/.cache/ecorl/tasks"),
        description="folder in which the models and prompts are kept once they are made",
    )
    n_eval: StrictInt = Field(
        256,
        ge=16,
        le=4096,
        description="number of held-out prompts, answered before and after the training",
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
