"""Where checkpoints go, and the models that a node must have. Imports no torch: it is a task."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def download_model(model_name_or_path: str, local_dir: str | None = None) -> str:
    """See that this node has a model; one in a local folder is there already."""
    if not Path(model_name_or_path).is_dir():
        raise FileNotFoundError(f"no such model: {model_name_or_path}")
    return model_name_or_path


def get_latest_ckpt(checkpoint_config: dict[str, Any] | None) -> str | None:
    """The newest checkpoint that was copied; None without one."""
    folder = Path((checkpoint_config or {}).get("output_dir") or "")
    found = {int(path.name.rpartition("-")[2]): path for path in folder.glob("checkpoint-*")}
    return str(found[max(found)]) if found else None


class CheckpointManager:
    """Copies what processes have saved into one folder a checkpoint; removes nothing."""

    def __init__(self, checkpoint_config: dict[str, Any] | None = None) -> None:
        config = checkpoint_config or {}
        if config and config.get("type") != "file_system":
            raise ValueError(f"no such type of checkpoints: {config.get('type')}")
        self.output_dir = config.get("output_dir")

    def upload(self, ckpt_id: str, local_state_path: str, **_: Any) -> None:
        if self.output_dir is not None:
            target = Path(self.output_dir) / ckpt_id
            shutil.copytree(local_state_path, target, dirs_exist_ok=True)
