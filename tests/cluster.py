"""A Ray cluster of two machines on this one, over the loopback device."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

OBJECT_STORE_BYTES = 100_000_000
LOOPBACK = "127.0.0.2"
"""Of the loopback device; Ray takes 127.0.0.1 for another name of the network's address."""

HEAD, CARDS = "head", "cards"


@contextmanager
def two_nodes(n_fpgas: int = 2) -> Iterator[Any]:
    """Start a head without cards and a node with some; yields Ray's cluster object.

    Args:
        n_fpgas: cards of the second node.
    """
    import ray
    from ray.cluster_utils import Cluster

    options = {"object_store_memory": OBJECT_STORE_BYTES, "node_ip_address": LOOPBACK}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2, "node_name": HEAD, "include_dashboard": False, **options
        },
    )  # fmt: skip
    try:
        cluster.add_node(num_cpus=2, node_name=CARDS, resources={"FPGA": n_fpgas}, **options)
        yield cluster
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


@contextmanager
def node_behind(address: str, name: str, before: Sequence[str], n_fpgas: int = 1) -> Iterator[None]:
    """Start a further node of the cluster by a command, and end it again.

    Args:
        address: of the cluster's head.
        name: of the node.
        before: command that runs what follows it, e.g. in a namespace; the test is skipped where
            that is not permitted.
        n_fpgas: cards of the node.
    """
    import ray

    try:
        allowed = subprocess.run([*before, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"{before[0]} is not on this machine")
    if allowed.returncode:
        pytest.skip("namespaces are not permitted here")
    program = "from ray.scripts.scripts import main; main()"
    command = [
        *before, sys.executable, "-c", program,
        "start", "--address", address, "--node-ip-address", LOOPBACK, "--node-name", name,
        "--num-cpus", "1", "--resources", f'{{"FPGA": {n_fpgas}}}', "--block",
        "--object-store-memory", str(OBJECT_STORE_BYTES),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as node:
        try:
            limit_s = time.monotonic() + 240
            while not any(n["NodeName"] == name and n["Alive"] for n in ray.nodes()):
                assert time.monotonic() < limit_s
                time.sleep(0.1)
            yield
        finally:
            below = psutil.Process(node.pid).children(recursive=True)
            for process in below:
                with suppress(psutil.Error):
                    process.terminate()
            _, alive = psutil.wait_procs(below, timeout=10)
            for process in alive:
                process.kill()
            node.kill()
