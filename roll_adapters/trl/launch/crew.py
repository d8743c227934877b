"""The processes of one training as one of them sees them: its rank, the others, the supervisor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from ecorl.runtime.processes.ranks import Ranks, TorchRanks
from roll_adapters.trl.launch.handover import WidthHandover
from roll_adapters.trl.launch.messages import Channel, FilesPrepared, Go, Left, StandbyReady

CHECKPOINTS = "checkpoints"
"""Folder of the trainer's checkpoints in a run's folder."""

NEXT_WIDTH = "next_width"
"""The ledger's metric of the number of processes that trains after a step, noted where another one
than before was chosen."""

_PATIENCE = timedelta(days=7)
"""How long ranks wait for rank 0, which prepares, evaluates or stands by. Invented: longer than any
of that; when rank 0 fails, the supervisor ends them."""

_STEADY = 3
"""Steps in a row that want another number of processes before it is begun. Invented: prices that
lie near each other make a choice go to and fro, and each change of mind ends a group that loads."""

_T = TypeVar("_T")


class AttemptOutcome(StrEnum):
    """How an attempt at a run ended."""

    COMPLETE = "complete"  # the run is over
    STOPPED = "stopped"  # it was saved and can be gone on with
    LEFT = "left"  # it was saved, and another number of processes goes on at once


class Crew:
    """The processes that train together.

    Args:
        channel: to the supervisor; None for a process that trains alone and has none.
        rank: of this process; rank 0 keeps the record.
        width: number of the processes.
        widths: numbers that may be chosen between.
        lost: why processes before these could not train on; empty where none were.

    Attributes:
        ranks: exchange with the others; None before `meet`, and in a process alone.
        handover: asks for another number of processes, on rank 0 under a supervisor.
        left: what the supervisor is told when rank 0 has left the run for another group.
    """

    def __init__(
        self,
        channel: Channel | None = None,
        rank: int = 0,
        width: int = 1,
        widths: tuple[int, ...] = (1,),
        lost: str = "",
    ) -> None:
        self._channel, self.rank, self.width, self.lost = channel, rank, width, lost
        self.ranks: Ranks | None = None
        self.handover: WidthHandover | None = None
        self.left: Left | None = None
        if channel is not None and rank == 0:
            self.handover = WidthHandover(channel, width, widths, _STEADY)

    @property
    def is_head(self) -> bool:
        """Whether this process keeps the record."""
        return self.rank == 0

    def first(self, prepare: Callable[[], _T]) -> _T:
        """Prepare something on rank 0, and when that is done on the others.

        Args:
            prepare: finds what the first call of it has made.
        """
        if not self.is_head:
            self._wait_for(FilesPrepared)
        made = prepare()
        if self.is_head and self._channel is not None:
            self._channel.send(FilesPrepared())
        return made

    def meet(self) -> None:
        """Begin to exchange, once the framework has joined the processes; collective."""
        if self.width > 1:
            self.ranks = TorchRanks(_PATIENCE)

    def told(self, value: _T) -> _T:
        """Tell all processes the value of rank 0; collective."""
        found: _T = value if self.ranks is None else self.ranks.broadcast(value)
        return found

    def wait(self) -> None:
        """Wait until rank 0 comes by here; collective."""
        self.told(None)

    def stand_by(self) -> Go:
        """Tell that all processes are ready, and wait to go on with the run; collective."""
        go: Any = None
        if self.ranks is not None:
            self.ranks.all_gather(None)
        if self.is_head and self._channel is not None:
            self._channel.send(StandbyReady(0))
            go = self._wait_for(Go)
        found: Go = self.told(go)
        return found

    def tell(self, message: Any) -> None:
        """Tell the supervisor something, if there is one and this is rank 0.

        Args:
            message: what.
        """
        if self.is_head and self._channel is not None:
            self._channel.send(message)

    def _wait_for(self, kind: type[_T]) -> _T:
        """Wait for a message; what comes before it is of no use any more."""
        while self._channel is not None:
            message = self._channel.wait()
            if isinstance(message, kind):
                return message
            if message is None:
                break
        sys.exit("the supervisor of this training process has ended")
