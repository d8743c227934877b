"""Asks a controller or the caller what the training is to do; what holds without them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from ecorl.control import Command, Gear, GearChoice
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import ConfigError
from ecorl.trainer.elastic.records import ElasticFault, ElasticOptions


class WidthController(Protocol):
    """Whoever decides on width and gear."""

    def decide(self, now_s: float, steps_done: int, steps_left: int) -> GearChoice | None:
        """Decide.

        Args:
            now_s: s since 1970.
            steps_done: committed steps.
            steps_left: steps that are asked for and not committed.

        Returns:
            The choice; None counts as no answer.
        """


@runtime_checkable
class Remembering(Protocol):
    """A controller that goes on from what it remembered when a training is resumed."""

    def memory(self) -> Mapping[str, object]:
        """What it has to know for its next decisions, in values that JSON can hold."""

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on from a memory.

        Args:
            memory: from `memory`; empty: the training begins anew.
        """


@dataclass(frozen=True, slots=True)
class Bearing:
    """Where a training stands.

    Attributes:
        now_s: s since 1970.
        n_done: committed steps.
        n_left: steps left.
        pace_s: time of a step at the present width, s; None before there is one.
        width: members now; 0 in a pause.
    """

    now_s: float
    n_done: int
    n_left: int
    pace_s: float | None
    width: int


@dataclass(frozen=True, slots=True)
class Heading:
    """What the training is to do.

    Attributes:
        width: members; 0 pauses.
        gear: numeric format; None: as it is.
        stops: whether it is to save and end.
    """

    width: int
    gear: Gear | None = None
    stops: bool = False


class Steering:
    """Goes by the controller's choices while it answers, else by its last one and the deadline.

    A controller that raises, answers None or is not in time is gone until it answers again. While
    it is gone its last choice holds, with two exceptions. When the steps that are left would take
    beyond the deadline at the present pace, the largest width is taken. And without a deadline a
    pause ends when its choice wanted to be looked at again: a training must not stand still for
    ever because of a fault of ours.

    Args:
        controller: who decides.
        first_width: members until it has decided.
        options: the largest width, the deadline, and how long an answer is waited for: one that
            comes later counts at the next boundary.
        tell: takes faults.
    """

    def __init__(
        self,
        controller: WidthController,
        first_width: int,
        options: ElasticOptions,
        tell: Callable[[ElasticFault, str, str], None],
    ) -> None:
        self._controller, self._max_width = controller, options.max_width
        self._deadline_s, self._decide_s = options.deadline_s, options.patience.decide_s
        self._tell = tell
        self._answer: Future[GearChoice | None] | None = None
        self._heading = Heading(first_width)
        self._running_width = max(1, first_width)
        self._look_again_s: float | None = None
        self._is_gone = self._is_late = False

    def hear(self, bearing: Bearing) -> Heading:
        """Ask the controller, and tell what holds."""
        choice, reason = self._ask(bearing)
        if choice is not None:
            self._is_gone = self._is_late = False
            self._heading = self._heading_of(choice)
            self._look_again_s = choice.look_again_s
            return self._heading
        if not self._is_gone:
            self._is_gone = True
            self._tell(ElasticFault.CONTROL_GONE, type(self._controller).__name__, reason)
        return self._without(bearing)

    def memory(self) -> Mapping[str, object] | None:
        """What the controller remembers, for a checkpoint; None where it remembers nothing."""
        if not isinstance(self._controller, Remembering):
            return None
        with EngineBoundary() as boundary:
            memory: dict[str, object] = json.loads(json.dumps(dict(self._controller.memory())))
            return memory
        self._tell_forgotten(boundary.caught())
        return None

    def recall(self, memory: Mapping[str, object] | None) -> None:
        """Have the controller go on from what it remembered at a checkpoint.

        Args:
            memory: from `memory`; empty where training begins anew, None where nothing was kept.
        """
        if memory is None or not isinstance(self._controller, Remembering):
            return
        with EngineBoundary() as boundary:
            self._controller.recall(memory)
            return
        self._tell_forgotten(boundary.caught())

    def _tell_forgotten(self, error: BaseException) -> None:
        reason = f"what it remembers is lost: {type(error).__name__}: {error}"
        self._tell(ElasticFault.CONTROL_GONE, type(self._controller).__name__, reason)

    def _ask(self, bearing: Bearing) -> tuple[GearChoice | None, str]:
        """Ask on a thread of its own; returns the choice, or None and why there is none."""
        if self._answer is None:
            self._answer = Future()
            question = (self._controller, bearing, self._answer)
            # A thread that is in a call for ever must not keep the program from ending.
            threading.Thread(target=_decide, args=question, daemon=True).start()
        try:
            error = self._answer.exception(self._decide_s)
        except NotYet:
            return None, f"it did not answer in {self._decide_s:g} s"
        answer, self._answer = self._answer, None
        if error is not None:
            return None, f"it raised {type(error).__name__}: {error}"
        return answer.result(), "it answered nothing"

    def _heading_of(self, choice: GearChoice) -> Heading:
        """What a choice asks for."""
        if choice.command is Command.STOP:
            return Heading(self._running_width, self._heading.gear, stops=True)
        width = self._running_width if choice.width is None else choice.width
        width = 0 if choice.command is Command.PAUSE else max(0, min(width, self._max_width))
        self._running_width = width or self._running_width
        return Heading(width, choice.gear or self._heading.gear)

    def _without(self, bearing: Bearing) -> Heading:
        """What holds while the controller is gone."""
        last = self._heading
        if self._deadline_s is None:
            waits = self._look_again_s is not None and bearing.now_s < self._look_again_s
            width = last.width if last.width or waits else self._running_width
            return Heading(width, last.gear, last.stops)
        left_s = self._deadline_s - bearing.now_s
        misses = bearing.pace_s is None or bearing.n_left * bearing.pace_s > left_s
        if last.width == 0 or bearing.pace_s is not None:
            self._is_late = self._is_late or misses
        if not self._is_late:
            return last
        if bearing.width != self._max_width:
            what = f"{bearing.n_left} steps are left, and {left_s:.0f} s"
            self._tell(ElasticFault.DEADLINE_NEAR, type(self._controller).__name__, what)
        return Heading(self._max_width, last.gear, last.stops)


def _decide(controller: WidthController, at: Bearing, answer: Future[GearChoice | None]) -> None:
    """Call the controller; what it raises is an answer, too."""
    with EngineBoundary() as boundary:
        answer.set_result(controller.decide(at.now_s, at.n_done, at.n_left))
        return
    answer.set_exception(boundary.caught())


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
