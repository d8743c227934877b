"""The accelerator workers of a run: actors that hold one unit of the resource ``FPGA`` each.

The resource stands for whatever accelerator the run has: a card, or the GPU or processor on which
the torch engine computes in its place.

`ModelChanges` is kept on disk for a scheduler that is started anew: an engine that answered with
weights that the trainer has no more would be wrong without a fault. What is retired must stay so,
and what was refreshed must be loaded as it is now.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ecorl.config import Config, RayRuntimeConfig, TorchEngineConfig
from ecorl.engines.lanes.cluster.engine import RayEngine, engine_error
from ecorl.engines.lanes.cluster.worker import RESOURCE, AcceleratorWorker, WorkerLife
from ecorl.engines.registry import engine_spec
from ecorl.engines.torch.loading import HOST
from ecorl.errors import EngineError
from ecorl.files import write_whole
from ecorl.records import Role, stage_of
from ecorl.runtime.ray.cluster import RESTARTS, node_named, nodes, on_node
from ecorl.runtime.scheduling.offload import OffloadLane, lane_place
from ecorl.runtime.training import FrozenModel, KeptModel

START_S = 600.0
"""Longest wait for a worker's model, with a first build of the kernels, s; as for an engine in a
process of this machine."""

RESTART_S = 60.0
"""Longest wait of a scheduler that was started anew for a worker's model, s. Invented: the worker
has loaded it long ago, or is being started anew itself."""


class WorkerActor(AcceleratorWorker):
    """An accelerator worker that can tell on which machine of the cluster it runs."""

    def machine(self) -> str:
        """Ray's id of its machine."""
        return str(ray.get_runtime_context().get_node_id())


@dataclass(frozen=True, slots=True)
class PlacedWorker:
    """A worker of a run.

    Attributes:
        actor: its handle.
        role: whose rows it answers.
        model: the model that it loads.
        node: name of its machine.
        card: number of its simulated card on that machine: each worker has one of its own.
    """

    actor: Any
    role: Role
    model: FrozenModel
    node: str
    card: int

    def lane(self, config: Config, max_faults: int, start_s: float) -> OffloadLane:
        """Load its engine, and make the lane to it.

        Args:
            config: the run's configuration.
            max_faults: faults in a row that quarantine the engine.
            start_s: longest wait for the model, s.

        Raises:
            UserError: as raised in the worker, e.g. `CheckpointError`.
            EngineError: when it does not start.
        """
        engine = RayEngine(self.actor, stage_of(self.role), self.model.folder, start_s)
        return OffloadLane(engine, max_faults, lane_place(config, self.node, engine, self.card))


def make_workers(
    config: Config,
    runtime: RayRuntimeConfig,
    models: dict[Role, FrozenModel],
    made: list[Any],
    reserved: Mapping[Role, Any],
) -> list[PlacedWorker]:
    """Make one worker a role, on the machine that the config names or on any with a card.

    Args:
        config: the run's configuration.
        runtime: its table ``[runtime]``.
        models: by role.
        made: takes the handles of the actors as they are made.
        reserved: placement groups of roles whose card is reserved.

    Raises:
        ConfigError: for a machine or an engine that is not there.
        EngineError: when a worker cannot be placed in time.
    """
    actors: dict[Role, Any] = {}
    # Those whose machine is named come first: another one must not take the card there.
    for role in sorted(models, key=lambda role: not _is_named(config, role)):
        model = models[role]
        spec = engine_spec(
            config.engine,
            model.folder,
            stage_of(role),
            config.devices.accelerator,
            dtype=model.dtype,
        )
        options: dict[str, Any] = {
            "num_cpus": 0,
            "resources": {RESOURCE: 1},
            "max_restarts": RESTARTS,
            "runtime_env": _environment(config),
        }
        place = config.place(role)
        if place is not None and place.node is not None:
            options["scheduling_strategy"] = on_node(node_named(place.node, f"places.{role}.node"))
        elif role in reserved:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(reserved[role])
        actors[role] = ray.remote(WorkerActor).options(**options).remote(spec, spec.threads)
        made.append(actors[role])
        if _is_named(config, role):
            _life(actors[role], role, runtime.patience_s)
    names = {node.node_id: node.name for node in nodes()}
    placed: list[PlacedWorker] = []
    cards = Counter[str]()
    for role, actor in actors.items():
        life = _life(actor, role, runtime.patience_s)
        node = names.get(life.machine)
        if node is None:
            raise EngineError(f"the accelerator worker of {role} is on a machine that is lost")
        placed.append(PlacedWorker(actor, role, models[role], node, cards[node]))
        cards[node] += 1
    return placed


def _environment(config: Config) -> dict[str, Any]:
    """The environment of a worker: one that computes on a GPU must see its machine's GPUs.

    Ray hides them from an actor that holds none of its resource ``GPU``. A worker holds ``FPGA``.
    """
    offload = config.engine.offload
    if not isinstance(offload, TorchEngineConfig) or offload.device == HOST:
        return {}
    return {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}


def _is_named(config: Config, role: Role) -> bool:
    """Whether the config names the machine of a role's worker."""
    place = config.place(role)
    return place is not None and place.node is not None


def _life(actor: Any, role: Role, patience_s: float) -> WorkerLife:
    """Wait until a worker has been placed.

    Raises:
        EngineError: when it is not in time.
    """
    try:
        life: WorkerLife = ray.get(actor.life.remote(), timeout=patience_s)
    except RayError as error:
        what = f"the accelerator worker of {role} was not placed"
        raise engine_error(error, what) from error
    return life


def make_lanes(
    workers: list[PlacedWorker], config: Config, start_s: float
) -> tuple[dict[Role, OffloadLane], dict[Role, BaseException]]:
    """Load all engines, beside each other.

    Args:
        workers: of the run.
        config: its configuration.
        start_s: longest wait for a model, s.

    Returns:
        The lanes, and why the other engines did not start.
    """
    max_faults = config.placement.max_faults
    with ThreadPoolExecutor(max_workers=max(1, len(workers))) as pool:
        loading = {w.role: pool.submit(w.lane, config, max_faults, start_s) for w in workers}
    failed = {role: error for role, f in loading.items() if (error := f.exception()) is not None}
    return {role: f.result() for role, f in loading.items() if role not in failed}, failed


FILE = ".models.json"
"""In the run folder, while the run is under way."""


@dataclass(slots=True)
class ModelChanges:
    """The roles whose model is another one than at the start.

    Attributes:
        refreshed: checkpoint folder of each model that was refreshed.
        retired: why a role went back to the GPU path for the rest of the run.
        kept: models that had no engine from the start, whose workers were ended.
    """

    refreshed: dict[Role, Path] = field(default_factory=dict)
    retired: dict[Role, str] = field(default_factory=dict)
    kept: dict[Role, KeptModel] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> ModelChanges:
        """Read what was kept; nothing where no file is.

        Args:
            folder: the run folder.

        Raises:
            OSError: when there is a file that cannot be read.
        """
        try:
            told = json.loads((folder / FILE).read_text("utf-8"))
        except FileNotFoundError:
            return cls()
        refreshed = {role: Path(path) for role, path in told["refreshed"].items()}
        kept = {role: KeptModel(**own) for role, own in told["kept"].items()}
        return cls(refreshed, dict(told["retired"]), kept)

    def write(self, folder: Path) -> None:
        """Keep them.

        Args:
            folder: the run folder.

        Raises:
            OSError: when they cannot be written.
        """
        refreshed = {role: str(path) for role, path in self.refreshed.items()}
        kept = {role: asdict(own) for role, own in self.kept.items()}
        told = {"refreshed": refreshed, "retired": self.retired, "kept": kept}
        write_whole(folder / FILE, json.dumps(told))

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove what an attempt has kept: the next one begins with its trainer's models.

        Args:
            folder: the run folder.
        """
        (folder / FILE).unlink(missing_ok=True)
