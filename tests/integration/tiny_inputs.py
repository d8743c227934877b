"""Files and models that are not quite those of the tiny task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def rows_file(path: Path, *prompts: str) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def other_model(folder: Path, tiny_folder: Path, **changes: object) -> Path:
    """A copy of a tiny model whose config.json says something else."""
    shutil.copytree(tiny_folder, folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder
