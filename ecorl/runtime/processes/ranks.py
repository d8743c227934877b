"""Exchange between the processes of one training, which run the same program in step.

Data-parallel trainers start one process a GPU. All of them reach each stage, so that what they have
to agree on is exchanged by collective calls of the framework's own process group: every process
makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol


class Ranks(Protocol):
    """The processes of one training; all methods but `leave` are collective."""

    @property
    def rank(self) -> int:
        """Number of this process, 0 to ``size - 1``; 0 keeps the run's record."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def all_gather(self, value: Any) -> list[Any]:
        """Tell all processes a value of each.

        Args:
            value: of this process; any object that can be pickled.

        Returns:
            One value a process, in the order of ranks.
        """

    def gather(self, value: Any) -> list[Any] | None:
        """Tell rank 0 a value of each process.

        Args:
            value: of this process; any object that can be pickled.

        Returns:
            On rank 0 one value a process, in the order of ranks; None elsewhere.
        """

    def broadcast(self, value: Any) -> Any:
        """Tell all processes the value of rank 0.

        Args:
            value: of this process; only rank 0's counts.
        """

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Give each process a value of its own, from rank 0.

        Args:
            values: on rank 0 one a process; None elsewhere.

        Returns:
            The value of this process.
        """

    def leave(self) -> None:
        """Free what the exchange takes, once no process needs it any more."""


class TorchRanks:
    """The processes of ``torch.distributed``, over a group that exchanges objects on the host.

    A group of its own, with the gloo back-end: the framework's group may be NCCL's, which moves
    objects over the GPUs, and stands in a queue with gradients.

    Args:
        patience: how long a process waits for the others; None: as long as torch does by itself.
    """

    def __init__(self, patience: timedelta | None = None) -> None:
        # Imported here: a process that only reports or configures needs no torch.
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=patience)

    def all_gather(self, value: Any) -> list[Any]:
        """Tell all processes a value of each. See `Ranks`."""
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value, group=self._group)
        return values

    def gather(self, value: Any) -> list[Any] | None:
        """Tell rank 0 a value of each process. See `Ranks`."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        self._dist.gather_object(value, values, dst=0, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        """Tell all processes the value of rank 0. See `Ranks`."""
        values = [value]
        self._dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Give each process a value of its own. See `Ranks`."""
        own: list[Any] = [None]
        given = None if values is None else list(values)
        self._dist.scatter_object_list(own, given, src=0, group=self._group)
        return own[0]

    def leave(self) -> None:
        """Free the group's connections. See `Ranks`."""
        self._dist.destroy_process_group(self._group)
        # The connections are closed with the last reference to the group, and this object can
        # stand in a cycle that is collected much later.
        self._group = None
