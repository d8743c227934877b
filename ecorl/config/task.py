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
        Path("~/.cache/ecorl/tasks"), description="folder in which prepared checkpoints are kept"
    )
    n_eval: StrictInt = Field(
        256, ge=16, le=4096, description="held-out prompts for before and after"
    )


class FilesTask(Model):
    """The user's own checkpoints and prompts."""

    type: Literal["files"] = "files"
    policy: SomePath = Field(description="Hugging Face checkpoint folder of the policy")
    reward: SomePath = Field(description="checkpoint folder of the reward model (scalar head)")
    prompts: SomePath = Field(description='JSON lines with a "prompt" string, one a line')
    eval_prompts: SomePath | None = Field(None, description="held-out prompts, same form")
    pairs: SomePath | None = Field(
        None, description='held-out preference pairs: "prompt", "chosen", "rejected", one a line'
    )


Task = Annotated[ArithmeticTask | FilesTask, Field(discriminator="type")]
