"""An engine in an actor of a Ray cluster, which holds one unit of the resource ``FPGA``.

The class itself knows nothing of Ray: `ecorl.runtime.ray` makes an actor of it. Errors travel as
`Fault` values, since not every exception survives being pickled.

A model's checkpoint is told by the hashes of its files. A machine that finds the same files under
the same path (a shared file system, a model hub's cache) reads them there. Otherwise they are
written once into a folder of the machine, which all workers on it share.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from ecorl.child_process import SIMULATOR, name_process
from ecorl.engines.lanes.threaded import EngineFacts, EngineSpec, Fault, Result, answer, fault_of
from ecorl.engines.protocol import InferenceEngine, Refresh, ScoreBatch
from ecorl.engines.registry import make_engine
from ecorl.engines.validate import EngineBoundary
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


RESOURCE = "FPGA"
"""The custom resource of Ray of which each accelerator worker holds one."""


@dataclass(frozen=True, slots=True)
class WorkerLife:
    """One life of a worker: it may be started anew, perhaps on another machine.

    Attributes:
        pid: its process.
        born_s: when it began, monotonic s of its machine.
        machine: id of its machine; empty where it cannot tell.
    """

    pid: int
    born_s: float
    machine: str = ""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What a worker answers.

    Attributes:
        outcome: the result, the facts of the engine that was loaded, or the fault.
        span_s: begin and end of the call, monotonic s of the worker's machine.
        life: of the worker that answers.
    """

    outcome: Result | EngineFacts | Fault
    span_s: tuple[float, float]
    life: WorkerLife


class AcceleratorWorker:
    """One engine in a process of its own, on whatever machine it was put.

    It may be started anew at any time, and then knows only what its constructor was told: each
    request names the checkpoint that it means, and the engine loads it when it has another.

    Args:
        spec: the engine to load; its checkpoint is told by each request.
        threads: threads of numeric libraries.
    """

    def __init__(self, spec: EngineSpec, threads: int = 1) -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = str(threads)
        self._spec = spec
        self._engine: InferenceEngine | None = None
        self._loaded = ""
        self._life = WorkerLife(os.getpid(), time.monotonic(), self.machine())

    def machine(self) -> str:
        """Id of its machine; empty: it cannot tell."""
        return ""

    def life(self) -> WorkerLife:
        """The life in which it is."""
        return self._life

    def has(self, manifest: CheckpointManifest) -> bool:
        """Whether a checkpoint is on this machine.

        Args:
            manifest: of the checkpoint.
        """
        return find_here(manifest) is not None

    def receive(self, manifest: CheckpointManifest, files: Mapping[str, bytes]) -> Fault | None:
        """Write a checkpoint that is not on this machine.

        Args:
            manifest: of the checkpoint.
            files: contents by name.

        Returns:
            What went wrong, or None.
        """
        with EngineBoundary() as boundary:
            write_copy(manifest, files)
        return None if boundary.error is None else fault_of(boundary.error)

    def load(self, manifest: CheckpointManifest, calls_done: int) -> WorkerAnswer:
        """Load the engine, unless it has this checkpoint already.

        Args:
            manifest: of the checkpoint.
            calls_done: calls made to earlier processes of this engine.
        """
        return self._timed(lambda: EngineFacts.of(self._with(manifest, calls_done)))

    def answer(
        self, batch: ScoreBatch, manifest: CheckpointManifest, calls_done: int
    ) -> WorkerAnswer:
        """Compute a batch with the weights of a checkpoint.

        Args:
            batch: the rows.
            manifest: of the checkpoint.
            calls_done: calls made to this engine before.
        """
        return self._timed(lambda: answer(self._with(manifest, calls_done), batch))

    def refresh(self, manifest: CheckpointManifest, calls_done: int) -> WorkerAnswer:
        """Take over the weights of a refreshed model.

        Args:
            manifest: of the checkpoint.
            calls_done: calls made to this engine before.
        """

        def refresh() -> Result:
            # One that was started anew meanwhile has no engine: it loads the new weights at once.
            engine = self._engine or self._with(manifest, calls_done)
            # Until then some of the weights may be new: a failure loads all of them anew.
            self._loaded = ""
            result = answer(engine, Refresh(_folder(manifest)))
            self._loaded = manifest.digest
            return result

        return self._timed(refresh)

    def _timed(self, call: Callable[[], Result | EngineFacts]) -> WorkerAnswer:
        """Make a call to the engine; the answer, with its begin and end."""
        if self._spec.simulates_card:
            name_process(SIMULATOR)  # Ray gives the process the name of each call
        begin_s = time.monotonic()
        outcome: Result | EngineFacts | Fault | None = None
        with EngineBoundary() as boundary:
            outcome = call()
        if boundary.error is not None or outcome is None:
            outcome = fault_of(boundary.caught())
        return WorkerAnswer(outcome, (begin_s, time.monotonic()), self._life)

    def close(self) -> None:
        """Release the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _with(self, manifest: CheckpointManifest, calls_done: int) -> InferenceEngine:
        """The engine with the weights of a checkpoint."""
        if self._engine is None or self._loaded != manifest.digest:
            self.close()
            spec = replace(self._spec, checkpoint=_folder(manifest))
            self._engine = make_engine(spec, calls_done=calls_done, own_process=True)
            self._loaded = manifest.digest
        return self._engine


def _folder(manifest: CheckpointManifest) -> Path:
    return find_here(manifest) or manifest.folder
