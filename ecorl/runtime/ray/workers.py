"""The accelerator workers of a run: actors that hold one unit of the resource ``FPGA`` each.

The resource stands for whatever accelerator the run has: a card, or the GPU or processor on which
the torch engine computes in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from ecorl.records import Role, stage_of
from ecorl.runtime.ray.cluster import RESTARTS, node_named, nodes, on_node
from ecorl.runtime.scheduling.lane_places import lane_place
from ecorl.runtime.scheduling.offload import OffloadLane
from ecorl.runtime.training import FrozenModel

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
