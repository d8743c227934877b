"""ROLL's pipelines: their classes, and what ecorl does in each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ecorl.errors import ConfigError
from roll_adapters.roll.config.convert import Kind, reads_images
from roll_adapters.roll.config.settings import RollConfig


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline of ROLL's.

    Attributes:
        config: path of its config's class.
        pipeline: path of its class.
        moves: whether stages can leave their GPUs; else all that the driver dispatches is measured.
    """

    config: str
    pipeline: str
    moves: bool = False


PIPELINES: dict[Kind, Pipeline] = {
    "rlvr": Pipeline(
        "roll.pipeline.rlvr.rlvr_config.RLVRConfig",
        "roll.pipeline.rlvr.rlvr_pipeline.RLVRPipeline",
        moves=True,
    ),
    "agentic": Pipeline(
        "roll.pipeline.agentic.agentic_config.AgenticConfig",
        "roll.pipeline.agentic.agentic_pipeline.AgenticPipeline",
    ),
    "dpo": Pipeline(
        "roll.pipeline.dpo.dpo_config.DPOConfig", "roll.pipeline.dpo.dpo_pipeline.DPOPipeline"
    ),
    "distill": Pipeline(
        "roll.pipeline.distill.distill_config.DistillConfig",
        "roll.pipeline.distill.distill_pipeline.DistillPipeline",
    ),
    "sft": Pipeline(
        "roll.pipeline.sft.sft_config.SFTConfig", "roll.pipeline.sft.sft_pipeline.SFTPipeline"
    ),
}


_WITH_IMAGES = Pipeline(
    "roll.pipeline.rlvr.rlvr_config.RLVRConfig",
    "roll.pipeline.rlvr.rlvr_vlm_pipeline.RLVRVLMPipeline",
)
"""RLVR of models that see: it computes its reference by another way."""


def pipeline_of(read: RollConfig) -> Pipeline:
    """The pipeline that a config is for; ``pipeline_cls`` in it names another class.

    Args:
        read: the config.

    Raises:
        ConfigError: when its keys tell none.
    """
    if read.kind is None:
        allowed = "a config for RLVR, agentic training, DPO, distillation or fine-tuning"
        raise ConfigError("--config_name", read.file.name, allowed, read.file)
    found = PIPELINES[read.kind]
    if read.kind == "rlvr" and reads_images(read.data):
        found = _WITH_IMAGES
    named = read.data.get("pipeline_cls")
    if not isinstance(named, str) or named == found.pipeline:
        return found
    # A class of the user's own: which of ROLL's functions it calls is not known.
    return Pipeline(found.config, named)


def load(path: str) -> Any:
    """Import a class by its path.

    Args:
        path: module and name, with dots.

    Raises:
        ConfigError: when it is not there.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            "pipeline_cls", path, f"a class that can be imported ({error})"
        ) from error
