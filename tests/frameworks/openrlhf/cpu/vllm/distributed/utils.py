"""The trainer's first rank and the engines' workers, joined by a store on the loopback device."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore

LIMIT = timedelta(seconds=120)


class StatelessProcessGroup:
    def __init__(self, store, rank, world_size):
        self.store, self.rank, self.world_size = store, rank, world_size

    @staticmethod
    def create(host, port, rank, world_size):
        store = TCPStore(host, port, world_size, is_master=rank == 0, timeout=LIMIT)
        return StatelessProcessGroup(store, rank, world_size)
