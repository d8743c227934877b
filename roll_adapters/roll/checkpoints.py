"""Checkpoints of ROLL: from which step one goes on, and ecorl's state in them.

ROLL writes its pipeline's state into ``<output_dir>/pipeline/checkpoint-<n>/pipeline`` when step n,
0-based, is done, and uploads the folder above it where the config has ``checkpoint_config``. The
state of ecorl lies in that folder, so that it goes wherever the checkpoint goes.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from ecorl.edi import EdiMatrix
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import RunError
from ecorl.runtime.checkpoints import STATE_FILE, read_state

logger = logging.getLogger(__name__)

STATE = Path("pipeline") / "worker_state_pipeline.json"
"""ROLL's own state in a checkpoint; its key ``step`` is that of the last step done, 0-based."""


def progress_of(pipeline_config: Any) -> tuple[int | None, EdiMatrix | None]:
    """Steps that ROLL will have behind it, and the EDI matrix when ecorl completed the checkpoint.

    Args:
        pipeline_config: ROLL's.

    Returns:
        Both None for a fresh start.

    Raises:
        RunError: when the checkpoint cannot be read.
    """
    folder = checkpoint_of(pipeline_config)
    if folder is None:
        return None, None
    try:
        step = int(json.loads((folder / STATE).read_text("utf-8"))["step"]) + 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / STATE} does not tell its step ({error})") from error
    if not (folder / STATE_FILE).is_file():
        logger.warning("%s has no %s: the EDI matrix starts anew", folder, STATE_FILE)
        return step, None
    return step, read_state(folder)[1]


def checkpoint_of(pipeline_config: Any) -> Path | None:
    """The checkpoint that ROLL goes on from, on this machine; None for a fresh start.

    Args:
        pipeline_config: ROLL's.

    Raises:
        RunError: when it cannot be read.
    """
    asked = getattr(pipeline_config, "resume_from_checkpoint", False)
    if not asked:
        return None
    from roll.utils.checkpoint_manager import download_model, get_latest_ckpt

    if asked is True:
        asked = get_latest_ckpt(pipeline_config.checkpoint_config)
        if not asked:
            return None
    # The hub's client and ROLL's store of paths keep to no one family of errors.
    with EngineBoundary() as boundary:
        return Path(download_model(str(asked)))
    error = boundary.caught()
    why = " ".join(str(error).split())[:300] or type(error).__name__
    raise RunError(f"resume_from_checkpoint: {asked} cannot be read ({why})") from error
