"""Models of a job on this machine."""

from __future__ import annotations

from pathlib import Path


def local_folder(name: str) -> Path | None:
    """Folder of a model on this machine: a path, or the hub's cache; None without one.

    Args:
        name: a path or the hub's name, as the framework takes it.
    """
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser().resolve()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError, OSError):
        return None
