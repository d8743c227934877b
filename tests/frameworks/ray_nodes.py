"""Ray nodes of their own for the trainings of a framework, on this machine."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.frameworks import worker_forks

LOOPBACK = "127.0.0.2"
"""Of the loopback device; Ray takes 127.0.0.1 for another name of the network's address."""

FURTHER = "127.0.0.3"
"""Of a second node: a driver joins that of its own address, and takes either where both have it."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up.

    Attributes:
        address: of its head.
        folder: of Ray's session and of caches.
        environment: of all processes of trainings on it.
    """

    address: str
    folder: Path
    environment: dict[str, str]


@contextlib.contextmanager
def cluster(
    folder: Path,
    environment: Mapping[str, str],
    *,
    n_gpus: int,
    n_fpgas: int,
    libraries: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Start a Ray node with GPUs and cards that are names alone; ends what it started.

    Args:
        folder: of Ray's session. Its path must be short, for Ray's sockets.
        environment: of the node and of all processes of trainings on it.
        n_gpus: as Ray counts them.
        n_fpgas: cards, the resource ``FPGA``.
        libraries: modules that a process has imported of which the trainings' are forks, see
            `worker_forks`; with none each of them imports all that it needs.
    """
    port = free_port()
    # A node asks for a token if this user has one, and drivers that have its address give none.
    environment = {**environment, "RAY_AUTH_MODE": "disabled"}
    options = [
        "--head", "--port", str(port), "--num-cpus", "16", "--num-gpus", str(n_gpus),
        "--resources", json.dumps({"FPGA": n_fpgas}), "--include-dashboard", "false",
        "--temp-dir", str(folder / "ray"),
        # Its default port would be that of every cluster on this machine.
        "--ray-client-server-port", str(free_port()), "--disable-usage-stats",
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        if libraries:
            environment[worker_forks.SOCKET] = str(folder / "forks")
            prepared = worker_forks.prepared(folder, environment, libraries)
            await_forks = stack.enter_context(prepared)
        stack.enter_context(_ray_node(folder / "ray.log", environment, options))
        if libraries:
            await_forks()
        address = f"{LOOPBACK}:{port}"
        yield Cluster(address, folder, {**environment, "RAY_ADDRESS": address})


@contextlib.contextmanager
def further_node(
    where: Cluster, name: str, *, n_cpus: int = 0, n_fpgas: int = 1
) -> Iterator[Callable[[], None]]:
    """Start a second node of a cluster; yields what makes it disappear at once.

    Args:
        where: the cluster.
        name: of the node.
        n_cpus: as Ray counts them; with none no process of a framework is put there.
        n_fpgas: its cards.
    """
    options = [
        "--address", where.address, "--node-name", name, "--num-cpus", str(n_cpus),
        "--resources", json.dumps({"FPGA": n_fpgas}), "--disable-usage-stats",
    ]  # fmt: skip
    log = where.folder / f"{name}.log"
    with _ray_node(log, where.environment, options, FURTHER) as node:
        _give_drivers_the_address_of_the_head(where.folder / "ray")
        yield lambda: _end(node, at_once=True)


def _give_drivers_the_address_of_the_head(session: Path) -> None:
    """Undo what a second node of a machine writes: up to Ray 2.48 drivers read their own here."""
    for file in session.glob("session_*/node_ip_address.json"):
        file.write_text(json.dumps({"node_ip_address": LOOPBACK}), "utf-8")


@contextlib.contextmanager
def _ray_node(
    log: Path, environment: Mapping[str, str], options: Sequence[str], address: str = LOOPBACK
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``ray start`` in the foreground until the block ends."""
    command = [
        sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block",
        "--node-ip-address", address, "--object-store-memory", "100000000", *options,
    ]  # fmt: skip
    with log.open("w") as told:
        node = subprocess.Popen(
            command, env=dict(environment), cwd=log.parent, stdout=told, stderr=told
        )
    try:
        limit_s = time.monotonic() + 240
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < limit_s, "Ray did not start"
            time.sleep(0.1)
        yield node
    finally:
        _end(node)


def _end(node: subprocess.Popen[bytes], *, at_once: bool = False) -> None:
    """End a node and all processes below it."""
    import psutil

    with contextlib.suppress(psutil.Error):
        below = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
        for process in below:
            with contextlib.suppress(psutil.Error):
                if at_once:
                    process.kill()
                else:
                    process.terminate()
        _, alive = psutil.wait_procs(below, timeout=3)
        for process in alive:
            process.kill()
    node.wait()
