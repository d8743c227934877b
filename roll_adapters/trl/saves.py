"""Saves of a trainer that cost their checkpoint and nothing else when they fail."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from ecorl.records import FaultEvent, FaultKind
from ecorl.runtime.processes.ranks import Ranks
from ecorl.runtime.protocol import Runtime

logger = logging.getLogger(__name__)

SAVE_ERRORS = (OSError, RuntimeError, SafetensorError)
"""What a save raises on a full disk: torch and safetensors write by themselves and have errors of
their own."""


def save_or_note(
    save: Callable[[], object], checkpoint: Path, step: int, runtime: Runtime, ranks: Ranks | None
) -> bool:
    """Save a checkpoint; where that fails on any process, remove it and record the fault.

    Collective: all processes come to the same result, and none leaves before all have written.

    Args:
        save: the trainer's own save.
        checkpoint: the folder that it writes.
        step: after which it is saved.
        runtime: of the run.
        ranks: exchange with the other processes; None where there are none.

    Returns:
        Whether the checkpoint was saved.
    """
    reason: str | None = None
    try:
        save()
    except SAVE_ERRORS as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    reasons = [reason] if ranks is None else ranks.all_gather(reason)
    found = next((one for one in reasons if one is not None), None)
    if found is None:
        return True
    if runtime.is_head:
        shutil.rmtree(checkpoint, ignore_errors=True)
        detail = f"{checkpoint} cannot be saved ({found})"
        runtime.record.fault(
            FaultEvent(step, FaultKind.CHECKPOINT_INCOMPLETE, "checkpoint", detail)
        )
        logger.warning("%s: a resume takes an older checkpoint", detail)
    return False
