"""A Ray cluster of two machines on this one, over the loopback device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
