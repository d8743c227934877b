"""Which GPUs a role's processes have: one placement group a node, shared by all roles."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from roll.platforms import current_platform

LIMIT_S = 60


class ResourceManager:
    def __init__(self, num_gpus_per_node: int, num_nodes: int) -> None:
        key = current_platform.ray_device_key
        self.gpu_per_node, self.num_nodes = num_gpus_per_node, num_nodes
        self.num_gpus = num_gpus_per_node * num_nodes
        nodes = [
            node
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get(key, 0) >= num_gpus_per_node
        ]
        assert len(nodes) >= num_nodes, f"{num_nodes} nodes of {num_gpus_per_node} GPUs: {nodes}"
        self.placement_groups: list[PlacementGroup] = []
        for node in nodes[:num_nodes]:
            bundle = {"CPU": max(node["Resources"].get("CPU", 0) / 2, 1)}
            if num_gpus_per_node:
                bundle[key] = num_gpus_per_node
            self.placement_groups.append(placement_group([bundle]))
        for group in self.placement_groups:
            assert group.wait(LIMIT_S), "a node's placement group does not come"
        self._addresses = [_address(group, nodes) for group in self.placement_groups]

    def nodes_placement_group(self, node_rank: int) -> PlacementGroup:
        return self.placement_groups[node_rank]

    def allocate_placement_group(
        self, world_size: int, device_mapping: list[int] | None = None
    ) -> list[list[dict[str, Any]]]:
        """The places of each rank: one a GPU, or one without a GPU."""
        if device_mapping is None:
            return [[self._place(rank % self.num_nodes, None)] for rank in range(world_size)]
        assert max(device_mapping) < self.num_gpus, f"{device_mapping}: {self.num_gpus} GPUs"
        n = len(device_mapping) // world_size
        return [
            [
                self._place(gpu // self.gpu_per_node, gpu % self.gpu_per_node)
                for gpu in device_mapping[rank * n : (rank + 1) * n]
            ]
            for rank in range(world_size)
        ]

    def _place(self, node_rank: int, gpu_rank: int | None) -> dict[str, Any]:
        return {
            "node_rank": node_rank,
            "gpu_rank": gpu_rank,
            "placement_group": self.nodes_placement_group(node_rank),
            "ray_address": self._addresses[node_rank],
        }

    def destroy_placement_group(self) -> None:
        for group in self.placement_groups:
            remove_placement_group(group)


def _address(group: PlacementGroup, nodes: list[dict[str, Any]]) -> str:
    (node_id,) = placement_group_table(group)["bundles_to_node_id"].values()
    (node,) = [node for node in nodes if node["NodeID"] == node_id]
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
