"""An engine in an actor of a Ray cluster, which holds one unit of the resource ``FPGA``.

The class itself knows nothing of Ray: `ecorl.runtime.ray` makes an actor of it. Errors travel as
`Fault` values, since not every exception survives being pickled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ecorl.child_process import SIMULATOR, name_process
from ecorl.engines.containment import EngineBoundary
from ecorl.engines.lanes.cluster.weights import CheckpointManifest, find_here, write_copy
from ecorl.engines.lanes.messages import EngineSpec, Fault, Ready, fault_of
from ecorl.engines.lanes.threaded import Result, answer, told_of
from ecorl.engines.protocol import InferenceEngine, Refresh, ScoreBatch
from ecorl.engines.registry import make_engine

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

    outcome: Result | Ready | Fault
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

        def load() -> Ready:
            engine = self._with(manifest, calls_done)
            facts = (engine.name, engine.device, engine.stage, engine.model, engine.row_invariant)
            return Ready(*facts, *told_of(engine))

        return self._timed(load)

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

    def _timed(self, call: Callable[[], Result | Ready]) -> WorkerAnswer:
        """Make a call to the engine; the answer, with its begin and end."""
        if self._spec.simulates_card:
            name_process(SIMULATOR)  # Ray gives the process the name of each call
        begin_s = time.monotonic()
        outcome: Result | Ready | Fault | None = None
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
