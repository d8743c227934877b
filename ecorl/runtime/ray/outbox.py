"""`Outbox`: what was told to the scheduler and may not be in the record; its `Sender`."""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ray.exceptions import RayError

from ecorl.engines.validate import EngineBoundary

MAX_BATCH = 1000
"""Notes of one call of the actor, about 500 kB. Invented: no step of a training has as many."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a training process tells.

    Attributes:
        number: 1 for a process's first, one more for each after it.
        method: name of a method of the scheduler or of the record.
        args: its arguments.
    """

    number: int
    method: str
    args: tuple[Any, ...]


@dataclass(slots=True)
class NoteBatch:
    """Notes that are sent in one call.

    Attributes:
        notes: in their order, without a gap.
        ref: of the answer; None until they are sent.
    """

    notes: list[Note]
    ref: Any = None


@dataclass(slots=True)
class Ending:
    """A stage whose end the scheduler waits for.

    Attributes:
        args: of `SchedulerActor.end_when_ready`, the first ones.
        after: number of the last note before it.
        ref: of the answer; None until it is sent.
    """

    args: tuple[Any, ...]
    after: int
    ref: Any = None


@dataclass(slots=True)
class Call:
    """A call of the actor whose answer is looked at later.

    Attributes:
        method: its name.
        args: its arguments.
        ref: of the answer; None until it is sent, and for ever when the scheduler was gone.
        life: how often the scheduler had been started anew when it was sent.
    """

    method: str
    args: tuple[Any, ...]
    ref: Any = None
    life: int = 0


Item: TypeAlias = NoteBatch | Ending | Call


class Outbox:
    """Keeps what was told in its order: what waits, what is under way, and what has arrived.

    To put something in takes microseconds, whatever is done with the rest meanwhile; thread-safe.

    Args:
        max_notes: notes that are kept, in all.
    """

    def __init__(self, max_notes: int) -> None:
        self._max_notes = max_notes
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._last = 0
        self._waiting: deque[Note | Ending | Call] = deque()
        self._sent: deque[NoteBatch] = deque()  # not answered
        self._arrived: deque[Note] = deque()  # answered, and not known to be in the file
        self._n_notes = 0

    @property
    def is_open(self) -> bool:
        """Whether something has not been sent, or notes have not been answered."""
        with self._lock:
            return bool(self._waiting or self._sent)

    @property
    def n_arrived(self) -> int:
        """Notes that the scheduler has, and its file perhaps has not."""
        return len(self._arrived)

    def note(
        self, method: str, args: tuple[Any, ...], may_forget: bool, at_any_rate: bool = False
    ) -> bool:
        """Put in a note.

        Args:
            method: a method that `SchedulerActor.notes` knows.
            args: its arguments.
            may_forget: whether the oldest one that the scheduler has may be given up for it.
            at_any_rate: whether it is kept even if there is no room.

        Returns:
            Whether there was room for it.
        """
        with self._lock:
            if self._n_notes >= self._max_notes:
                if may_forget and self._arrived:
                    self._arrived.popleft()
                    self._n_notes -= 1
                elif not at_any_rate:
                    return False
            self._last = next(self._numbers)
            self._n_notes += 1
            self._waiting.append(Note(self._last, method, args))
        return True

    def ending(self, args: tuple[Any, ...]) -> None:
        """Put in a stage whose end is to be waited for.

        Args:
            args: of `SchedulerActor.end_when_ready`, the first ones.
        """
        with self._lock:
            self._waiting.append(Ending(args, self._last))

    def call(self, call: Call) -> None:
        """Put in a call, whose answer is looked at later."""
        with self._lock:
            self._waiting.append(call)

    # ------------------------------------------------------------ for whoever sends it

    def next(self) -> Item | None:
        """Take out what is to be sent next; notes that follow each other come together.

        Notes are held as under way from here on, so that an error on the way loses none.
        """
        with self._lock:
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            if not isinstance(first, Note):
                return first
            notes = [first]
            while self._waiting and len(notes) < MAX_BATCH:
                note = self._waiting[0]
                if not isinstance(note, Note):
                    break
                notes.append(note)
                self._waiting.popleft()
            batch = NoteBatch(notes)
            self._sent.append(batch)
            return batch

    def oldest(self) -> NoteBatch | None:
        """The notes under way that were sent first."""
        return self._sent[0] if self._sent else None

    def arrive(self, kept: int) -> None:
        """Note that those which were sent first have been answered.

        Args:
            kept: number of the newest note that the file holds.
        """
        with self._lock:
            self._arrived.extend(self._sent.popleft().notes)
        self.drop_kept(kept)

    def drop_kept(self, number: int) -> None:
        """Forget the notes that are in the file.

        Args:
            number: of the newest one of them.
        """
        with self._lock:
            while self._arrived and self._arrived[0].number <= number:
                self._arrived.popleft()
                self._n_notes -= 1

    def begin_again(self) -> tuple[Sequence[NoteBatch], Sequence[Ending]]:
        """Take out all that a scheduler which was started anew has to be told, in its order.

        The notes are held as under way. Calls that wait are given up: who asked knows it by their
        missing reference.

        Returns:
            All notes that are not known to be in the file, and the stages that were not yet sent.
        """
        with self._lock:
            notes = [*self._arrived]
            for batch in self._sent:
                notes += batch.notes
            notes += [item for item in self._waiting if isinstance(item, Note)]
            endings = [item for item in self._waiting if isinstance(item, Ending)]
            self._arrived.clear()
            self._waiting.clear()
            cuts = range(0, len(notes), MAX_BATCH)
            self._sent = deque(NoteBatch(notes[i : i + MAX_BATCH]) for i in cuts)
            return list(self._sent), endings


logger = logging.getLogger(__name__)

_AFTER_ERROR_S = 1.0
"""Pause after a round that has failed, s. Invented: so that no error fills the log."""

_STOP_S = 2.0
"""Longest wait for the end of the thread, s. Invented: a call of Ray takes a millisecond."""


class Sender:
    """Calls a function on a thread of its own, soon after it was woken.

    The thread begins when it is woken for the first time, and keeps no process alive. What wakes
    it in quick succession is one round: each round takes the interpreter from the training thread.

    Args:
        work: one round; answers after how many seconds the next one is due if nothing wakes the
            thread before that, or None.
        gather_s: how long the thread waits for more once it was woken, s.
        at_exit: called when the process ends, if the thread has begun and was not stopped.
    """

    def __init__(
        self, work: Callable[[], float | None], gather_s: float, at_exit: Callable[[], None]
    ) -> None:
        self._work, self._gather_s, self._at_exit = work, gather_s, at_exit
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._urgent = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cpu_s = self._taken_s = 0.0

    def take_cpu_s(self) -> float:
        """Time that the thread has needed on a processor since this was last asked, s."""
        since_s, self._taken_s = self._cpu_s - self._taken_s, self._cpu_s
        return since_s

    def wake(self, *, at_once: bool = False) -> None:
        """Have a round done soon; takes microseconds.

        Args:
            at_once: whether it must not wait for more.
        """
        if at_once:
            self._urgent.set()
        if not self._woken.is_set():
            self._woken.set()
            if self._thread is None:
                self._begin()

    def stop(self) -> None:
        """End the thread, for good; safe to call twice."""
        self._stopped.set()
        self._urgent.set()
        self._woken.set()
        atexit.unregister(self._at_exit)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_S)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopped.is_set():
                return
            thread = threading.Thread(target=self._run, name="ecorl-sender", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is about to end: whoever drains sends what waits.
                self._woken.clear()
                return
            self._thread = thread
            atexit.register(self._at_exit)

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            if self._woken.wait(pause_s):
                self._urgent.wait(self._gather_s)
                # Before the round: what is told during it wakes the thread once more.
                self._urgent.clear()
                self._woken.clear()
            if self._stopped.is_set():
                return
            pause_s = self._round()
            self._cpu_s = time.thread_time()

    def _round(self) -> float | None:
        why: Exception | None = None
        try:
            with EngineBoundary() as boundary:
                return self._work()
            why = boundary.error
        except RayError as error:
            why = error
        logger.warning("what was told waits for the scheduler: %s: %s", type(why).__name__, why)
        return _AFTER_ERROR_S
