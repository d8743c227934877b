"""The processes of a job: on which machines they are, and which GPUs are theirs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError
from ecorl.runtime.training import MachineDevices

_ANSWER_S = 1800.0
"""Longest wait for a job's processes, s. Invented: vLLM answers when its engine is loaded."""


@dataclass(frozen=True, slots=True)
class ActorFacts:
    """What an actor of a job says of its process.

    Attributes:
        node: Ray's id of its machine.
        pid: its number there.
        gpus: its GPUs, by index or UUID as NVML knows them; empty without any.
        titles: NVML's names of them, as far as it tells them.
    """

    node: str
    pid: int
    gpus: tuple[str, ...]
    titles: tuple[str, ...]


def tell(actor: object) -> ActorFacts:
    """Tell the facts of the process in which this runs.

    Args:
        actor: not looked at; Ray passes the actor.
    """
    node, pid = ray.get_runtime_context().get_node_id(), os.getpid()
    # Ray hides the GPUs of other actors by this variable, and leaves it empty without any.
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    found = _known_to_nvml(names) if names else {}
    return ActorFacts(node, pid, tuple(found), tuple(filter(None, found.values())))


def _known_to_nvml(names: Sequence[str]) -> dict[str, str]:
    """NVML's titles of some GPUs, empty where one tells none; no GPU on a machine without NVML."""
    driver = NvmlDriver()
    try:
        driver.open()
        return {name: driver.find(name).name for name in names}
    except DriverError:
        return {}
    finally:
        driver.close()


def answered(refs: Sequence[Any]) -> list[ActorFacts]:
    """Wait for what processes tell.

    Args:
        refs: references of `tell`'s answers.

    Returns:
        The answers; none where one of the processes fails, so that the devices stay unknown and
        their energy missing.
    """
    try:
        found: list[ActorFacts] = ray.get(list(refs), timeout=_ANSWER_S)
    except RayError:
        return []
    return found


def by_machine(
    processes: Sequence[ActorFacts], names: Mapping[str, str]
) -> tuple[MachineDevices, ...]:
    """Put the GPUs of processes together by machine, each GPU once.

    Args:
        processes: that serve a stage.
        names: of the machines, by Ray's ids.
    """
    there: dict[str, list[ActorFacts]] = {}
    for process in processes:
        there.setdefault(names.get(process.node, process.node), []).append(process)
    found = []
    for name, own in sorted(there.items()):
        gpus = dict.fromkeys(gpu for process in own for gpu in process.gpus)
        # Where NVML is silent: one a process, as most frameworks start them.
        found.append(MachineDevices(name, tuple(gpus), len(gpus) or len(own)))
    return tuple(found)
