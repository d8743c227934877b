"""`SchedulerLink`: the way from a training process to the scheduler's actor."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import deque
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.engines.lanes.messages import Fault, error_of
from ecorl.records import FaultKind
from ecorl.runtime.ray.scheduler import Note, NotStarted

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Longest wait for a decision, s. Invented: it takes a millisecond, or the scheduler hangs."""

_RETRY_S = 1.0
"""How long the scheduler is left alone between two attempts to bring it back, s. Invented."""

MAX_NOTES = 200_000
"""Notes that are kept for a scheduler that does not come back, about 100 MB. Invented."""


class SchedulerLink:
    """Asks and tells the scheduler, which may be killed and started anew at any time; thread-safe.

    What has to be decided is asked for and waited for. Everything else is told in order and not
    waited for. Each note has a number and is kept until the record's file holds it: a scheduler
    that was started anew is told what was not in the file, and takes no note twice.

    Args:
        actor: the scheduler's handle.
        max_notes: notes that are kept; beyond them notes are lost, which the record will say.
    """

    def __init__(self, actor: Any, max_notes: int = MAX_NOTES) -> None:
        self._actor, self._max_notes = actor, max_notes
        self._teller = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._open: deque[tuple[Note, Any]] = deque()  # not answered, each with its answer to come
        self._arrived: deque[Note] = deque()  # answered, and not known to be in the file
        self._n_lost = 0
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
            if self._n_lost:
                detail += f"; {self._n_lost} notes for the record could not be kept"
                self._n_lost = 0
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
            self.confirm()
            if len(self._open) + len(self._arrived) >= self._max_notes and not self._forget_one():
                return
            note = Note(next(self._numbers), method, args)
            self._open.append((note, self._send(note) if self._revival is None else None))

    def _forget_one(self) -> bool:
        """Make room for a note; False where there is none, and the note is lost."""
        if self._arrived and self._revival is None:
            self._arrived.popleft()  # the scheduler has it, and its disk hangs
            return True
        self._n_lost += 1
        if self._n_lost == 1:
            logger.warning(
                "%d notes wait for the scheduler: further ones are lost", len(self._open)
            )
        return False

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
        """Forget what is in the record's file; call now and then."""
        with self._lock:
            while self._open and self._revival is None:
                note, ref = self._open[0]
                if not ray.wait([ref], timeout=0)[0]:
                    return
                try:
                    kept = ray.get(ref)
                except RayError as error:
                    self._lose(type(error).__name__)
                    return
                if isinstance(kept, NotStarted):
                    self._lose("it was started anew")
                    return
                self._arrived.append(note)
                self._open.popleft()
                self._drop_kept(kept)

    def _drop_kept(self, number: int) -> None:
        """Forget the notes that are in the file: those up to a number."""
        while self._arrived and self._arrived[0].number <= number:
            self._arrived.popleft()

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
        """Wait until all that was told is in the record's file, or the time is over.

        Args:
            timeout_s: longest wait, s.
        """
        limit_s = time.monotonic() + timeout_s
        while time.monotonic() < limit_s:
            if self.is_up:
                self.confirm()
            with self._lock:
                ended = all(self._has_arrived(ref) for _, ref in self._lasting)
                n_open, n_arrived = len(self._open), len(self._arrived)
            if ended and not n_open and not n_arrived:
                return
            if n_arrived and not n_open:
                kept = self.ask("kept", self._teller)
                with self._lock:
                    self._drop_kept(kept or 0)
            time.sleep(0.02)

    # ------------------------------------------------------------ inside

    def _send(self, note: Note, may_skip: bool = False) -> Any:
        return self._actor.note.remote(self._teller, note, may_skip)

    def _has_arrived(self, ref: Any) -> bool:
        """Whether the end of a stage was noted; False where the scheduler died before."""
        if ref is None or not ray.wait([ref], timeout=0)[0]:
            return False
        try:
            return not isinstance(ray.get(ref), NotStarted)
        except RayError:
            return False

    def _send_again(self) -> None:
        notes = [*self._arrived, *(note for note, _ in self._open)]
        self._arrived.clear()
        # Those between are in the file, or were forgotten for want of room.
        self._open = deque((note, self._send(note, n == 0)) for n, note in enumerate(notes))
        left = [args for args, ref in self._lasting if not self._has_arrived(ref)]
        self._lasting = [(a, self._actor.end_when_ready.remote(*a, True)) for a in left]

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
