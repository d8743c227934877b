"""ROLL's resource manager, with the cluster's cards in the pool.

ROLL's own makes one placement group a node that has enough GPUs, and skips all other nodes. Here
the cards that the config names get placement groups too, on whichever nodes have the resource
``FPGA``; what ROLL counts and hands out of its GPUs stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from roll.distributed.scheduler.resource_manager import ResourceManager

from ecorl.engines.lanes.cluster.worker import RESOURCE
from ecorl.errors import EngineTimeout

_CPUS = 2
"""CPUs of a card that holds a worker of ROLL's: ROLL runs a task beside it there that takes one."""

_PATIENCE_S = 60.0
"""Longest wait for a card's placement group, s. Invented: Ray places one within a second where the
node is up."""


class CardHandles(list[int]):
    """An empty list of GPU ranks that carries cards: ROLL takes its role for one without GPUs.

    Args:
        cards: numbers of the cluster's cards.
    """

    def __init__(self, cards: Sequence[int]) -> None:
        super().__init__()
        self.cards = tuple(cards)

    def __reduce__(self) -> tuple[Any, ...]:
        return CardHandles, (self.cards,)


class CardGroups:
    """The placement groups of a run's cards, made when they are asked for first."""

    def __init__(self) -> None:
        self._groups: dict[int, Any] = {}

    def group(self, card: int, *, n_cpus: int = 0) -> Any:
        """Reserve a card.

        Args:
            card: its number; groups of different numbers never share a card.
            n_cpus: CPUs of its node that come with it.

        Raises:
            EngineTimeout: when no node has one to spare.
        """
        if card not in self._groups:
            bundle: dict[str, float] = {RESOURCE: 1}
            if n_cpus:
                bundle["CPU"] = n_cpus
            self._groups[card] = group = placement_group([bundle])
            started_s = time.monotonic()
            if not group.wait(_PATIENCE_S):
                waited_s = time.monotonic() - started_s
                what = f"{RESOURCE}: 1" + (f", CPU: {n_cpus}" if n_cpus else "")
                raise EngineTimeout(f"fpga:{card}: no node had {what} to spare in {waited_s:.0f} s")
        return self._groups[card]

    def close(self) -> None:
        """Give all cards back."""
        groups, self._groups = self._groups, {}
        for group in groups.values():
            if ray.is_initialized():
                remove_placement_group(group)


class CardResourceManager(ResourceManager):
    """Allocates GPUs as ROLL does, and cards where a role names them.

    Attributes:
        pool: of the run's cards; set by the override before ROLL makes this object.
    """

    pool: CardGroups

    def allocate_placement_group(
        self, world_size: int, device_mapping: list[int] | None = None
    ) -> list[list[dict[str, Any]]]:
        """Allocate the devices of each worker of a role. See ROLL."""
        if not isinstance(device_mapping, CardHandles):
            found: list[list[dict[str, Any]]] = super().allocate_placement_group(
                world_size=world_size, device_mapping=device_mapping
            )
            return found
        address = str(ray.get_runtime_context().gcs_address)
        return [
            [
                {
                    # A number of its own: ROLL keeps what it does once a node by it.
                    "node_rank": self.num_nodes + card,
                    "gpu_rank": None,
                    "placement_group": self.pool.group(card, n_cpus=_CPUS),
                    "ray_address": address,
                }
            ]
            for card in device_mapping.cards
        ]
