"""`RuntimeHandle`: how a process that did not start a run takes part in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import ray
from ray.exceptions import RayError

from ecorl.errors import ConfigError, EngineTimeout
from ecorl.runtime.ray import cluster
from ecorl.runtime.ray.link import ANSWER_S, SchedulerLink
from ecorl.runtime.ray.node_records import run_token
from ecorl.runtime.ray.remote import RemoteRuntime
from ecorl.runtime.ray.scheduler import SchedulerFacts
from ecorl.runtime.training import TrainingSide


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
