"""Checkpoints of a run: the framework's folders, and ecorl's own state in them.

A checkpoint is complete, and can be resumed from, once ecorl's state (`STATE_FILE`) lies in it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ecorl.edi import EdiMatrix
from ecorl.errors import DataError, RunError
from ecorl.files import write_whole
from ecorl.records import FaultEvent, FaultKind
from ecorl.runtime.protocol import Runtime

logger = logging.getLogger(__name__)

STATE_FILE = "ecorl_state.json"
"""Written last into a checkpoint folder: without it the checkpoint is not complete."""

_FLUSH_S = 1.0
"""Patience with the disk at a checkpoint, s: long enough for a healthy one."""


def record_checkpoint(
    runtime: Runtime, checkpoint: Path, step: int, gears: Mapping[str, Any] | None = None
) -> None:
    """Record that the framework has saved a checkpoint, and complete it with ecorl's own state.

    A disk that is full or slow costs the checkpoint's completeness, never training time: a resume
    then takes an older one.

    Args:
        runtime: of the run.
        checkpoint: the framework's folder; one that is not there (another process saves it) is
            only recorded.
        step: after which it was saved.
        gears: what the run knows of its gears, in values that JSON can hold; None without them.
    """
    runtime.settle()
    if runtime.is_head:
        complete_checkpoint(runtime, checkpoint, step, gears)


def complete_checkpoint(
    runtime: Runtime, checkpoint: Path, step: int, gears: Mapping[str, Any] | None = None
) -> None:
    """Record a checkpoint and complete it, from whichever process of the run saved it.

    Args:
        runtime: of the run.
        checkpoint: the framework's folder; one that is not there is only recorded.
        step: after which it was saved.
        gears: what the run knows of its gears; None without them.
    """
    ledger = runtime.record
    edi = runtime.edi_json()
    ledger.edi(edi)
    ledger.checkpoint(step, str(checkpoint))
    # Rows are not lost by not waiting, and the training must not stand because another program
    # holds the file.
    ledger.flush(timeout_s=_FLUSH_S)
    if not checkpoint.is_dir():
        return
    try:
        write_state(checkpoint, step, edi, gears)
    except OSError as error:
        detail = f"{checkpoint / STATE_FILE} cannot be written ({error})"
        ledger.fault(FaultEvent(step, FaultKind.CHECKPOINT_INCOMPLETE, "checkpoint", detail))
        logger.warning("%s: a resume takes an older checkpoint", detail)


def write_state(
    checkpoint: Path, iteration: int, edi_json: str, gears: Mapping[str, Any] | None = None
) -> None:
    """Write ecorl's own state into a checkpoint, which is complete from then on; atomic.

    Args:
        checkpoint: its folder.
        iteration: step after which it was saved.
        edi_json: the EDI matrix, from `Runtime.edi_json`.
        gears: what the run knows of its gears; None without them.

    Raises:
        OSError: when it cannot be written; the checkpoint then counts as incomplete.
    """
    state: dict[str, Any] = {"iteration": iteration, "edi": json.loads(edi_json)}
    if gears is not None:
        state["gears"] = dict(gears)
    write_whole(checkpoint / STATE_FILE, json.dumps(state))


def read_state(checkpoint: Path) -> tuple[int, EdiMatrix]:
    """Read iteration and EDI matrix of a complete checkpoint.

    Raises:
        RunError: when the file is missing or broken.
    """
    try:
        data = json.loads((checkpoint / STATE_FILE).read_text("utf-8"))
        return int(data["iteration"]), EdiMatrix.from_json(json.dumps(data["edi"]))
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise RunError(f"{checkpoint / STATE_FILE} is missing or broken ({error})") from error


def read_gears(checkpoint: Path | None) -> Mapping[str, Any]:
    """Read what a run knew of its gears at a checkpoint; empty where it had none, or is broken.

    Args:
        checkpoint: its folder; None: the run begins.
    """
    if checkpoint is None:
        return {}
    try:
        found = json.loads((checkpoint / STATE_FILE).read_text("utf-8"))["gears"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def newest_checkpoint(folder: Path) -> Path | None:
    """Find the newest complete checkpoint below a folder, or None."""
    complete = [
        (step, path)
        for path in folder.glob("checkpoint-*")
        if (step := _step_of_name(path)) is not None and (path / STATE_FILE).is_file()
    ]
    return max(complete)[1] if complete else None


def remove_checkpoints_after(folder: Path, step: int) -> None:
    """Remove checkpoints of later steps: they were cut off while they were written.

    Args:
        folder: holds folders named ``checkpoint-<step>``.
        step: the step that is gone on from; 0 removes all.
    """
    for path in folder.glob("checkpoint-*"):
        later = _step_of_name(path)
        if later is not None and later > step:
            shutil.rmtree(path)


def step_of(checkpoint: Path | None) -> int:
    """Step of a checkpoint folder by its name; 0 without one."""
    return (_step_of_name(checkpoint) or 0) if checkpoint else 0


def _step_of_name(path: Path) -> int | None:
    number = path.name.rsplit("-", 1)[-1]
    return int(number) if number.isdigit() else None
