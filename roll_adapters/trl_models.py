"""Frozen models of a TRL trainer as checkpoint folders, and shapes of its models."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ecorl.engines import torch_loading
from ecorl.records import ModelShape

logger = logging.getLogger(__name__)


def shape_of(model: Any) -> ModelShape | None:
    """Counts of a model for the cost model, or None when its config does not tell."""
    try:
        return torch_loading.shape_of(model)
    except (AttributeError, TypeError, ZeroDivisionError):
        logger.warning("the shape of %s is not known: its cost stays unknown", type(model).__name__)
        return None


def frozen_checkpoint(model: Any, spare: Path) -> Path:
    """A checkpoint folder that holds exactly the weights of a loaded model.

    The folder that the model was loaded from, when its weights on disk are still those in memory;
    otherwise the model is saved to `spare`. An engine that loads the folder therefore never
    scores with other weights than the trainer's own model.
    """
    source = Path(str(getattr(model.config, "_name_or_path", "") or ""))
    if (source / "config.json").is_file() and _same_weights(model, source):
        return source
    logger.info("%s differs from its checkpoint on disk; saved to %s", type(model).__name__, spare)
    spare.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(spare)
    return spare


def _same_weights(model: Any, folder: Path) -> bool:
    """Whether every weight on disk equals the one in memory, bit for bit in the model's dtype."""
    state = dict(model.state_dict())
    seen = 0
    try:
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict
                    mine = state.get(name)
                    if mine is None:
                        continue
                    seen += 1
                    disk = tensors.get_tensor(name).to(mine.dtype)
                    if disk.shape != mine.shape or not torch.equal(disk, mine.cpu()):
                        return False
    except (OSError, SafetensorError):
        return False
    tied = len(getattr(model, "_tied_weights_keys", None) or ())
    return seen >= len(state) - tied and seen > 0
