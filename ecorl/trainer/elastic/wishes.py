"""The width that is wanted, now and from later steps on; told from any thread."""

from __future__ import annotations

import threading
from itertools import pairwise

from ecorl.errors import ConfigError


class WidthWishes:
    """Keeps what was asked for.

    Args:
        width: members at first.
        max_width: members at most.
    """

    def __init__(self, width: int, max_width: int) -> None:
        self._max_width = max_width
        self._check(width)
        self._width = width
        self._booked: list[tuple[int, int]] = []
        self._news = threading.Condition()
        self._stops = self._is_waited_for = False

    @property
    def is_waited_for(self) -> bool:
        """Whether no step may be computed before the wanted width is there."""
        with self._news:
            return self._is_waited_for

    @property
    def width(self) -> int:
        """What is wanted now."""
        with self._news:
            return self._width

    @property
    def stops(self) -> bool:
        """Whether the training is to end at the next boundary."""
        with self._news:
            return self._stops

    def ask(self, width: int, at_step: int | None = None) -> None:
        """Ask for a width.

        Args:
            width: members; 0 pauses.
            at_step: the first step at that width, for which training waits; it takes the place of
                what was asked for the same step. None: as soon as it can be had, and whatever was
                asked for later steps is forgotten.

        Raises:
            ConfigError: for a width that cannot be, and for a step after a pause that was asked
                for: no step passes in a pause, so that it would never come.
        """
        self._check(width)
        with self._news:
            if at_step is None:
                self._width, self._booked, self._is_waited_for = width, [], False
            else:
                others = [one for one in self._booked if one[0] != at_step]
                booked = sorted([*others, (at_step, width)])
                for (pause, asked), (after, _) in pairwise(booked):
                    if asked == 0:
                        allowed = (
                            f"none after the pause at step {pause}, which set_width has to end"
                        )
                        raise ConfigError("at_step", after, allowed)
                self._booked = booked
            self._news.notify_all()

    def stop(self, stops: bool = True) -> None:
        """Ask the training to end at the next boundary."""
        with self._news:
            self._stops = stops
            self._news.notify_all()

    def take_due(self, n_done: int) -> None:
        """Take over what was asked for from this step on."""
        with self._news:
            while self._booked and self._booked[0][0] <= n_done:
                self._width, self._is_waited_for = self._booked.pop(0)[1], True

    def is_met(self) -> None:
        """Note that the wanted width is there, or that it is not waited for any more."""
        with self._news:
            self._is_waited_for = False

    def goal(self, width: int) -> int:
        """The width to get ready for: what is wanted now, and once that is there, what is next.

        Args:
            width: members now.
        """
        with self._news:
            if width == self._width and self._booked:
                return self._booked[0][1]
            return self._width

    def wait(self, time_s: float) -> None:
        """Wait for news in a pause."""
        with self._news:
            if not self._stops and self._width == 0:
                self._news.wait(time_s)

    def _check(self, width: int) -> None:
        if not 0 <= width <= self._max_width:
            raise ConfigError("width", width, f"0 to max_width = {self._max_width}")
