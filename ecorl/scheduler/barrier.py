"""The completion barrier: it joins the results of offloaded rows with their rows by sample id.

The training thread opens a ticket for the rows of one stage, the engine's thread delivers
results (at once or in parts, in any order), and the training thread waits at most until the
deadline. The outcome lists each id of the ticket exactly once: arrived, missing or invalid. Results
that come after the wait belong to no iteration any more; they are counted and dropped.

A row is invalid when its result is not finite, has the wrong shape, or was delivered twice with
different values: which of the two is right cannot be known, so neither is used. This does not
depend on the order in which the threads run.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ecorl.errors import ConfigError, EngineError

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A claim on the results of some rows, valid for one wait.

    Attributes:
        number: unique within the process, so that tickets of two iterations are never confused.
        sample_ids: the rows, in the order of the batch.
    """

    number: int
    sample_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BarrierOutcome:
    """The result of a wait: each id of the ticket is in one of `arrived`, `missing`, `invalid`.

    Attributes:
        arrived: values by id: ``[] float32`` for a scalar, else ``[n_values] float32``.
        missing: ids without a result before the deadline, in the order of the batch.
        invalid: why the result of an id cannot be used, by id.
        unknown_ids: ids that were delivered but never asked for.
        n_duplicates: results beyond the first for an id.
        wait_s: how long the caller waited, s, measured.
        timed_out: whether the deadline ended the wait.
        fault: fault that the engine reported, or None.
    """

    arrived: dict[str, Float32]
    missing: tuple[str, ...]
    invalid: dict[str, str]
    unknown_ids: tuple[str, ...]
    n_duplicates: int
    wait_s: float
    timed_out: bool
    fault: str | None


@dataclass(slots=True)
class _Pending:
    """The results that have arrived for an open ticket."""

    expected: dict[str, int | None]
    values: dict[str, Float32] = field(default_factory=dict)
    invalid: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    n_duplicates: int = 0
    fault: str | None = None
    waited: bool = False

    @property
    def complete(self) -> bool:
        """Whether the wait may end: every row has a result, or the engine has failed."""
        return self.fault is not None or len(self.values) + len(self.invalid) == len(self.expected)

    def add(self, sample_id: str, value: object) -> None:
        """Check a result and keep it, or why it cannot be used."""
        if sample_id not in self.expected:
            self.unknown.append(sample_id)
            return
        if sample_id in self.values or sample_id in self.invalid:
            self.n_duplicates += 1
        row, problem = _checked(value, self.expected[sample_id])
        # An id that was invalid once stays invalid, and two different values make it invalid: so
        # the outcome is the same in whatever order the results arrive.
        old = self.values.get(sample_id)
        if row is not None and old is not None and not np.array_equal(row, old):
            row, problem = None, "answered twice with different values"
        if row is None:
            self.values.pop(sample_id, None)
            self.invalid.setdefault(sample_id, problem)
        elif sample_id not in self.invalid:
            self.values[sample_id] = row


def _checked(value: object, n_values: int | None) -> tuple[Float32 | None, str]:
    """Return a copy of the row that nobody else can change, or None and what is wrong with it."""
    if value is None:
        return (
            None,
            "no value, one that is not finite, or values that cannot be joined with their ids",
        )
    try:
        # A number beyond float32 becomes infinite, which the last check below refuses.
        with np.errstate(over="ignore"):
            row = np.array(value, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        return None, "not numbers"
    shape = () if n_values is None else (n_values,)
    if row.shape != shape:
        return None, f"shape {row.shape} instead of {shape}"
    if not np.isfinite(row).all():
        return None, "not finite"
    return row, ""


class CompletionBarrier:
    """Joins offloaded results with the rows that wait for them; thread-safe.

    One barrier serves the whole run; each stage of each iteration has its own ticket.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._open: dict[int, _Pending] = {}
        self._n_late = 0

    @property
    def n_late(self) -> int:
        """Number of rows of the whole run that came after the end of their wait."""
        with self._changed:
            return self._n_late

    @property
    def n_open(self) -> int:
        """Number of tickets that nobody has waited for yet."""
        # Each decision asks. One length is whole without the lock, which takes longer to take.
        return len(self._open)

    def register(self, sample_ids: Sequence[str], n_values: Sequence[int] | None = None) -> Ticket:
        """Open a ticket for the rows of one stage.

        Args:
            sample_ids: one id a row, without repetition.
            n_values: values that each row must have (log-probs); None for one scalar a row.

        Raises:
            EngineError: when an id occurs twice, or the lengths differ.
        """
        ids = tuple(sample_ids)
        counts: tuple[int | None, ...] = (None,) * len(ids) if n_values is None else tuple(n_values)
        if len(counts) != len(ids):
            raise EngineError(f"{len(ids)} ids and {len(counts)} row lengths")
        expected = dict(zip(ids, counts, strict=True))
        if len(expected) != len(ids):
            raise EngineError("a sample id occurs twice in one batch")
        with self._changed:
            ticket = Ticket(next(self._numbers), ids)
            self._open[ticket.number] = _Pending(expected)
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Close a ticket that nobody will wait for; results that still come for it are late."""
        with self._changed:
            self._open.pop(ticket.number, None)

    def deliver(self, ticket: Ticket, sample_ids: Iterable[str], values: Iterable[object]) -> None:
        """Deliver results from the engine's thread; bad ones become invalid rows, never an error.

        Args:
            ticket: the ticket of the rows.
            sample_ids: ids of the rows.
            values: one value (or row of values) an id; if there are more or fewer values than
                ids nothing can be joined, and all these ids count as invalid.
        """
        ids, rows = list(sample_ids), list(values)
        if len(ids) != len(rows):
            rows = [None] * len(ids)
        with self._changed:
            pending = self._open.get(ticket.number)
            if pending is None:
                self._n_late += len(ids)
                return
            for sample_id, row in zip(ids, rows, strict=True):
                pending.add(sample_id, row)
            self._changed.notify_all()

    def fail(self, ticket: Ticket, fault: str) -> None:
        """Report that the engine failed: the wait ends at once with the results so far.

        Args:
            ticket: the ticket that will get no more results.
            fault: name of the fault.
        """
        with self._changed:
            pending = self._open.get(ticket.number)
            if pending is not None and pending.fault is None:
                pending.fault = fault
                self._changed.notify_all()

    def wait(self, ticket: Ticket, deadline_s: float) -> BarrierOutcome:
        """Wait until every row has a result, the engine has failed, or the deadline is over.

        Args:
            ticket: from `register`; each may be waited for once.
            deadline_s: longest wait from now, s.

        Returns:
            What arrived, and what did not.

        Raises:
            ConfigError: when the deadline is negative or not finite.
            EngineError: when the ticket was waited for before.
        """
        if not math.isfinite(deadline_s) or deadline_s < 0:
            raise ConfigError("placement.deadline_s", deadline_s, "a finite time of 0 s or more")
        start_s = time.monotonic()
        with self._changed:
            pending = self._open.get(ticket.number)
            if pending is None or pending.waited:
                raise EngineError(f"ticket {ticket.number} was waited for before")
            pending.waited = True
            complete = self._changed.wait_for(lambda: pending.complete, timeout=deadline_s)
            # From here on results for this ticket are late, so `pending` changes no more.
            del self._open[ticket.number]
        missing = tuple(
            i for i in ticket.sample_ids if i not in pending.values and i not in pending.invalid
        )
        return BarrierOutcome(
            arrived=pending.values,
            missing=missing,
            invalid=pending.invalid,
            unknown_ids=tuple(pending.unknown),
            n_duplicates=pending.n_duplicates,
            wait_s=time.monotonic() - start_s,
            timed_out=not complete,
            fault=pending.fault,
        )
