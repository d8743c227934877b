"""The processes that train together, as torchrun or accelerate started them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ecorl.config import Config
from ecorl.errors import ConfigError
from ecorl.records import Stage
from ecorl.runtime.equipment.hardware import gpu_ids, stays_on_gpu
from ecorl.runtime.processes.ranked import RankedRuntime
from ecorl.runtime.processes.ranks import Ranks, TorchRanks
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.training import TrainerMachine, TrainingSide, this_node
from roll_adapters.trl.description import gpu_uuids

REPLICATED = ("NO", "MULTI_CPU", "MULTI_GPU")
"""Accelerate's names of training in which each process has whole models."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One training process: its id, its machine and its GPUs by UUID."""

    pid: int
    node: str
    gpu_uuids: tuple[str, ...]


class TrainerProcesses:
    """The processes of one trainer; made on all of them together.

    Args:
        trainer: the TRL trainer.
        config: the resolved configuration.

    Raises:
        ConfigError: on every process, for a trainer whose processes cannot be followed.
    """

    def __init__(self, trainer: Any, config: Config) -> None:
        _check_replicated(trainer, config)
        own = ProcessFacts(os.getpid(), this_node(), _uuids(trainer))
        several = trainer.accelerator.num_processes > 1
        self.ranks: Ranks | None = TorchRanks() if several else None
        self._all = self.ranks.all_gather(own) if self.ranks is not None else [own]
        self._own = own
        nodes = sorted({one.node for one in self._all})
        if len(nodes) > 1 and config.runtime.type != "ray":
            allowed = f"ray: the trainer's processes are on several machines, {', '.join(nodes)}"
            raise ConfigError("runtime.type", config.runtime.type, allowed)

    @property
    def is_head(self) -> bool:
        """Whether this process keeps the run's record."""
        return self.ranks is None or self.ranks.rank == 0

    @property
    def prefix(self) -> str:
        """What the ids of this process's rows begin with."""
        return "" if self.ranks is None else f"r{self.ranks.rank}."

    def facts(self) -> dict[str, str]:
        """What the record's head says of the processes."""
        return {} if self.ranks is None else {"n_processes": str(self.ranks.size)}

    def described(self, training: TrainingSide) -> TrainingSide:
        """Add to a trainer's description the processes and GPUs of its machines.

        Args:
            training: of this process alone.
        """
        by_node: dict[str, list[ProcessFacts]] = defaultdict(list)
        for one in self._all:
            by_node[one.node].append(one)
        machines = {node: _machine(them) for node, them in by_node.items()}
        here = machines.pop(self._own.node)
        return replace(
            training,
            pids=here.pids,
            gpu_uuids=here.gpu_uuids or training.gpu_uuids,
            machines=machines,
        )

    def runtime(self, training: TrainingSide, head: Runtime | None) -> Runtime:
        """Make this process's runtime.

        Args:
            training: its description.
            head: the runtime that decides, on the process that keeps the record.
        """
        if self.ranks is None and head is not None:
            return head
        if self.ranks is None:
            raise ValueError("one process alone is the head")
        own = gpu_ids(self._own.gpu_uuids) if self._own.gpu_uuids else None
        return RankedRuntime(self.ranks, training, head, own)


def _machine(processes: Sequence[ProcessFacts]) -> TrainerMachine:
    uuids = dict.fromkeys(uuid for one in processes for uuid in one.gpu_uuids)
    return TrainerMachine(tuple(one.pid for one in processes), tuple(uuids))


def _uuids(trainer: Any) -> tuple[str, ...]:
    on_gpu = trainer.accelerator.device.type == "cuda"
    return gpu_uuids(trainer) if on_gpu else ()


def _check_replicated(trainer: Any, config: Config) -> None:
    """Refuse to offload models of which each process has a part only: no folder would hold them."""
    kind = str(trainer.accelerator.distributed_type).rpartition(".")[2]
    policy = config.placement.policy
    if kind in REPLICATED or all(
        stays_on_gpu(policy, stage) for stage in (Stage.REWARD, Stage.REFERENCE)
    ):
        return
    allowed = (
        f"static, with reward = reference = gpu (not offloaded): the trainer shards its "
        f"models ({kind}), and an engine loads whole ones"
    )
    raise ConfigError("placement.policy.type", policy.type, allowed)
