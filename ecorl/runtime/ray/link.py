"""`SchedulerLink`: the way from a training process to the scheduler's actor."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.engines.lanes.messages import Fault, error_of
from ecorl.records import FaultKind
from ecorl.runtime.ray.scheduler import NotStarted

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Longest wait for a decision, s. Invented: it takes a millisecond, or the scheduler hangs."""

_RETRY_S = 1.0
"""How long the scheduler is left alone between two attempts to bring it back, s. Invented."""

Note = tuple[str, tuple[Any, ...]]
"""Something that is told: the name of a method, and its arguments."""


class SchedulerLink:
    """Asks and tells the scheduler, which may be killed and started anew at any time; thread-safe.

    What has to be decided is asked for and waited for. Everything else is told in order and not
    waited for; it is kept until it has arrived, and told again to a scheduler that was started
    anew. What the killed one had noted and not confirmed may then stand in the record twice, but
    for executions: machines' monitors know each by its number.

    Args:
        actor: the scheduler's handle.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._told: deque[tuple[Note, Any]] = deque()
        self._lasting: list[tuple[tuple[Any, ...], Any]] = []
        self._revival: Any = None
        self._why = ""
        self._retry_at_s = 0.0
        self._lock = threading.RLock()

    @property
    def is_up(self) -> bool:
        """Whether the scheduler answers, as far as is known; takes it back when it does again."""
        with self._lock:
            if self._revival is None:
                return True
            ready, _ = ray.wait([self._revival], timeout=0)
            if not ready:
                return False
            if not self._has_revived():
                if time.monotonic() > self._retry_at_s:
                    self._revive()
                return False
            self._revival = None
            logger.warning("the scheduler is back")
            self._send_again()
            detail = f"{self._why}; stages ran on the GPU path until it was back"
            self.tell("record_fault", FaultKind.SCHEDULER_LOST, "scheduler", detail)
            return True

    def _has_revived(self) -> bool:
        try:
            fault: Fault | None = ray.get(self._revival)
        except RayError:
            return False
        if fault is not None:
            logger.warning("the scheduler cannot go on: %s", error_of(fault))
        return fault is None

    def ask(self, method: str, *args: Any, timeout_s: float = ANSWER_S) -> Any:
        """Call a method of the actor and wait for its answer; None when there is none.

        Args:
            method: its name.
            *args: its arguments.
            timeout_s: longest wait, s.
        """
        if not self.is_up:
            return None
        # Not under the lock: the wait at a barrier may last until its deadline.
        try:
            answer = ray.get(getattr(self._actor, method).remote(*args), timeout=timeout_s)
        except RayError as error:
            self._lose(type(error).__name__)
            return None
        if isinstance(answer, NotStarted):
            self._lose("it was started anew")
            return None
        return answer

    def tell(self, method: str, *args: Any) -> None:
        """Tell the scheduler something, without waiting.

        Args:
            method: a method that `SchedulerActor.note` knows.
            *args: its arguments.
        """
        with self._lock:
            self.confirm()  # the fewer are open, the fewer may stand in the record twice
            note = (method, args)
            self._told.append((note, self._send(note) if self._revival is None else None))

    def end_when_ready(self, *args: Any) -> None:
        """Have the scheduler wait for the end of a stage, beside everything else.

        Args:
            *args: of `SchedulerActor.end_when_ready` but for the last.
        """
        with self._lock:
            self._lasting = [(a, ref) for a, ref in self._lasting if not self._has_arrived(ref)]
            ref = None
            if self._revival is None:
                ref = self._actor.end_when_ready.remote(*args, False)
            self._lasting.append((args, ref))

    def confirm(self) -> None:
        """Forget what has arrived; call now and then."""
        with self._lock:
            while self._told and self._revival is None:
                _, ref = self._told[0]
                if not ray.wait([ref], timeout=0)[0]:
                    return
                try:
                    answer = ray.get(ref)
                except RayError as error:
                    self._lose(type(error).__name__)
                    return
                if isinstance(answer, NotStarted):
                    self._lose("it was started anew")
                    return
                self._told.popleft()

    def await_up(self, timeout_s: float) -> bool:
        """Wait until the scheduler answers, or the time is over.

        Args:
            timeout_s: longest wait, s.

        Returns:
            Whether it answers.
        """
        limit_s = time.monotonic() + timeout_s
        # What was told last tells whether it is there.
        self.confirm()
        while not self.is_up and time.monotonic() < limit_s:
            time.sleep(0.05)
        return self.is_up

    def drain(self, timeout_s: float) -> None:
        """Wait until all that was told has arrived, or the time is over.

        Args:
            timeout_s: longest wait, s.
        """
        limit_s = time.monotonic() + timeout_s
        while time.monotonic() < limit_s:
            if self.is_up:
                self.confirm()
            with self._lock:
                ended = all(self._has_arrived(ref) for _, ref in self._lasting)
                if not self._told and ended:
                    return
            time.sleep(0.01)

    # ------------------------------------------------------------ inside

    def _send(self, note: Note) -> Any:
        return self._actor.note.remote([note])

    def _has_arrived(self, ref: Any) -> bool:
        """Whether the end of a stage was noted; False where the scheduler died before."""
        if ref is None or not ray.wait([ref], timeout=0)[0]:
            return False
        try:
            return not isinstance(ray.get(ref), NotStarted)
        except RayError:
            return False

    def _send_again(self) -> None:
        self._told = deque((note, self._send(note)) for note, _ in self._told)
        left = [args for args, ref in self._lasting if not self._has_arrived(ref)]
        again = self._actor.end_when_ready
        self._lasting = [(args, again.remote(*args, True)) for args in left]

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._revival is None:
                self._why = f"the scheduler did not answer ({why})"
                logger.warning("%s: all stages run on the GPU path until it is back", self._why)
                self._revive()

    def _revive(self) -> None:
        self._retry_at_s = time.monotonic() + _RETRY_S
        # Taken up by the actor as soon as Ray has started it anew.
        self._revival = self._actor.start.remote()
