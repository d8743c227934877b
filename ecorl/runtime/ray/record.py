"""`RemoteRecord`: a run's record, as a training process writes to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ecorl.records import EventKind, FaultEvent
from ecorl.runtime.ray.link import ANSWER_S, SchedulerLink


class RemoteRecord:
    """The run's record as a training process writes to it; see `RecordWriter`.

    Args:
        link: to the scheduler, which keeps it.
        close: ends the record.
    """

    def __init__(self, link: SchedulerLink, close: Callable[[], None]) -> None:
        self._link, self._close = link, close

    def event(self, kind: EventKind, detail: str) -> None:
        """Note something about the course of the run."""
        self._link.tell("event", kind, detail)

    def fault(self, f: FaultEvent) -> None:
        """Record something that went wrong and was survived."""
        self._link.tell("fault", f)

    def metric(self, iteration: int, name: str, value: float | None) -> None:
        """Record one scalar of the trainer."""
        self._link.tell("metric", iteration, name, value)

    def evaluation(self, name: str, phase: str, values: Sequence[float | None]) -> None:
        """Record per-item values of one evaluation."""
        self._link.tell("evaluation", name, phase, tuple(values))

    def checkpoint(self, iteration: int, path: str) -> None:
        """Record a checkpoint of the trainer."""
        self._link.tell("checkpoint", iteration, path)

    def edi(self, json: str) -> None:
        """Record the EDI matrix."""
        self._link.tell("edi", json)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was recorded before is on disk."""
        self._link.drain(timeout_s)
        return bool(self._link.ask("ask", "flush", timeout_s, timeout_s=timeout_s + ANSWER_S))

    def close(self) -> None:
        """End the record; safe to call twice."""
        self._close()
