"""Brings a model's checkpoint to a machine: by a path that is there, or once through a copy.

A checkpoint is told by the hashes of its files. A machine that finds the same files under the same
path (a shared file system, a model hub's cache) reads them there. Otherwise they are written once
into a folder of the machine, which all workers on it share.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ecorl.errors import CheckpointError
from ecorl.files import lockable, write_whole

_LOCK_S = 900.0
"""Longest wait for another worker that writes the same copy, s. Invented: a disk takes minutes."""


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """The files of a checkpoint folder.

    Attributes:
        folder: the folder, as its owner names it.
        files: SHA-256 of each file by its name.
    """

    folder: Path
    files: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """SHA-256 over the names and hashes of all files: it stands for the checkpoint."""
        lines = "".join(f"{name} {own}\n" for name, own in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()


def manifest_of(folder: Path) -> CheckpointManifest:
    """Hash the files of a checkpoint folder; folders in it, and hidden files, are not of it.

    Args:
        folder: the checkpoint.

    Raises:
        CheckpointError: when it is no folder, or cannot be read.
    """
    try:
        files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
        return CheckpointManifest(folder.absolute(), tuple((p.name, _digest(p)) for p in files))
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read ({error})") from error


def files_of(manifest: CheckpointManifest) -> Iterator[tuple[str, bytes]]:
    """Read the files of a checkpoint one after the other.

    Args:
        manifest: of a folder on this machine.

    Raises:
        CheckpointError: when one cannot be read.
    """
    for name, _ in manifest.files:
        try:
            yield name, (manifest.folder / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{manifest.folder / name}: cannot be read ({error})") from error


def find_here(manifest: CheckpointManifest) -> Path | None:
    """The folder on this machine that holds a checkpoint, or None.

    Args:
        manifest: of the checkpoint.
    """
    for folder in (manifest.folder, copy_folder(manifest)):
        if holds(folder, manifest):
            return folder
    return None


def holds(folder: Path, manifest: CheckpointManifest) -> bool:
    """Whether a folder has all files of a checkpoint, byte for byte by their hashes.

    Args:
        folder: on this machine.
        manifest: of the checkpoint.
    """
    try:
        return all(_digest(folder / name) == own for name, own in manifest.files)
    except OSError:
        return False


def write_copy(manifest: CheckpointManifest, files: Mapping[str, bytes]) -> Path:
    """Write a checkpoint into a folder of this machine, once for all workers on it.

    Args:
        manifest: of the checkpoint.
        files: contents by name.

    Raises:
        CheckpointError: when it cannot be written, or a file is not what the manifest says.
    """
    target = copy_folder(manifest)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with FileLock(lockable(target / ".lock"), timeout=_LOCK_S):
            if not holds(target, manifest):
                for name, own in manifest.files:
                    if hashlib.sha256(files[name]).hexdigest() != own:
                        raise CheckpointError(f"{manifest.folder / name}: changed on its way")
                    write_whole(target / name, files[name])
    except Timeout:
        told = f"another process has been writing it for {_LOCK_S:g} s: end it and try again"
        raise CheckpointError(f"{target}: {told}") from None
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written ({error})") from error
    return target


def copy_folder(manifest: CheckpointManifest) -> Path:
    """The folder of this machine for the copy of a checkpoint.

    Args:
        manifest: of the checkpoint.
    """
    return Path(tempfile.gettempdir()) / "ecorl-checkpoints" / manifest.digest[:32]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
