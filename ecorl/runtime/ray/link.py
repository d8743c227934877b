"""`SchedulerLink`: the way from a training process to the scheduler's actor."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Sequence
from pickle import PickleError
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from ecorl.engines.lanes.threaded import Fault, error_of
from ecorl.records import FaultKind
from ecorl.runtime.ray.outbox import Call, Ending, Item, Note, NoteBatch, Outbox, Sender
from ecorl.runtime.ray.scheduler import NotStarted

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Longest wait for a decision, s. Invented: it takes a millisecond, or the scheduler hangs."""

_RETRY_S = 1.0
"""How long the scheduler is left alone between two attempts to bring it back, s. Invented."""

_GATHER_S = 0.01
"""How long a note waits for others to be sent with, s. Invented: a step's metrics are told within
a millisecond, and a stage whose end is told later was recorded with its own times."""

_LOOK_S = 0.05
"""How often it is looked whether what was sent has been answered, s. Invented."""

_EXIT_S = 2.0
"""Longest wait at the end of a process that did not close its runtime, s. Invented."""

MAX_NOTES = 200_000
"""Notes that are kept for a scheduler that does not come back, about 100 MB. Invented."""

_UNSENDABLE = (TypeError, ValueError, AttributeError, PickleError)
"""Errors of what cannot be pickled."""

_forks = 0
"""How often this process and those that it is a copy of were copied; set in the copy."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class SchedulerLink:
    """Asks and tells the scheduler, which may be killed and started anew at any time; thread-safe.

    What has to be decided is asked for and waited for. Everything else is told in order and not
    waited for: a thread sends it a moment later, many notes in one call. Who asks sends first what
    was told before. Each note has a number and is kept until the record's file holds it: a
    scheduler that was started anew is told what was not in the file, and takes no note twice.

    In a process that was forked off nothing is sent: Ray does not work there.

    Args:
        actor: the scheduler's handle.
        max_notes: notes that are kept; beyond them notes are lost, which the record will say.
        gather_s: how long a note waits for others, s.
    """

    def __init__(self, actor: Any, max_notes: int = MAX_NOTES, gather_s: float = _GATHER_S) -> None:
        self._actor = actor
        self._teller = uuid.uuid4().hex
        self._outbox = Outbox(max_notes)
        self._sender = Sender(self._round, gather_s, self._flush_at_exit)
        self._own_forks = _forks
        self._n_lost = 0
        self._lasting: list[Ending] = []
        self._may_skip = False
        self._revival: Any = None
        self._life = 0
        self._why = ""
        self._retry_at_s = 0.0
        # Held while something is sent, so that all threads' calls keep their order. Never taken by
        # `tell`: a call of Ray takes up to a millisecond.
        self._wire = threading.RLock()

    @property
    def is_up(self) -> bool:
        """Whether the scheduler answers, as far as is known."""
        return self._revival is None

    def take_sender_s(self) -> float:
        """Time that the thread that sends has needed since this was last asked, s of processor."""
        return self._sender.take_cpu_s()

    # ------------------------------------------------------------ what is asked

    def ask(self, method: str, *args: Any, timeout_s: float = ANSWER_S) -> Any:
        """Call a method of the actor and wait for its answer; None when there is none.

        Args:
            method: its name.
            *args: its arguments.
            timeout_s: longest wait, s.
        """
        return self.answer(self.call(method, *args), timeout_s)

    def call(self, method: str, *args: Any) -> Call:
        """Call a method of the actor, after all that was told before, and do not wait.

        Args:
            method: its name.
            *args: its arguments.

        Returns:
            For `answer`; without a reference when the scheduler is away.
        """
        call = Call(method, args)
        if self._is_copy:
            return call
        with self._wire:
            self._send_waiting()
            if self.is_up:
                self._send(call)
        return call

    def call_soon(self, method: str, *args: Any) -> Call:
        """Have a method of the actor called by the thread that sends, after what was told before.

        Args:
            method: its name.
            *args: its arguments.

        Returns:
            For `answer`.
        """
        call = Call(method, args)
        if not self._is_copy and self.is_up:
            self._outbox.call(call)
            # Somebody will wait for it.
            self._sender.wake(at_once=True)
        return call

    def answer(self, call: Call, timeout_s: float = ANSWER_S) -> Any:
        """Wait for the answer of a call; None when there is none.

        Args:
            call: from `call` or `call_soon`.
            timeout_s: longest wait, s.
        """
        if call.ref is None and not self._is_copy:
            with self._wire:
                self._send_waiting()
        if call.ref is None:
            return None
        # Not under the lock: the wait at a barrier may last until its deadline.
        try:
            answer = ray.get(call.ref, timeout=timeout_s)
        except RayError as error:
            self._lose(type(error).__name__, call.life)
            return None
        if isinstance(answer, NotStarted):
            self._lose("it was started anew", call.life)
            return None
        return answer

    # ------------------------------------------------------------ what is told

    def tell(self, method: str, *args: Any) -> None:
        """Tell the scheduler something; takes microseconds.

        Args:
            method: a method that `SchedulerActor.notes` knows.
            *args: its arguments; they are sent later, and must not change meanwhile.
        """
        if self._is_copy:
            return
        if self._outbox.note(method, args, may_forget=self.is_up):
            self._sender.wake()
            return
        self._n_lost += 1
        if self._n_lost == 1:
            logger.warning("too many notes wait for the scheduler: further ones are lost")

    def end_when_ready(self, *args: Any) -> None:
        """Have the scheduler wait for the end of a stage, beside everything else.

        Args:
            *args: of `SchedulerActor.end_when_ready`, the first ones.
        """
        if not self._is_copy:
            self._outbox.ending(args)
            # The scheduler takes the time at which the stage ends: it must not come to it late.
            self._sender.wake(at_once=True)

    def confirm(self) -> None:
        """Send what waits, and forget what is in the record's file; without waiting.

        It is done now and then by the thread that sends.
        """
        if self._is_copy:
            return
        with self._wire:
            self._take_back()
            self._send_waiting()
            self._look()

    def await_up(self, timeout_s: float) -> bool:
        """Wait until the scheduler answers, or the time is over.

        Args:
            timeout_s: longest wait, s.

        Returns:
            Whether it answers.
        """
        begun_s = time.monotonic()
        while not self._is_copy:
            self.confirm()
            waited_s = time.monotonic() - begun_s
            # What was told last tells whether it is there.
            if self.is_up and (not self._outbox.is_open or waited_s > ANSWER_S):
                return True
            if waited_s > timeout_s:
                break
            time.sleep(0.005 if self.is_up else 0.05)
        return self.is_up

    def drain(self, timeout_s: float) -> None:
        """Wait until all that was told is in the record's file, or the time is over.

        Args:
            timeout_s: longest wait, s.
        """
        limit_s = time.monotonic() + timeout_s
        while time.monotonic() < limit_s and not self._is_copy:
            self.confirm()
            with self._wire:
                ended = all(self._has_arrived(ending) for ending in self._lasting)
                is_open, n_arrived = self._outbox.is_open, self._outbox.n_arrived
            if ended and not is_open and not n_arrived:
                return
            if n_arrived and not is_open:
                self._outbox.drop_kept(self.ask("kept", self._teller) or 0)
            time.sleep(0.02)

    def close(self) -> None:
        """End the thread that sends: what is told from here on is dropped; safe to call twice."""
        self._sender.stop()

    # ------------------------------------------------------------ the thread that sends

    def _round(self) -> float | None:
        # Ray would start a cluster of its own where there is none any more.
        if not ray.is_initialized():
            return None
        self.confirm()
        return _LOOK_S if self._outbox.is_open or not self.is_up else None

    def _flush_at_exit(self) -> None:
        """Send what waits, and give it a moment to arrive."""
        limit_s = time.monotonic() + _EXIT_S
        self._sender.stop()
        while not self._is_copy and ray.is_initialized() and self._outbox.is_open:
            self.confirm()
            if not self.is_up or time.monotonic() > limit_s:
                return
            time.sleep(0.005)

    # ------------------------------------------------------------ inside

    @property
    def _is_copy(self) -> bool:
        """Whether this is the link of another process, of which this one is a copy."""
        return self._own_forks != _forks

    def _send_waiting(self) -> None:
        while self.is_up and (item := self._outbox.next()) is not None:
            if isinstance(item, Ending):
                self._lasting = [e for e in self._lasting if not self._has_arrived(e)]
                self._lasting.append(item)
            self._send(item)

    def _send(self, item: Item, is_again: bool = False) -> None:
        """Call the actor, and keep the reference of its answer with what was sent."""
        try:
            if isinstance(item, NoteBatch):
                item.ref = self._send_notes(item)
                self._may_skip = False
            elif isinstance(item, Ending):
                stage = (self._teller, item.after, is_again)
                item.ref = self._actor.end_when_ready.remote(*item.args, *stage)
            else:
                item.ref = getattr(self._actor, item.method).remote(*item.args)
                item.life = self._life
                item.args = ()  # they may be a whole batch
        except RayError as error:
            self._lose(type(error).__name__)

    def _send_notes(self, batch: NoteBatch) -> Any:
        try:
            return self._actor.notes.remote(self._teller, batch.notes, self._may_skip)
        except _UNSENDABLE as error:
            # Something in there cannot be sent: it must not keep the others.
            logger.warning("a note cannot be sent: %s", error)
            batch.notes = [_sendable(note) for note in batch.notes]
            return self._actor.notes.remote(self._teller, batch.notes, self._may_skip)

    def _look(self) -> None:
        """Forget what is in the record's file, as far as answers have come in."""
        while self.is_up and (batch := self._outbox.oldest()) is not None:
            if batch.ref is None:
                self._send(batch)  # an error has kept it
            if batch.ref is None or not ray.wait([batch.ref], timeout=0)[0]:
                return
            try:
                kept = ray.get(batch.ref)
            except RayError as error:
                self._lose(type(error).__name__)
                return
            if isinstance(kept, NotStarted):
                self._lose("it was started anew")
                return
            self._outbox.arrive(kept)

    def _has_arrived(self, ending: Ending) -> bool:
        """Whether the end of a stage was noted; False where the scheduler died before."""
        if ending.ref is None or not ray.wait([ending.ref], timeout=0)[0]:
            return False
        try:
            return not isinstance(ray.get(ending.ref), NotStarted)
        except RayError:
            return False

    # ------------------------------------------------------------ a scheduler that is away

    def _lose(self, why: str, life: int | None = None) -> None:
        """Take the scheduler for lost, unless it has been started anew since.

        Args:
            why: how it shows.
            life: in which of its lives it was asked; None: in this one.
        """
        with self._wire:
            if self._revival is None and life in (None, self._life):
                self._why = f"the scheduler did not answer ({why})"
                logger.warning("%s: until it is back nothing is offloaded", self._why)
                self._revive()
        self._sender.wake()

    def _revive(self) -> None:
        self._retry_at_s = time.monotonic() + _RETRY_S
        # Taken up by the actor as soon as Ray has started it anew.
        self._revival = self._actor.start.remote()

    def _take_back(self) -> None:
        """Go on with a scheduler that has been started anew, once it is back."""
        if self._revival is None or not ray.wait([self._revival], timeout=0)[0]:
            return
        if not self._has_revived():
            if time.monotonic() > self._retry_at_s:
                self._revive()
            return
        logger.warning("the scheduler is back")
        self._revival = None
        self._life += 1
        self._send_again()
        detail = f"{self._why}; nothing was offloaded until it was back"
        if self._n_lost:
            detail += f"; {self._n_lost} notes for the record could not be kept"
            self._n_lost = 0
        args = (FaultKind.SCHEDULER_LOST, "scheduler", detail)
        self._outbox.note("record_fault", args, may_forget=True, at_any_rate=True)
        self._sender.wake()

    def _has_revived(self) -> bool:
        try:
            fault: Fault | None = ray.get(self._revival)
        except RayError:
            return False
        if fault is not None:
            logger.warning("the scheduler cannot go on: %s", error_of(fault))
        return fault is None

    def _send_again(self) -> None:
        batches, endings = self._outbox.begin_again()
        left: Sequence[Ending] = [e for e in self._lasting if not self._has_arrived(e)]
        self._lasting = [Ending(e.args, e.after) for e in (*left, *endings)]
        # Those before are in the file, or were forgotten for want of room.
        self._may_skip = True
        again: list[Item] = [*batches, *self._lasting]
        for item in again:
            if self.is_up:
                self._send(item, is_again=True)


def _sendable(note: Note) -> Note:
    """A note as it is, or what is told in its place where it cannot be pickled."""
    try:
        cloudpickle.dumps(note)
    except _UNSENDABLE as error:
        detail = f"{note.method} was not noted ({error})"
        return Note(note.number, "record_fault", (type(error).__name__, "scheduler", detail))
    return note
