"""The machines of a Ray cluster, and actors on them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ecorl.config import RayRuntimeConfig
from ecorl.config.devices import ADDRESSES, is_address
from ecorl.engines.lanes.cluster.engine import engine_error
from ecorl.engines.lanes.cluster.worker import RESOURCE
from ecorl.engines.lanes.threaded import Fault, error_of, fault_of
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import ConfigError
from ecorl.ledger import node_name
from ecorl.records import Role
from ecorl.runtime.equipment.role_places import NamedGpus, named_gpus
from ecorl.runtime.ray import ADDRESS
from ecorl.runtime.ray.reach import one_line, refusal
from ecorl.runtime.training import this_node

RESTARTS = -1
"""Ray starts an actor anew however often it ends; who asks too often is told by its caller."""


_ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Environment variable from which Ray takes the address where the config says ``auto``."""


class ClusterSilent(ConfigError):
    """A cluster that was named, or that Ray has found, does not answer in time."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of the cluster.

    Attributes:
        node_id: Ray's id.
        name: its name in device ids and in the run's record: the one that it was started with
            (``ray start --node-name``), else its address.
        host: its host name, as `this_node` spells it there.
        n_fpgas: units of the resource ``FPGA``.
    """

    node_id: str
    name: str
    host: str
    n_fpgas: float


def connect(config: RayRuntimeConfig, n_workers: int) -> bool:
    """Join the cluster, unless this process has already.

    Where the address is ``local`` it is the one that was started for this run, if there is one.

    Args:
        config: the table ``[runtime]``.
        n_workers: accelerator workers of the run.

    Returns:
        Whether this call has joined it, so that the caller leaves it again.

    Raises:
        ConfigError: when there is no cluster.
    """
    if ray.is_initialized():
        return False
    address, given = config.address, os.environ.get(_ADDRESS_VARIABLE, "")
    patience_s: float | None = config.patience_s
    if address == "auto" and given.startswith("ray://"):
        # What its machine draws would be taken for what a machine of the cluster does.
        allowed = f"{ADDRESSES}: a Ray client is on no machine of the cluster"
        raise ConfigError(_ADDRESS_VARIABLE, given, allowed)
    if address == "local" and ADDRESS in os.environ:
        # Who has started it for this run looks after it.
        address, patience_s = os.environ[ADDRESS], None
    join(
        address,
        n_workers,
        patience_s,
        namespace=config.namespace,
        log_to_driver=False,
        configure_logging=False,
        include_dashboard=False if address == "local" else None,
    )
    return True


def join(address: str, n_workers: int, patience_s: float | None = None, **options: Any) -> None:
    """Join a cluster, or start one where the address is ``local``.

    Args:
        address: see `RayRuntimeConfig`.
        n_workers: accelerator workers of the run. A cluster that is started for it has a place
            for each of them; one that is there says itself what it has.
        patience_s: longest wait for the answer of a cluster that is there, s; None asks it without
            a limit.
        **options: of ``ray.init``.

    Raises:
        ClusterSilent: when it does not answer in time.
        ConfigError: when there is no cluster.
    """
    key = "runtime.address"
    if address == "auto" and (given := os.environ.get(_ADDRESS_VARIABLE)):
        # Ray would take it too.
        key, address = _ADDRESS_VARIABLE, given
        if not is_address(address) and not address.startswith("ray://"):
            allowed = f"{ADDRESSES} of the cluster's head, or unset"
            if "://" in address:
                allowed += "; at http:// it takes jobs, it is joined at the port of ray start"
            raise ConfigError(key, address, allowed)
    if address == "local" and n_workers:
        options["resources"] = {RESOURCE: n_workers}
    try:
        if address != "local" and patience_s is not None:
            reason = refusal(address, patience_s)
            if reason is not None:
                raise _no_cluster(ConfigError, key, address, reason)
        ray.init(address=address, **options)
    except TimeoutError as error:
        raise _no_cluster(ClusterSilent, key, address, str(error)) from error
    except (OSError, ValueError, RuntimeError, RayError) as error:
        raise _no_cluster(ConfigError, key, address, one_line(error)) from error


def _no_cluster(kind: type[ConfigError], key: str, address: str, reason: str) -> ConfigError:
    allowed = (
        f"a Ray cluster that answers ({reason}); `ray start --head` makes one, and one that "
        "asks for a token is joined under RAY_AUTH_MODE=token"
    )
    if address == "auto":
        allowed += "; `ray stop` forgets one that has crashed"
    return kind(key, address, f"unset, or {allowed}" if key == _ADDRESS_VARIABLE else allowed)


def nodes() -> list[ClusterNode]:
    """The machines that are alive; a part of their ids tells those of one name apart."""
    rows: list[dict[str, Any]] = ray.nodes()
    alive = [row for row in rows if row["Alive"]]
    own = ray.get_runtime_context().get_node_id()
    # This machine's name is the one in the head's record.
    names = [this_node() if row["NodeID"] == own else node_name(row["NodeName"]) for row in alive]
    return [
        ClusterNode(
            row["NodeID"],
            name if names.count(name) == 1 else f"{name}-{row['NodeID'][:6]}",
            node_name(row["NodeManagerHostname"]),
            float(row["Resources"].get(RESOURCE, 0.0)),
        )
        for row, name in zip(alive, names, strict=True)
    ]


def node_named(wanted: str, key: str) -> ClusterNode:
    """Find a machine by its name.

    Args:
        wanted: the name.
        key: the config's key, for the message.

    Raises:
        ConfigError: when the cluster has none of this name.
    """
    there = nodes()
    for node in there:
        if node.name == wanted:
            return node
    raise ConfigError(key, wanted, f"one of {sorted(node.name for node in there)}")


def node_of_host(host: str) -> ClusterNode:
    """Find a machine by its host name.

    Args:
        host: as `this_node` spells it there.

    Raises:
        ConfigError: when the cluster has none of this name.
    """
    there = nodes()
    for node in there:
        if node.host == host:
            return node
    allowed = f"machines of the Ray cluster: {sorted(node.host for node in there)}"
    raise ConfigError("the trainer's machines", host, allowed)


def own_node() -> ClusterNode:
    """The machine of this process."""
    own = ray.get_runtime_context().get_node_id()
    return next(node for node in nodes() if node.node_id == own)


def on_node(node: ClusterNode) -> NodeAffinitySchedulingStrategy:
    """Scheduling options of an actor that has to be on one machine."""
    return NodeAffinitySchedulingStrategy(node.node_id, soft=False)


def gpus_of(name: str, roles: Mapping[Role, Sequence[str]], patience_s: float) -> NamedGpus:
    """Ask a machine's NVML for GPUs by name.

    Args:
        name: of the machine.
        roles: names of each role's GPUs there.
        patience_s: longest wait, s.

    Raises:
        ConfigError: when the cluster has no such machine, or NVML there no such GPU.
        EngineError: when the machine does not answer.
    """
    first = next(iter(roles))
    node = node_named(name, f"places.{first}.node")
    task = ray.remote(_named_gpus).options(num_cpus=0, scheduling_strategy=on_node(node))
    named = {gpu: role for role, gpus in roles.items() for gpu in gpus}
    try:
        answer: NamedGpus | Fault = ray.get(task.remote(named, f"on {name}"), timeout=patience_s)
    except RayError as error:
        raise engine_error(error, f"{name} did not tell its GPUs") from error
    if isinstance(answer, Fault):
        raise error_of(answer)
    return answer


def _named_gpus(named: Mapping[str, Role], where: str) -> NamedGpus | Fault:
    """Run `named_gpus` as a task; what went wrong is an answer, since Ray would wrap an error."""
    with EngineBoundary() as boundary:
        return named_gpus(named, where)
    return fault_of(boundary.caught())


def check_accelerators(n_workers: int, patience_s: float) -> None:
    """Wait until the cluster has an accelerator for each worker.

    Args:
        n_workers: number of workers.
        patience_s: longest wait, s.

    Raises:
        ConfigError: when it has not.
    """
    limit_s = time.monotonic() + patience_s
    while (found := sum(node.n_fpgas for node in nodes())) < n_workers:
        if time.monotonic() > limit_s:
            allowed = (
                f"local, or a cluster with {n_workers} of the resource {RESOURCE} "
                f"(it has {found:g}): ray start --resources '{{\"{RESOURCE}\": {n_workers}}}'"
            )
            raise ConfigError("runtime.type", "ray", allowed)
        time.sleep(0.2)


@contextmanager
def ended_on_error(actors: Sequence[Any]) -> Iterator[None]:
    """End actors when the block fails: Ray itself would keep them until the driver ends.

    Args:
        actors: their handles; the list may grow inside the block.
    """
    try:
        yield
    except BaseException:
        end(actors)
        raise


def end(actors: Sequence[Any]) -> None:
    """End actors for good; those that have ended already are no error."""
    for actor in actors:
        if ray.is_initialized():
            ray.kill(actor)
