"""Rank 0's side of a change of width: it asks the supervisor, and leaves when all is ready."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from roll_adapters.trl.launch.messages import Channel, Dropped, StandbyReady, Stayed, Wanted

logger = logging.getLogger(__name__)


class WidthHandover:
    """Asks for another number of training processes while training goes on.

    Args:
        channel: to the supervisor.
        width: number of processes that train now.
        widths: numbers that may be chosen between.
        steady: how often in a row another number has to be wanted before it is asked for, and
            before one that was asked for is given up.
    """

    def __init__(
        self, channel: Channel, width: int, widths: Sequence[int], steady: int = 1
    ) -> None:
        self._channel, self.width, self._widths = channel, width, tuple(widths)
        self._steady, self._wish, self._n_wished = steady, width, 0
        self._asked, self._serial = width, 0
        self._is_ready = False
        self._dropped: list[Dropped] = []
        self._told: set[int] = set()

    def wanted(self, width: int | None) -> bool:
        """Take over what is wanted; to be called once a step.

        Args:
            width: number of processes that the training is to go on with; None: as they are.

        Returns:
            Whether to save and stop after this step: processes of that number stand by.
        """
        width = self._steadily(self._known(width))
        if width != self._asked:
            self._serial += 1
            self._asked, self._is_ready = width, False
            self._channel.send(Wanted(width, self._serial))
        for message in self._channel.receive():
            if isinstance(message, StandbyReady) and message.serial == self._serial:
                self._is_ready = True
            elif isinstance(message, Dropped):
                self._is_ready = False
                self._dropped.append(message)
        return self._is_ready and width != self.width

    @property
    def target(self) -> int:
        """Number of processes that was asked for last; that of this training when none was."""
        return self._asked

    def take_back(self, reason: str) -> None:
        """Go on with the present number of processes after all.

        Args:
            reason: why, in words.
        """
        self._dropped.append(Dropped(self._asked, reason))
        self._channel.send(Stayed(self._asked))
        # What is wanted is asked for anew, from the next step on.
        self._asked, self._is_ready = self.width, False

    def dropped(self) -> list[Dropped]:
        """What could not be begun with since the last time."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _steadily(self, width: int) -> int:
        """The number, once it was wanted often enough in a row; until then the one of before."""
        self._n_wished = self._n_wished + 1 if width == self._wish else 1
        self._wish = width
        return width if self._n_wished >= self._steady else self._asked

    def _known(self, width: int | None) -> int:
        if width is None or width in self._widths:
            return self.width if width is None else width
        if width and width not in self._told:
            self._told.add(width)
            logger.warning("%d processes are none of trainer.widths: nothing is changed", width)
        return self._asked
