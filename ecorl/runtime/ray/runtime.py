"""`RayRuntime`: makes the actors of a run over a Ray cluster; handles for other processes."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.config import Config, RayRuntimeConfig
from ecorl.edi import EdiMatrix
from ecorl.engines.lanes.threaded import error_of
from ecorl.errors import ConfigError, EngineTimeout
from ecorl.ledger import Ledger, node_file
from ecorl.records import DeviceKind, Role, stage_of
from ecorl.runtime.equipment.accelerator import accelerator_profile
from ecorl.runtime.equipment.hardware import card_power, gpu_path, source_elsewhere, stays_on_gpu
from ecorl.runtime.equipment.role_places import RolePlaces, far_places, far_roles
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.kept_models import dtype_objection, warn
from ecorl.runtime.protocol import RecordWriter
from ecorl.runtime.ray import cluster
from ecorl.runtime.ray.link import ANSWER_S, SchedulerLink
from ecorl.runtime.ray.monitor import MonitorActor, MonitorPlan
from ecorl.runtime.ray.node_records import left_over, node_folder, run_token
from ecorl.runtime.ray.remote import RemoteRecord, RemoteRuntime
from ecorl.runtime.ray.scheduler import SchedulerActor, SchedulerFacts, SchedulerPlan
from ecorl.runtime.ray.workers import RESTART_S, START_S, PlacedWorker, make_workers
from ecorl.runtime.training import FrozenModel, KeptModel, TrainerMachine, TrainingSide
from ecorl.telemetry.sources.specs import SourceSpec


@dataclass(frozen=True, slots=True)
class RuntimeHandle:
    """Tells where a run's scheduler is; it can be pickled, and holds no lock and no thread.

    Attributes:
        scheduler: name of the scheduler's actor.
        namespace: Ray namespace in which it has this name.
    """

    scheduler: str
    namespace: str

    @classmethod
    def of_run(cls, ledger: Path, attempt: int, namespace: str) -> RuntimeHandle:
        """The handle of a run's attempt, which need not have started yet.

        Args:
            ledger: the head's record.
            attempt: number of the attempt.
            namespace: of the run's actors.
        """
        return cls(f"ecorl-scheduler-{run_token(ledger)}-{attempt}", namespace)

    def open(self, training: TrainingSide) -> RemoteRuntime:
        """Take part in the run, from a process that has joined the Ray cluster.

        Decisions are shared with all other processes by the handles of iterations. To close the
        runtime ends nothing: the process that started the run ends it.

        Args:
            training: what the framework's adapter says of this process.

        Raises:
            ConfigError: when there is no such run, or this machine is none of it.
            EngineError: when its scheduler does not answer.
        """
        try:
            actor = ray.get_actor(self.scheduler, namespace=self.namespace)
        except ValueError as error:
            allowed = "the name of a run's scheduler: the run has ended, or never began"
            raise ConfigError("scheduler", self.scheduler, allowed) from error
        try:
            facts: SchedulerFacts = ray.get(actor.facts.remote(), timeout=ANSWER_S)
        except RayError as error:
            raise EngineTimeout(f"{self.scheduler} does not answer: {error}") from error
        home = facts.nodes.get(ray.get_runtime_context().get_node_id())
        if home is None:
            # Nothing meters it for this run: what a stage drew here would be unknown.
            here, known = cluster.own_node().name, sorted(facts.nodes.values())
            raise ConfigError("node", here, f"a machine of the run: {', '.join(known)}")
        own = replace(training, node=home, models={**facts.models, **training.models})
        return RemoteRuntime(facts.config, own, SchedulerLink(actor), facts.engines)


_FINISH_S = 70.0
"""Longest wait for the end of one of a run's actors, s. Invented: a monitor that hangs is given a
minute, and its machine's record a few seconds more."""


class RayRuntime(RemoteRuntime):
    """Measures and places the stages of a training over the machines of a Ray cluster.

    Args:
        config: the run's configuration, with ``runtime.type = "ray"``.
        ledger: the run's record, open; it is closed here, and the scheduler goes on with it.
        training: what the framework's adapter says of its processes.
        edi: a matrix to go on with (a resumed run).
        before: what earlier attempts of the run have drawn.

    Raises:
        UserError: for a profile, policy, engine or cluster that cannot be used.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        training: TrainingSide,
        *,
        edi: EdiMatrix | None = None,
        before: RunTotals | None = None,
    ) -> None:
        if not isinstance(config.runtime, RayRuntimeConfig):
            raise ConfigError("runtime.type", config.runtime.type, "ray")
        # Its actors have folders of their own.
        super().__init__(config.anchored(), training, SchedulerLink(None), {})
        self._ray = config.runtime
        self._gpu = gpu_path(config, training)
        self._card = accelerator_profile(config)
        self._edi, self._before = edi, before
        self._path, self._attempt = ledger.path, ledger.attempt
        self._token = run_token(ledger.path)
        self._ledger = ledger
        self._scheduler: Any = None
        self._plan_ref: Any = None  # Ray hands it to an actor that it starts anew
        self._made: list[Any] = []
        self._has_joined = False
        self._names: dict[str, str] = {}
        self._started = self._closed = self._ended = False

    # ------------------------------------------------------------ life

    @property
    def is_head(self) -> bool:
        """Whether this process keeps the record: it made the scheduler, which does."""
        return True

    @property
    def record(self) -> RecordWriter:
        """The run's record; to close it ends the run's actors too."""
        if self._scheduler is None:
            return self._ledger
        return RemoteRecord(self._link, self._end)

    def start(self) -> None:
        """Make the actors, load the engines and start sampling. See `Runtime`."""
        if self._started:
            return
        self._started = True
        self._has_joined = cluster.connect(self._ray, len(self._moved()))
        try:
            with cluster.ended_on_error(self._made):
                plan = self._plan()
                # One writer at a time: from here on the scheduler keeps the record.
                self._ledger.close()
                self._start_scheduler(plan)
        except BaseException:
            self._scheduler = None  # it was ended: there is nobody to close
            self._leave()
            raise
        # An exception that ends the training must not lose the last executions.
        atexit.register(self._end)

    def _plan(self) -> SchedulerPlan:
        """Make workers and monitors, and put together what the scheduler has to know."""
        home = cluster.own_node()
        self.training = replace(self.training, node=home.name)
        models = self._moved()
        cluster.check_accelerators(len(models), self._ray.patience_s)
        reserved = self.training.cards
        workers = make_workers(self.config, self._ray, models, self._made, reserved)
        self._engines = {worker.role: worker.model.folder for worker in workers}
        trainers = self._trainers(home)
        places = self._far_places(trainers)
        there = {node.name: node for node in cluster.nodes()}
        names = dict.fromkeys([home.name, *trainers, *places, *(w.node for w in workers)])
        if self.training.device == "none":
            # A driver's processes may be on any machine, and their clocks have to be known.
            names |= dict.fromkeys(there)
        sources = {name: self._sources(name, home, trainers, places) for name in names}
        monitors = tuple(
            self._monitor(there[name], name == home.name, sources[name], workers, places.get(name))
            for name in names
        )
        # Each worker has a card of its own, and the costs of waiting for one follow.
        devices = self.config.devices.model_copy(update={"n_accelerators": max(1, len(workers))})
        return SchedulerPlan(
            config=self.config.model_copy(update={"devices": devices}),
            path=self._path,
            training=replace(self.training.without_fence(), kept=self._kept()),
            gpu=replace(self._gpu, roles=self._gpu.roles.with_far(places)),
            card=self._card,
            edi_json=self._edi.to_json() if self._edi is not None else None,
            before=self._before,
            workers=tuple(workers),
            monitors=monitors,
            left_over=left_over(self._path, self._attempt),
        )

    def _moved(self) -> dict[Role, FrozenModel]:
        """The models that the policy may move to a worker."""
        return {
            role: frozen
            for role, frozen in self.training.frozen.items()
            if not stays_on_gpu(self.config.placement.policy, stage_of(role))
            and dtype_objection(self.config.engine, frozen.dtype) is None
        }

    def _kept(self) -> dict[Role, KeptModel]:
        """The models that the policy may move, and that no engine can take."""
        kept = dict(self.training.kept)
        for role, frozen in self.training.frozen.items():
            reason = dtype_objection(self.config.engine, frozen.dtype)
            if reason is not None:
                kept[role] = frozen.kept(reason)
        policy = self.config.placement.policy
        return {r: own for r, own in kept.items() if not stays_on_gpu(policy, stage_of(r))}

    def _trainers(self, home: cluster.ClusterNode) -> dict[str, TrainerMachine]:
        """The other machines of the trainer's processes, by their names in the cluster."""
        found = {}
        self._names = {home.host: home.name}
        for host, machine in self.training.machines.items():
            self._names[host] = cluster.node_of_host(host).name
            found[self._names[host]] = machine
        return found

    def _far_places(self, trainers: Mapping[str, TrainerMachine]) -> dict[str, RolePlaces]:
        """The devices of roles on other machines, as these machines' NVML names them."""
        wanted = far_roles(self.config, self.training)
        found = {}
        for name, roles in wanted.items():
            gpus = cluster.gpus_of(name, roles, self._ray.patience_s)
            own = trainers[name].gpu_uuids if name in trainers else ()
            found[name] = far_places(self.config, name, roles, gpus, own)
        return found

    def _sources(
        self,
        name: str,
        home: cluster.ClusterNode,
        trainers: Mapping[str, TrainerMachine],
        places: Mapping[str, RolePlaces],
    ) -> list[SourceSpec]:
        """Where the power of a machine's devices is read, but for cards."""
        if name == home.name:
            return self._gpu.sources
        found = []
        if name in trainers:
            found.append(source_elsewhere(self.config, self._gpu, self.training, trainers[name]))
        source = places[name].source if name in places else None
        return found if source is None else [*found, source]

    def _monitor(
        self,
        node: cluster.ClusterNode,
        is_home: bool,
        sources: list[SourceSpec],
        workers: list[PlacedWorker],
        places: RolePlaces | None,
    ) -> tuple[MonitorPlan, Any]:
        cards = card_power(self.config)
        if cards is not None and any(worker.node == node.name for worker in workers):
            sources = [*sources, cards]
        folder = self._path.parent if is_home else node_folder(self._token)
        plan = MonitorPlan(
            node=node.name,
            node_id=node.node_id,
            sources=tuple(sources),
            telemetry=self.config.telemetry,
            path=folder / node_file(node.name, self._attempt),
            run_id=f"{self.config.name}-{self.config.seed}",
            attempt=self._attempt,
            raw_samples=self.config.ledger.raw_samples,
            profiles={
                DeviceKind.GPU: self._gpu.profile,
                DeviceKind.CPU: self._gpu.profile,
                DeviceKind.FPGA: self._card,
            },
            roles=self._gpu.roles if is_home else places or RolePlaces(),
        )
        actor = (
            ray.remote(MonitorActor)
            .options(
                num_cpus=0, max_restarts=cluster.RESTARTS, scheduling_strategy=cluster.on_node(node)
            )
            .remote(plan)
        )
        self._made.append(actor)
        return plan, actor

    def machine_name(self, host: str) -> str:
        """Name of a machine of the trainer in device ids and in the record. See `Runtime`."""
        return self._names.get(host, host)

    def handle(self) -> RuntimeHandle:
        """What another process of the cluster needs to take part in this run; after `start`."""
        return RuntimeHandle.of_run(self._path, self._attempt, self._ray.namespace)

    def _start_scheduler(self, plan: SchedulerPlan) -> None:
        # Held here: Ray needs it again when it starts the actor anew.
        self._plan_ref = ray.put(plan)
        # Waits at the barrier stand beside everything else, which keeps its order.
        groups = {"waits": 8, "ends": 8}
        remote: Any = ray.remote(concurrency_groups=groups)
        actor = (
            remote(SchedulerActor)
            .options(
                name=self.handle().scheduler,
                namespace=self._ray.namespace,
                num_cpus=0,
                max_restarts=cluster.RESTARTS,
                scheduling_strategy=cluster.on_node(cluster.own_node()),
            )
            .remote(self._plan_ref)
        )
        self._made.append(actor)
        self._scheduler = actor
        self._link = SchedulerLink(actor)
        fault = ray.get(actor.start.remote(False), timeout=START_S + self._ray.patience_s)
        if fault is not None:
            raise error_of(fault)
        facts: SchedulerFacts = ray.get(actor.facts.remote(), timeout=self._ray.patience_s)
        self._engines = dict(facts.engines)
        warn(facts.kept, self._gpu.profile)

    def close(self) -> None:
        """Record what waits for readings, fetch the machines' records, end the engines."""
        if self._closed:
            return
        self._closed = True
        if self._scheduler is None:
            self._ledger.close()
            return
        # One that is being started anew just now has to fetch the machines' records.
        self._link.await_up(RESTART_S + ANSWER_S)
        self._link.drain(ANSWER_S)
        self._count_sender()
        self._link.ask("finish", str(self.clock.time), timeout_s=_FINISH_S * len(self._made))

    def _end(self) -> None:
        """End the record and all actors; Ray ends them by SIGKILL, so nothing may be left."""
        if self._ended:
            return
        self._ended = True
        atexit.unregister(self._end)
        self.close()
        if self._scheduler is not None and ray.is_initialized():
            self._link.drain(ANSWER_S)
            self._link.ask("close_record", timeout_s=60.0)
            cluster.end(self._made)
        self._leave()

    def _leave(self) -> None:
        self._link.close()
        if self._has_joined and ray.is_initialized():
            ray.shutdown()
