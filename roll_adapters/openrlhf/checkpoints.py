"""Checkpoints of OpenRLHF: where they lie, from which step one goes on, and ecorl's state in them.

DeepSpeed keeps them in folders ``global_step<n>`` below ``<--ckpt.path>/_actor``, where a file
``latest`` names the one that ``--ckpt.load_enable`` takes. ecorl's own state lies in the same
folder, so that it goes when OpenRLHF removes the folder.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ecorl.edi import EdiMatrix
from ecorl.errors import RunError
from ecorl.runtime.checkpoints import STATE_FILE, complete_checkpoint, read_state
from ecorl.runtime.protocol import Runtime
from roll_adapters.openrlhf.flags import value_of

logger = logging.getLogger(__name__)

_STEP = re.compile(r"global_step([0-9]+)$")


def checkpoint_to_resume(args: Any) -> Path | None:
    """Find the checkpoint that OpenRLHF will go on from, or None for a fresh start.

    Args:
        args: OpenRLHF's flags, nested.
    """
    folder = Path(str(value_of(args, "ckpt.path", ""))) / "_actor"
    if not value_of(args, "ckpt.load_enable", False) or not folder.is_dir():
        return None
    try:
        return folder / (folder / "latest").read_text("utf-8").strip()
    except OSError:
        return None


def read_progress(checkpoint: Path) -> tuple[int, EdiMatrix | None]:
    """Read the step of a checkpoint, and the EDI matrix when ecorl completed it.

    Args:
        checkpoint: its folder.

    Raises:
        RunError: when the folder's name tells no step.
    """
    named = _STEP.search(checkpoint.name)
    if named is None:
        raise RunError(f"{checkpoint} does not tell its step: its name has no global_step<n>")
    step = int(named[1])
    if not (checkpoint / STATE_FILE).is_file():
        logger.warning("%s has no %s: the EDI matrix starts anew", checkpoint, STATE_FILE)
        return step, None
    return step, read_state(checkpoint)[1]


def record_saved(
    runtime: Runtime, args: Any, step: int, gears: Mapping[str, Any] | None = None
) -> bool:
    """Record the checkpoint of a step and complete it with ecorl's state, if there is one.

    Args:
        runtime: of the run.
        args: OpenRLHF's flags, nested.
        step: 1-based.
        gears: what the run knows of its gears; None without them.

    Returns:
        Whether the step has a checkpoint, complete with ecorl's state.
    """
    every = float(value_of(args, "ckpt.save_steps", -1))
    if every <= 0 or step % every or value_of(args, "ckpt.disable_ds", False):
        return False
    folder = _folder_of(args, step)
    complete_checkpoint(runtime, folder, step, gears)
    return (folder / STATE_FILE).is_file()


def _folder_of(args: Any, step: int) -> Path:
    return Path(str(value_of(args, "ckpt.path", ""))) / "_actor" / f"global_step{step}"
